// Two checkpoints, A and B: what diff_report.c writes, and the parts of the page that show it.

const RESULTS = ['equal', 'only in A', 'only in B', 'kind', 'shape', 'dtype', 'differs', 'unreadable'];
const EQUAL = 0, ONLY_A = 1, ONLY_B = 2, KIND = 3, DIFFERS = 6, FAILED = 7;
// How the map shows results and relative changes.
const KINDS = [['--none', 'equal'], ['--d1', '< 0.1 %'], ['--d2', '0.1 to 1 %'], ['--d3', '1 to 10 %'], ['--d4', '\u2265 10 %'], ['--nan', 'NaN'],
  ['--bad', 'only in A'], ['--good', 'only in B'], ['--warn', 'of another shape or dtype'], ['--bad', 'unreadable']];
const TABLE_ROWS = 300, LAYER_CHARTS = 4;

function percent(x) {
  const v = 100 * x;
  if (v < 100 && +v.toPrecision(3) === 100) // not all
    return '> 99.9 %';
  return Number.isNaN(v) ? '\u2013' : v === Infinity ? '\u221e' : v === 0 ? '0 %'
    : (v < 0.001 || v >= 1e6 ? v.toExponential(1) : v < 100 ? v.toPrecision(3) : String(+v.toPrecision(3))) + ' %';
}

// What is known of several rows: numbers of tensors, elements and bytes, and sums of squares.
class Sum {
  constructor() {
    this.n = this.changed = this.onlyA = this.onlyB = this.other = this.failed = this.nan = 0;
    this.elements = this.unequal = this.moved = this.base = this.largest = 0;
  }

  add(s) {
    for (const key of Object.keys(this))
      this[key] = key === 'largest' ? Math.max(this.largest, s.largest) : this[key] + s[key];
  }

  get relative() {
    return this.moved > 0 ? Math.sqrt(this.moved) / Math.sqrt(this.base) : 0;
  }

  get share() {
    return this.elements ? this.unequal / this.elements : 0;
  }
}

class Diff {
  constructor(table, bytes) {
    const r = new Reader(bytes), n = table.stored;
    this.table = table;
    this.result = r.uints(table.n, Uint8Array);
    this.known = r.uints(n, Uint8Array); // 1: elements were compared, 2: as numbers
    const ofBoth = () => Array.from({ length: n }, (_, i) => this.result[i] < ONLY_A || this.result[i] > KIND ? r.uint() : -1);
    this.dtypeA = ofBoth();
    this.shapeA = ofBoth();
    this.changed = r.uints(n, Float64Array);
    this.nanA = r.uints(n, Float64Array);
    this.nanB = r.uints(n, Float64Array);
    this.infinite = r.uints(n, Float64Array);
    this.l2 = r.floats(n, n);
    this.normA = r.floats(n, n);
    this.max = r.floats(n, n);
    this.mean = r.floats(n, n);
    this.heats = new Map();
    for (let k = r.uint(); k > 0; k--) {
      const row = r.uint(), rows = r.uint(), columns = r.uint(), [largest] = r.floats(1, 1);
      this.heats.set(row, { row, rows, columns, largest, codes: Int8Array.from(r.take(rows * columns)) });
    }
    this.sums = new Map();
  }

  relative(row) {
    return this.known[row] === 2 ? this.l2[row] > 0 ? this.l2[row] / this.normA[row] : 0 : NaN;
  }

  newNan(row) {
    return this.nanB[row] > this.nanA[row];
  }

  // A number in KINDS.
  kind(row) {
    const result = this.result[row];
    if (result === ONLY_A || result === ONLY_B)
      return result === ONLY_A ? 6 : 7;
    if (result === FAILED || (result >= KIND && result < DIFFERS && !this.known[row]))
      return result === FAILED ? 9 : 8;
    if (this.newNan(row) || !this.changed[row])
      return this.newNan(row) ? 5 : 0;
    const relative = this.relative(row);
    return relative < 1e-3 ? 1 : relative < 1e-2 ? 2 : relative < 1e-1 ? 3 : 4;
  }

  addTo(s, row) {
    const result = this.result[row];
    s.n++;
    s.changed += result === DIFFERS || this.changed[row] > 0;
    s.onlyA += result === ONLY_A;
    s.onlyB += result === ONLY_B;
    s.other += result >= KIND && result < DIFFERS;
    s.failed += result === FAILED;
    if (!this.known[row])
      return;
    s.nan += this.newNan(row);
    s.elements += this.table.elements(row);
    s.unequal += this.changed[row];
    if (this.known[row] === 2) {
      s.moved += this.l2[row] ** 2;
      s.base += this.normA[row] ** 2;
      s.largest = Math.max(s.largest, this.max[row]);
    }
  }

  sum(rows) {
    const s = new Sum();
    for (const row of rows)
      this.addTo(s, row);
    return s;
  }

  // The same for a listed item.
  of(item) {
    if (typeof item === 'number')
      return this.sum([item]);
    let s = this.sums.get(item);
    if (s)
      return s;
    s = new Sum();
    for (const child of item.members || item.children)
      if (typeof child === 'number')
        this.addTo(s, child);
      else
        s.add(this.of(child));
    this.sums.set(item, s);
    return s;
  }

  resultText(row) {
    const text = RESULTS[this.result[row]];
    return this.result[row] === DIFFERS || this.result[row] === EQUAL ? text : { kind: 'a tensor and an object',
      shape: 'the shapes differ', dtype: 'the dtypes differ' }[text] || text;
  }

  // The condition is:STATE of a search.
  state(state) {
    const result = this.result;
    switch (state) {
      case 'equal': return (i) => result[i] === EQUAL;
      case 'changed': return (i) => result[i] >= KIND && result[i] <= DIFFERS;
      case 'a': return (i) => result[i] === ONLY_A;
      case 'b': return (i) => result[i] === ONLY_B;
      case 'missing': return (i) => result[i] === ONLY_A || result[i] === ONLY_B;
      case 'unreadable': return (i) => result[i] === FAILED;
      case 'nan': return (i) => this.newNan(i);
    }
    return () => false;
  }
}

// ---- pictures of differences ----

function rgb(colour) {
  return [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
}

// The colour of a code from -1 to 1: from one end through nothing to the other.
function mixed(code) {
  const end = rgb(cssColour(code < 0 ? '--less' : '--more')), none = rgb(cssColour('--same')), k = Math.abs(code);
  return none.map((c, i) => Math.round(c + (end[i] - c) * k));
}

class HeatMap {
  constructor(heat, shape, name, room) {
    this.heat = heat;
    this.columns = shape.length ? shape[shape.length - 1] : 1;
    this.rows = shape.slice(0, -1).reduce((a, b) => a * b, 1);
    const { rows, columns, largest } = heat;
    const tall = Math.min(4, Math.max(0.25, this.rows / this.columns));
    const fit = (px, cells) => cells * Math.max(1, Math.floor(px / cells)); // whole pixels
    const w = fit(tall > 1 ? room / tall : room, columns), h = rows === 1 ? Math.min(28, room / 4) : fit(tall > 1 ? room : room * tall, rows);
    this.canvas = element('canvas', { class: 'heat', width: columns, height: rows, role: 'img',
      'aria-label': `where ${clipped(name, 100)} changed: at most by ${numberText(largest)}` });
    this.canvas.style.width = w + 'px';
    this.canvas.style.height = h + 'px';
    this.draw();
  }

  draw() {
    const { rows, columns, codes } = this.heat, g = this.canvas.getContext('2d');
    const image = g.createImageData(columns, rows), colours = new Map([[-128, rgb(cssColour('--nan'))]]);
    codes.forEach((code, i) => {
      if (!colours.has(code))
        colours.set(code, mixed(code / 127));
      image.data.set([...colours.get(code), 255], 4 * i);
    });
    g.putImageData(image, 0, 0);
  }

  // What is in the cell at these parts of width and height.
  cell(x, y) {
    const { rows, columns, codes, largest } = this.heat;
    const at = (part, n) => Math.max(0, Math.min(n - 1, Math.floor(part * n)));
    const row = at(y, rows), column = at(x, columns), code = codes[row * columns + column];
    const range = (what, k, parts, n) => {
      const start = (i) => Math.floor(n / parts) * i + Math.min(i, n % parts), [a, b] = [start(k), start(k + 1) - 1];
      return what + (a === b ? ` ${a}` : `s ${a} to ${b}`);
    };
    const value = code === -128 ? 'not finite, and changed' : code === 0 ? 'no change'
      : `${code < 0 ? '-' : '+'}${numberText(+(largest * (code / 127) ** 2).toPrecision(3))}`;
    return `${range('row', row, rows, this.rows)}, ${range('column', column, columns, this.columns)}: ${value}`;
  }
}

// Those on the page, to be drawn again when the theme changes.
const heatMaps = { tiles: [], detail: null };

// ---- the parts of the page ----

class DiffList extends List {
  weight(item) {
    const s = diff.of(item);
    return s.onlyA + s.onlyB + s.other + s.failed ? 4e300 : s.nan ? 3e300 : Math.min(2e300, s.relative || (s.changed ? s.share || 1e-9 : -1));
  }

  figure(item) {
    const s = diff.of(item);
    if (!s.elements)
      return [s.n > 1 || s.onlyA + s.onlyB + s.other + s.failed ? '' : s.changed ? 'differs' : 'equal', 0];
    return [s.unequal ? s.moved ? percent(s.relative) : percent(s.share) + ' of elements' : 'equal', Math.min(1, s.relative)];
  }

  flags(item, row) {
    const s = diff.of(item), flag = (n, text, how) => n ? [element('span', { class: 'flag' + how }, (n > 1 ? digits(n) + ' ' : '') + text)] : [];
    return [...flag(s.onlyA, 'only in A', ''), ...flag(s.onlyB, 'only in B', ' calm'), ...flag(s.failed, 'unreadable', ''),
      ...flag(s.other, row >= 0 ? RESULTS[diff.result[row]] : 'of another shape or dtype', ' odd'), ...flag(s.nan, 'NaN', '')];
  }
}

class DiffMap extends Treemap {
  draw() {
    this.paints = KINDS.map(([colour, key]) => [[cssColour(colour), key, 1]]);
    super.draw();
  }

  paint(row) {
    return this.colouring === 'change' ? this.paints[diff.kind(row)] : super.paint(row);
  }
}

class DiffDetail extends Detail {
  ofMany(item) {
    const s = diff.of(item);
    return [...this.title(this.nameOf(item)), facts([['tensors', digits(s.n)], ...this.ofSum(s)])];
  }

  ofSum(s) {
    return [['differ', s.changed ? digits(s.changed) : 'none'], ['elements changed', s.elements ? `${digits(s.unequal)} of ${digits(s.elements)} (${percent(s.share)})` : null],
      ['relative change', s.elements ? percent(s.relative) : null], ['largest change', s.elements ? numberText(s.largest) : null],
      ['NaN appeared in', s.nan ? counted(s.nan, 'tensor') : null], ['only in A', s.onlyA ? digits(s.onlyA) : null],
      ['only in B', s.onlyB ? digits(s.onlyB) : null], ['of another shape or dtype', s.other ? digits(s.other) : null],
      ['unreadable', s.failed ? digits(s.failed) : null]];
  }

  ofTensor(row) {
    const t = this.tree.table, name = t.names[row], object = t.role[row] === ROLE_OBJECT, parts = [...this.title(name)];
    const same = object || diff.dtypeA[row] < 0 || (diff.dtypeA[row] === t.dtype[row] && diff.shapeA[row] === t.shape[row]);
    const about = (dtype, shape) => `${dtype.name}  ${shapeText(shape.shape)}`;
    const b = object ? null : about(t.dtypes[t.dtype[row]], t.shapes[t.shape[row]]);
    if (t.fault[row])
      parts.push(element('p', { class: 'notice' }, visible(t.faultOf(row))));
    parts.push(facts([['result', diff.resultText(row)], ['role', ROLES[t.role[row]]], ...(same ? [['tensor', b]]
      : [['in A', about(t.dtypes[diff.dtypeA[row]], t.shapes[diff.shapeA[row]])], ['in B', b]])]));
    if (!object && diff.known[row])
      parts.push(...this.ofChange(row));
    return [...parts, ...this.commands(name, object, row)];
  }

  ofChange(row) {
    const d = diff, t = this.tree.table, n = t.elements(row), numbers = d.known[row] === 2, parts = [element('h3', null, 'Change'), facts([
      ['elements changed', `${digits(d.changed[row])} of ${digits(n)}${n ? ` (${percent(d.changed[row] / n)})` : ''}`],
      ...(!numbers ? [] : [['relative change', percent(d.relative(row))], ['L2 norm of A', numberText(d.normA[row])],
        ['L2 norm of B \u2212 A', numberText(d.l2[row])], ['largest change', numberText(d.max[row])], ['mean change', numberText(d.mean[row])],
        ['NaN', d.nanA[row] || d.nanB[row] ? `${digits(d.nanA[row])} in A, ${digits(d.nanB[row])} in B` : '0'],
        ['changed, infinite', d.infinite[row] ? digits(d.infinite[row]) : null]]),
    ])];
    const heat = d.heats.get(row);
    if (heat)
      parts.push(...this.ofHeat(heat, row));
    const group = this.chain[this.chain.length - 1];
    if (!numbers || !group || group.members.length > MAX_CHOICES)
      return parts;
    const all = this.tree.rowsOf(row, [group]), labels = [String(group.numbers[0]), String(group.numbers[group.numbers.length - 1])];
    const charts = [['relative change', (r) => d.relative(r)], ['largest change', (r) => d.known[r] ? d.max[r] : NaN],
      ['share of elements changed', (r) => d.known[r] ? d.changed[r] / n : NaN]].map(([title, of]) => lineChart(title, all.map(of), group.current, labels));
    return [...parts, element('h3', null, `Across ${group.members.length} repetitions`), ...charts.filter(Boolean)];
  }

  ofHeat(heat, row) {
    const shape = this.tree.table.shapeOf(row), map = heatMaps.detail = new HeatMap(heat, shape, this.tree.table.names[row], 448);
    const say = element('p', { class: 'quiet', role: 'status' }, '\u00a0');
    map.canvas.addEventListener('mousemove', (event) => {
      const box = map.canvas.getBoundingClientRect();
      say.textContent = map.cell((event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
    });
    map.canvas.addEventListener('mouseleave', () => { say.textContent = '\u00a0'; });
    const scale = element('p', { class: 'scale' }, numberText(-heat.largest), element('span', { class: 'bar' }), numberText(heat.largest));
    return [element('h3', null, 'Where'), map.canvas, scale, say, element('p', { class: 'quiet' }, `B \u2212 A, ${counted(map.rows, 'row')} of ${counted(map.columns, 'column')}` +
      (map.rows > heat.rows || map.columns > heat.columns ? ': of each cell the largest change, up or down.' : '.'))];
  }

  commands(name, object, row) {
    const { a, b, model } = this.head.diff, result = diff.result[row], parts = [];
    const key = pythonString(name), x = (ck) => `${ck}${model ? '.model' : object ? '.objects' : ''}[${key}]${object ? '.value' : ''}`;
    if (result !== ONLY_A && result !== ONLY_B) {
      const glob = name.replace(/[*?[{\\]/g, '\\$&');
      parts.push(copyable(this.inShell(model ? 'diff --model --values' : 'diff --values', a.path, b.path, glob)));
    }
    if (!object && result !== KIND)
      parts.push(...[result !== ONLY_B && a, result !== ONLY_A && b].filter(Boolean).map((side) => copyable(this.inShell('head', side.path, name))));
    return [...(parts.length ? [element('h3', null, 'In a shell'), ...parts] : []), ...(result === ONLY_A || result === ONLY_B || result === KIND ? []
      : [element('h3', null, 'In Python'), copyable(`import ckptfs; a, b = ${this.inPython(a.path)}, ${this.inPython(b.path)}; x, y = ${x('a')}, ${x('b')}`)])];
  }
}

// ---- what is known about all of it ----

// Rows by the beginning of their names up to the first number, or with '*' in place of numbers.
function grouped(table, layers) {
  const groups = new Map();
  for (let row = 0; row < table.stored; row++) {
    const name = table.names[row], m = layers && /^(?:[^.]*\.)*?(?:\d+)(?=\.|$)/.exec(name);
    const key = layers ? m ? m[0] : name : name.replace(/(^|\.)\d+(?=\.|$)/g, '$1*');
    const list = groups.get(key);
    if (list)
      list.push(row);
    else
      groups.set(key, [row]);
  }
  return groups;
}

function sumTable(what, sums) {
  const cell = (text, how) => element('td', { class: 'n' + (how || '') }, text), count = (n, how) => cell(n ? digits(n) : '', n ? how : '');
  const rows = sums.slice(0, TABLE_ROWS).map(([key, s]) => element('tr', null, element('td', null, element('bdi', null, clipped(key, 90))),
    cell(digits(s.n)), count(s.changed), cell(s.elements ? percent(s.share) : ''), cell(s.elements ? percent(s.relative) : ''),
    cell(s.elements ? numberText(s.largest) : ''), count(s.nan, ' bad'), count(s.onlyA, ' bad'), count(s.onlyB), count(s.other), count(s.failed, ' bad')));
  return [element('div', { class: 'scroll' }, element('table', null, element('thead', null, element('tr', null, element('th', null, what),
    ...['tensors', 'differ', 'elements changed', 'relative change', 'largest change', 'NaN', 'only in A', 'only in B', 'shape, dtype', 'unreadable']
      .map((x) => element('th', { class: 'n' }, x)))), element('tbody', null, ...rows))),
  sums.length > TABLE_ROWS ? element('p', { class: 'quiet' }, `and ${digits(sums.length - TABLE_ROWS)} more`) : null].filter(Boolean);
}

// Charts of layers that differ only in their number; those of the optimizer come last.
function layerCharts(layers) {
  const runs = new Map(), weight = (list) => list.reduce((n, [, s]) => n + (s.optimizer ? 1e-9 : 1) * s.elements, 0);
  for (const [key, s] of layers) {
    const m = /^(.*?)(\d+)$/.exec(key);
    if (!m || !s.elements)
      continue;
    const list = runs.get(m[1]);
    if (list)
      list.push([m[2], s]);
    else
      runs.set(m[1], [[m[2], s]]);
  }
  const most = [...runs].filter(([, list]) => list.length > 1).sort((x, y) => weight(y[1]) - weight(x[1]));
  return most.slice(0, LAYER_CHARTS).map(([key, list]) => lineChart(`relative change of ${clipped(key, 60)}*`, list.map(([, s]) => s.relative), -1,
    list.map(([n]) => n))).filter(Boolean);
}

function showDiff(head, table, reveal) {
  const { a, b, model } = head.diff, at = (id) => document.getElementById(id), rows = (n) => Array.from({ length: n }, (_, i) => i);
  const all = diff.sum(rows(table.n)), objects = table.n - table.stored;
  const link = (side, path) => [element('b', null, side), ' ', element('bdi', null, clipped(path, 300))];
  at('title').replaceChildren(...link('A', a.path), ' \u2192 ', ...link('B', b.path));
  at('subtitle').textContent = [model ? 'the models' : null, ...[['A', a], ['B', b]].map(([side, x]) => `${side}: ${x.format}, ${counted(x.tensors, 'tensor')}, ` +
    `${sizeText(x.tensor_bytes)}, saved ${timeText(x.mtime)}`), `compared by ${head.program}, ${timeText(head.made)}`].filter(Boolean).join(' \u00b7 ');
  const main = diff.sum(rows(table.stored).filter((i) => table.role[i] !== 1));
  const count = (...results) => diff.result.filter((r) => results.includes(r)).length;
  const cards = [
    ['differ', digits(count(KIND, 4, 5, DIFFERS)), `of ${counted(table.stored, 'tensor')} and ${counted(objects, 'object')}`],
    ['equal', digits(count(EQUAL)), 'to the last bit, or value'],
    ['only in A', digits(all.onlyA), all.onlyA ? 'missing in B' : 'B has all', all.onlyA ? 'bad' : ''],
    ['only in B', digits(all.onlyB), all.onlyB ? 'missing in A' : 'A has all'],
    ['elements changed', all.elements ? percent(all.share) : '\u2013', `${countText(all.unequal)} of ${countText(all.elements)} compared`],
    ['relative change', main.elements ? percent(main.relative) : '\u2013', 'L2 of B \u2212 A by L2 of A, without the optimizer'],
    ['NaN', all.nan ? 'appeared' : 'none new', all.nan ? 'in ' + counted(all.nan, 'tensor') : 'in what was compared', all.nan ? 'bad' : 'good'],
    all.failed ? ['unreadable', digits(all.failed), 'could not be compared', 'bad'] : null,
  ].filter(Boolean);
  at('facts').replaceChildren(...cards.map(([name, big, small, how]) => element('div', { class: 'card ' + (how || '') },
    element('dt', null, name), element('dd', null, big), element('dd', { class: 'quiet' }, small))));
  const parts = ['model', 'optimizer', 'other'].map((name, role) => [name, diff.sum(rows(table.stored).filter((i) => table.role[i] === role))]).filter(([, s]) => s.n);
  const sums = (layers) => [...grouped(table, layers)].map(([key, list]) => [key, Object.assign(diff.sum(list), { optimizer: table.role[list[0]] === 1 })]), layers = sums(true);
  const fold = (title, open, ...content) => element('details', { open }, element('summary', null, title), ...content);
  const heats = [...diff.heats.values()].map((heat) => {
    const name = table.names[heat.row], map = new HeatMap(heat, table.shapeOf(heat.row), name, 128);
    heatMaps.tiles.push(map);
    return element('button', { type: 'button', class: 'tile', title: clipped(name, 2000), onclick: () => reveal(heat.row) }, map.canvas,
      element('bdi', null, clipped(name, 60)), element('span', { class: 'quiet' }, (diff.newNan(heat.row) ? 'NaN, ' : '') + percent(diff.relative(heat.row))));
  });
  const roles = fold('By role, the most changed first', false);
  roles.addEventListener('toggle', () => { // there may be many roles, so the table is built when it is first opened
    roles.append(...sumTable('role', sums(false).sort(([, x], [, y]) => y.relative - x.relative)));
  }, { once: true });
  const box = at('run');
  box.setAttribute('aria-label', 'Summary');
  box.hidden = false;
  at('facts').after(box);
  box.replaceChildren(...[table.stored ? fold('Model and optimizer', true, ...sumTable('part', parts)) : null,
    heats.length ? fold('Changed the most', true, element('div', { class: 'tiles' }, ...heats)) : null,
    layers.length ? fold('By layer', true, element('div', { class: 'charts' }, ...layerCharts(layers)), ...sumTable('layer', layers)) : null,
    layers.length ? roles : null].filter(Boolean));
  at('hint').replaceChildren('words, ', ...['*', 'dtype:bfloat16', 'role:optimizer', 'is:changed', 'is:missing', 'is:a', 'is:b', 'is:nan', 'is:equal', 'is:unreadable']
    .flatMap((x, i) => [i ? ' ' : '', element('kbd', null, x)]), '; on the right: change, relative to A');
}

async function startDiff(head, table) {
  diff = new Diff(table, await section('diff'));
  const parts = start(head, table, { Detail: DiffDetail, List: DiffList, Treemap: DiffMap, weighed: 'by change', colours: ['change', 'dtype', 'role'] });
  showDiff(head, table, (row) => {
    parts.map.told({ row });
    document.getElementById('detail').scrollIntoView({ block: 'nearest' });
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
    cssColours.clear();
    heatMaps.tiles.forEach((m) => m.draw());
    heatMaps.detail?.draw();
  });
}
