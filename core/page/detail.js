// The details of the selected item.

const HEAD_OPTIONS = ['include', 'exclude', 'rename', 'dtype', 'index', 'ignore_ctime']; // it refuses the others
const MAX_CHOICES = 4096; // equal layers that a menu or a chart shows
let values = null; // a page made without --stat has none
let chunks = null;
let series = null; // only of a run, with --stat
let diff = null; // only of two checkpoints

class Values {
  constructor(table, bytes) {
    const n = table.stored, r = new Reader(bytes);
    const counts = () => {
      const list = new Float64Array(table.n);
      for (let i = 0; i < n; i++)
        list[i] = r.uint();
      return list;
    };
    const floats = () => r.floats(n, table.n);
    this.known = counts();
    this.nan = counts();
    this.inf = counts();
    this.zero = counts();
    this.min = floats();
    this.max = floats();
    this.mean = floats();
    this.std = floats();
    this.norm = floats();
    this.bad = new Map(); // by node
  }

  // Records where each tensor's histograms are; they are decoded only when shown.
  addHists(bytes) {
    const n = this.known.length, r = this.hists = new Reader(bytes);
    this.histAt = new Uint32Array(n);
    for (let i = 0; i < n && r.at < bytes.length; i++) {
      this.histAt[i] = r.at;
      for (let k = 0; k < 2; k++) {
        const bins = r.uint();
        if (!bins)
          continue;
        r.uint();
        r.uint();
        r.at += bins;
      }
    }
  }

  // [linear, logarithmic], each with edges and heights of 0 to 255, or null.
  histOf(row) {
    const r = this.hists;
    r.at = this.histAt[row];
    let n = r.uint(), linear = null, logarithmic = null;
    if (n) {
      const width = 2 ** r.int(), first = r.int();
      linear = { edges: Array.from({ length: n + 1 }, (_, i) => (first + i) * width), heights: r.take(n) };
    }
    n = r.uint();
    if (n) {
      const positive = r.uint(), k = r.int();
      const edges = Array.from({ length: n + 1 }, (_, i) => i >= positive ? 2 ** (k + i - positive) : -(2 ** (k + positive - 1 - i)));
      logarithmic = { edges, heights: r.take(n) };
    }
    return [linear, logarithmic];
  }

  anyNan(tree, item) {
    if (typeof item === 'number')
      return this.nan[item] > 0;
    let found = this.bad.get(item);
    if (found === undefined) {
      found = (item.members || item.children).some((c) => this.anyNan(tree, c));
      this.bad.set(item, found);
    }
    return found;
  }
}

// Tensors through a run (written by series.c).
class Series {
  constructor(table, bytes) {
    const r = new Reader(bytes);
    this.all = r.uint();
    this.names = r.names(r.uint());
    const n = this.names.length, known = r.uints(table.stored, Uint8Array);
    const columns = Array.from({ length: 4 }, () => Array.from(known, (k) => {
      let code = 0;
      return k ? Float32Array.from({ length: n }, () => {
        code += r.int();
        return code > 1 ? 2 ** ((code - 2) / 512 - 149) : code ? 0 : NaN;
      }) : null;
    }));
    const nan = Array.from(known, (k) => k ? r.uints(n, Float64Array) : null);
    this.of = (row) => known[row] ? [...columns.map((c) => c[row]), nan[row]] : null;
  }
}

function copyable(text) {
  const code = element('code', null, text);
  const button = element('button', { type: 'button', class: 'copy', onclick: async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = 'copied';
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = 'selected';
    }
    setTimeout(() => { button.textContent = 'copy'; }, 1500);
  } }, 'copy');
  return element('div', { class: 'command' }, code, button);
}

function facts(rows) {
  return element('dl', { class: 'facts' }, ...rows.filter(([, v]) => v !== null && v !== undefined && v !== '')
    .flatMap(([k, v]) => [element('dt', null, k), element('dd', null, v)]));
}

// Adds an SVG element to another one.
function drawn(to, tag, attributes, text) {
  const e = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [key, value] of Object.entries(attributes))
    e.setAttribute(key, value);
  if (text !== undefined)
    e.textContent = text;
  to.append(e);
  return e;
}

function chart(w, h, title, low, high) {
  const figure = element('figure', null, element('figcaption', null, title));
  return [figure, drawn(figure, 'svg', { viewBox: `0 0 ${w} ${h}`, class: 'chart', role: 'img',
    'aria-label': `${title}: from ${numberText(low)} to ${numberText(high)}` })];
}

function tickText(v, places = 3) {
  return numberText(+v.toPrecision(places));
}

// The ends of an axis with as few digits as tell how far they are apart.
function endTexts(low, high) {
  let n = low === high ? 6 : 3;
  while (n < 6 && Math.abs((high.toPrecision(n) - low.toPrecision(n)) / (high - low) - 1) > 0.1)
    n++;
  return [tickText(low, n), tickText(high, n)];
}

function histogram(title, { edges, heights }) {
  const w = 340, h = 120, left = 2, bottom = 16, n = heights.length;
  const [figure, svg] = chart(w, h, title, edges[0], edges[n]);
  const total = heights.reduce((a, b) => a + b, 0) || 1;
  const wide = (w - 2 * left) / n, high = h - bottom - 8;
  for (let i = 0; i < n; i++) {
    const bar = drawn(svg, 'rect', { x: (left + i * wide).toFixed(2), width: Math.max(1, wide - 1).toFixed(2),
      y: (8 + high * (1 - heights[i] / 255)).toFixed(2), height: (high * heights[i] / 255).toFixed(2), class: 'bin' });
    drawn(bar, 'title', {}, `${numberText(edges[i])} to ${numberText(edges[i + 1])}: about ${(100 * heights[i] / total).toPrecision(2)} %`);
  }
  drawn(svg, 'line', { x1: left, x2: w - left, y1: h - bottom, y2: h - bottom, class: 'axis' });
  drawn(svg, 'text', { x: left, y: h - 3, class: 'tick' }, tickText(edges[0]));
  const zero = edges.indexOf(0);
  if (zero > n / 4 && zero < 3 * n / 4)
    drawn(svg, 'text', { x: left + zero * wide, y: h - 3, class: 'tick middle' }, '0');
  drawn(svg, 'text', { x: w - left, y: h - 3, class: 'tick end' }, tickText(edges[n]));
  return figure;
}

// A line of values over the members of a group, with a mark at the current one.
function lineChart(title, series, current, labels) {
  const w = 560, h = 96, left = 72, bottom = 16;
  const finite = series.filter(Number.isFinite);
  if (finite.length < 2)
    return null;
  const low = finite.reduce((a, b) => Math.min(a, b)), high = finite.reduce((a, b) => Math.max(a, b));
  const x = (i) => left + (w - left - 8) * i / (series.length - 1);
  const y = (v) => 8 + (h - bottom - 16) * (1 - (high === low ? 0.5 : (v - low) / (high - low)));
  const [figure, svg] = chart(w, h, title, low, high);
  drawn(svg, 'line', { x1: left, x2: w - 8, y1: h - bottom, y2: h - bottom, class: 'axis' });
  const points = series.map((v, i) => Number.isFinite(v) ? [x(i).toFixed(1), y(v).toFixed(1)] : null).filter(Boolean);
  drawn(svg, 'path', { d: 'M' + points.map((p) => p.join(' ')).join('L'), class: 'line' });
  if (points.length <= 40)
    points.forEach(([cx, cy]) => drawn(svg, 'circle', { cx, cy, r: 2, class: 'point' }));
  if (Number.isFinite(series[current]))
    drawn(svg, 'circle', { cx: x(current), cy: y(series[current]), r: 4, class: 'here' });
  const ends = endTexts(low, high);
  drawn(svg, 'text', { x: left - 6, y: y(high) + 5, class: 'tick end' }, ends[1]);
  if (high !== low)
    drawn(svg, 'text', { x: left - 6, y: h - bottom, class: 'tick end' }, ends[0]);
  drawn(svg, 'text', { x: left, y: h - 3, class: 'tick' }, clipped(labels[0], 30));
  drawn(svg, 'text', { x: w - 8, y: h - 3, class: 'tick end' }, clipped(labels[labels.length - 1], 30));
  return figure;
}

class Detail {
  constructor(box, tree, head, turned) {
    this.box = box;
    this.tree = tree;
    this.head = head;
    this.turned = turned; // called when a group shows another member
    this.heat = null; // values, in a mount
  }

  show(item, chain) {
    const row = this.tree.rowOf(item);
    this.chain = item instanceof Group ? [...chain, item] : chain;
    this.item = item;
    this.heat?.show(row);
    if (row >= 0)
      this.box.replaceChildren(...this.ofTensor(row));
    else
      this.box.replaceChildren(...this.ofMany(item));
  }

  // Pickers of the member to show, for each group around the item.
  pickers() {
    return this.chain.map((group) => {
      const go = (k) => {
        if (k < 0 || k >= group.members.length)
          return;
        this.tree.turn(group, k);
        this.turned();
      };
      const input = element('select', { 'aria-label': 'which one', onchange: () => go(input.selectedIndex) },
        ...group.numbers.slice(0, MAX_CHOICES).map((n, k) => element('option', { selected: k === group.current }, String(n))));
      return element('span', { class: 'picker' },
        element('button', { type: 'button', 'aria-label': 'previous', onclick: () => go(group.current - 1) }, '\u2039'), input,
        element('button', { type: 'button', 'aria-label': 'next', onclick: () => go(group.current + 1) }, '\u203a'),
        element('span', { class: 'quiet' }, `of ${group.members.length}`));
    });
  }

  title(name) {
    const h = element('h2', { class: 'fqn' }, element('bdi', null, clipped(name, 3000)));
    return [h, ...(this.chain.length ? [element('div', { class: 'pickers' }, 'layer ', ...this.pickers())] : [])];
  }

  ofMany(item) {
    const tree = this.tree, t = tree.table, sums = new Map();
    let parameters = 0, faults = 0, nan = 0;
    const add = (i) => {
      const name = t.dtypeName(i), sum = sums.get(name) || { n: 0, bytes: 0, elements: 0 };
      sum.n++;
      sum.bytes += t.bytes[i];
      sum.elements += t.elements(i);
      sums.set(name, sum);
      parameters += t.elements(i);
      faults += t.fault[i] > 0;
      nan += values ? values.nan[i] > 0 : 0;
    };
    this.tree.eachRow(item, add);
    const rows = [...sums].sort((a, b) => b[1].bytes - a[1].bytes).map(([name, s]) => element('tr', null,
      element('td', null, name), element('td', { class: 'n' }, digits(s.n)), element('td', { class: 'n' }, countText(s.elements)),
      element('td', { class: 'n' }, sizeText(s.bytes))));
    return [...this.title(this.nameOf(item)),
      facts([[this.tree.table.role[this.tree.firstRow(item)] === ROLE_OBJECT ? 'objects' : 'tensors', digits(item.count)], ['elements', countText(parameters)], ['bytes', sizeText(item.bytes)],
        ['incomplete', faults ? digits(faults) : null], ['with NaN', nan ? digits(nan) : null]]),
      element('table', { class: 'sums' }, element('thead', null, element('tr', null, element('th', null, 'dtype'),
        element('th', { class: 'n' }, 'tensors'), element('th', { class: 'n' }, 'elements'), element('th', { class: 'n' }, 'bytes'))),
      element('tbody', null, ...rows))];
  }

  nameOf(item) {
    const member = item instanceof Group ? item.members[item.current] : item;
    const first = this.tree.startOf(member);
    if (!(item instanceof Branch || item instanceof Group) || member.depth === undefined || !this.tree.table.n)
      return this.tree.labelOf(item);
    if (item instanceof Branch && item.label.startsWith('(') && item.depth === 1)
      return item.label;
    return this.tree.table.names[first].split('.').slice(0, member.depth).join('.');
  }

  ofTensor(row) {
    const t = this.tree.table, head = this.head.checkpoint, name = t.names[row], made = t.role[row] === ROLE_MADE;
    const object = t.role[row] === ROLE_OBJECT;
    const logical = object ? [] : t.shapes[t.shape[row]].logical;
    const prefix = head.model_prefix || '';
    const modelName = made ? name : object || t.notModel[row] ? null : t.modelName.get(row) || name.slice(prefix.length);
    const parts = [...this.title(name)];
    if (t.fault[row])
      parts.push(element('p', { class: 'notice' }, 'Incomplete: ' + visible(t.faultOf(row))));
    parts.push(facts([
      ['dtype', t.dtypeName(row)],
      ['shape', object ? null : shapeText(t.shapeOf(row))],
      ['unflattened', logical.length ? shapeText(logical) : null],
      ['elements', object ? null : digits(t.elements(row))],
      ['bytes', object ? null : sizeText(t.bytes[row]) + (t.bytes[row] >= 1024 ? ` (${digits(t.bytes[row])})` : '')],
      ['role', made ? 'of the model, made by the recipe' : ROLES[t.role[row]]],
      ['stored as', made ? 'pieces of other tensors' : element('bdi', null, clipped(name, 3000))],
      ['in hf/', modelName === null ? null : element('bdi', null, clipped(modelName, 3000))],
    ]));
    if (values && row < t.stored)
      parts.push(...this.ofValues(row));
    if (series && series.of(row))
      parts.push(...this.ofSeries(series.of(row)));
    if (this.heat)
      parts.push(this.heat.box);
    if (!made && !object)
      parts.push(...this.ofChunks(row));
    parts.push(...this.commands(name, object, made));
    return parts;
  }

  ofValues(row) {
    const v = values;
    if (!v.known[row])
      return [element('h3', null, 'Values'), element('p', { class: 'quiet' }, 'Unknown: it could not be read, or its bytes are no numbers by themselves.')];
    const t = this.tree.table, n = t.elements(row);
    const share = (k) => k ? `${digits(k)} (${(100 * k / n).toPrecision(3)} %)` : '0';
    const finite = n > v.nan[row] + v.inf[row];
    const parts = [element('h3', null, 'Values'), facts([
      ['min', finite ? numberText(v.min[row]) : null], ['max', finite ? numberText(v.max[row]) : null],
      ['mean', finite ? numberText(v.mean[row]) : null], ['std', finite ? numberText(v.std[row]) : null],
      ['L2 norm', finite ? numberText(v.norm[row]) : null],
      ['zeros', share(v.zero[row])], ['NaN', share(v.nan[row])], ['Inf', share(v.inf[row])],
    ])];
    const [linear, logarithmic] = v.histOf(row);
    const hists = [linear && histogram('linear', linear),
      logarithmic && histogram('by powers of two', logarithmic)].filter(Boolean);
    parts.push(element('div', { class: 'charts' }, ...hists));
    const group = this.chain[this.chain.length - 1];
    if (!group || group.members.length > MAX_CHOICES)
      return parts;
    const all = this.tree.rowsOf(row, [group]);
    const labels = [String(group.numbers[0]), String(group.numbers[group.numbers.length - 1])];
    const of = (list) => all.map((r) => v.known[r] && t.elements(r) > v.nan[r] + v.inf[r] ? list[r] : NaN);
    parts.push(element('h3', null, `Across ${group.members.length} repetitions`));
    for (const figure of [lineChart('std', of(v.std), group.current, labels), lineChart('max', of(v.max), group.current, labels),
      lineChart('min', of(v.min), group.current, labels)])
      if (figure)
        parts.push(figure);
    return parts;
  }

  ofSeries(columns) {
    const { names, all } = series, titles = ['root mean square', 'largest magnitude',
      'relative change since the checkpoint before', 'share of elements changed since then', 'NaN'];
    return [element('h3', null, names.length < all ? `Through ${names.length} of ${all} checkpoints` : `Through ${all} checkpoints`),
      ...columns.map((list, k) => k < 4 || list.some((x) => x)
        ? lineChart(titles[k], [...list], names.length - 1, names) : null).filter(Boolean)];
  }

  ofChunks(row) {
    const all = chunks && chunks.of(row);
    if (!all)
      return [element('h3', null, 'Chunks'), element('p', { class: 'quiet' },
        "Not kept on this page: 'ckptfs info' lists them.")];
    const files = new Set(all.map((c) => c.path)).size;
    const map = new ChunkMap(this.tree.table.shapeOf(row), all);
    return [element('h3', null, 'Chunks'), element('p', null, `${counted(all.length, 'chunk')} in ${counted(files, 'file')}` +
      (chunks.hasRanks() ? ', coloured by the rank that wrote them' : files > 1 ? ', coloured by file' : '')), map.element, ...chunkTable(all)];
  }

  // A command with the options that this page was made with, or those of them that it takes, and arguments.
  inShell(command, ...args) {
    const options = this.head.options.filter((o) => command !== 'head' || HEAD_OPTIONS.includes(o.split('=')[0]));
    const words = [...options.map((o) => '--' + o), ...(args.some((a) => a[0] === '-') ? ['--'] : []), ...args];
    return ['ckptfs', command, ...words.map(shellWord)].join(' ');
  }

  inPython(path) {
    const given = new Map();
    for (const option of this.head.options) {
      const at = option.indexOf('='), key = at < 0 ? option : option.slice(0, at);
      given.set(key, [...given.get(key) || [], at < 0 ? 'True' : pythonString(option.slice(at + 1))]);
    }
    return `ckptfs.open(${pythonString(path)}` +
      [...given].map(([key, list]) => `, ${key}=${list.length > 1 ? `[${list.join(', ')}]` : list[0]}`).join('') + ')';
  }

  // Commands to get the item, in a shell and in Python.
  commands(name, object, made) {
    const path = this.head.checkpoint.path, commands = object ? ['info'] : ['head', 'info'];
    const lines = made ? [] : commands.map((c) => this.inShell(c, path, name));
    const key = pythonString(name), get = object ? `ck.objects[${key}].value` : made ? `ck.model[${key}]` : `ck[${key}]`;
    return [...(made ? [] : [element('h3', null, 'In a shell'), ...lines.map(copyable)]),
      element('h3', null, 'In Python'), copyable(`import ckptfs; ck = ${this.inPython(path)}; x = ${get}`)];
  }
}
