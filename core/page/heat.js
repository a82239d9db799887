'use strict';
// Shows values of tensors on the page in a mount, from scripts and pictures beside it
// (page/picture.h). Each of these files is made when it is loaded, and none is loaded until the user
// asks for values.

const TILE = 256, SAMPLES = 4;
const MIN_EXPONENT = -149, MAX_EXPONENT = 128;
const MAX_TILES = 200; // whose values are kept

let sections = null; // what data.js has brought

function ckptfsData(all) {
  sections = all;
}

const arrived = new Map(); // values that were loaded, by the name of their file

function ckptfsTile(name, width, height, text) {
  const packed = atob(text), bytes = new Uint8Array(packed.length);
  for (let i = 0; i < packed.length; i++)
    bytes[i] = packed.charCodeAt(i);
  arrived.set(name, { width, height, cells: new Float64Array(bytes.buffer) });
}

function loadScript(url) {
  return new Promise((resolve, reject) => {
    const script = element('script', { src: url });
    script.onload = () => { script.remove(); resolve(); };
    script.onerror = () => { script.remove(); reject(new Error('cannot be read')); };
    document.head.append(script);
  });
}

// One after another: each leaves what it brings in the same place.
let lastScript = Promise.resolve();
function loadInTurn(url, take) {
  const next = lastScript.then(() => loadScript(url)).then(take);
  lastScript = next.catch(() => {});
  return next;
}

// What a data.js brings. One that was cut short brings nothing, and yet browsers say that it was loaded.
function loadSections(url) {
  lastScript = lastScript.then(() => { sections = null; });
  return loadInTurn(url, () => {
    if (!sections)
      throw new Error('brings no data');
    return sections;
  });
}

// The files of one checkpoint's directory view.
class Place {
  constructor(base) {
    this.base = base;
    this.tiles = new Map();
  }

  nameOf(tensor, slice, level, row, col) {
    return `t${tensor}.s${slice}.l${level}.r${row}.c${col}`;
  }

  values(name) {
    let tile = this.tiles.get(name);
    if (!tile) {
      tile = loadInTurn(this.base + name + '.js', () => {
        const found = arrived.get(name + '.js');
        arrived.clear();
        if (!found)
          throw new Error('brings no values');
        return found;
      });
      this.tiles.set(name, tile);
      if (this.tiles.size > MAX_TILES)
        this.tiles.delete(this.tiles.keys().next().value);
      tile.catch(() => this.tiles.delete(name));
    }
    return tile;
  }

  picture(name, exponent) {
    return `${this.base}${name}.e${exponent}.png`;
  }
}

// The names and shapes of another checkpoint of the run.
async function neighbour(name) {
  const place = new Place(`../../../${encodeURIComponent(name)}/.ckptfs/view/`);
  const all = await loadSections(place.base + 'data.js');
  place.table = new Table(await inflated(all.names), await inflated(all.rows));
  place.rows = new Map(place.table.names.slice(0, place.table.stored).map((n, i) => [n, i]));
  return place;
}

// A tensor as a stack of matrices.
class Stack {
  constructor(shape) {
    this.shape = shape;
    this.cols = shape.length ? shape[shape.length - 1] : 1;
    this.rows = shape.length > 1 ? shape[shape.length - 2] : 1;
    this.outer = shape.slice(0, -2);
    this.slices = this.outer.reduce((a, b) => a * b, 1);
    this.levels = 1; // the last shows all of a matrix in one tile
    while (Math.ceil(Math.max(this.rows, this.cols) / 2 ** (this.levels - 1)) > TILE)
      this.levels++;
  }

  // The index of a slice, before those of row and column.
  indexOf(slice) {
    const index = [];
    for (let d = this.outer.length - 1; d >= 0; d--) {
      index.unshift(slice % this.outer[d]);
      slice = Math.floor(slice / this.outer[d]);
    }
    return index;
  }

  // "[3, 17, 42]", "[3, 16:32, 32:48]"
  text(slice, level, row, col) {
    const part = (k, n) => level ? `${k * 2 ** level}:${Math.min(n, (k + 1) * 2 ** level)}` : String(k);
    const index = this.indexOf(slice).map(String);
    if (this.shape.length > 1)
      index.push(part(row, this.rows));
    if (this.shape.length)
      index.push(part(col, this.cols));
    return `[${index.join(', ')}]`;
  }
}

// The shortest digits that are this number in the tensor's type.
function exactText(v, dtype) {
  if (Number.isNaN(v))
    return 'nan';
  if (!Number.isFinite(v))
    return v < 0 ? '-inf' : 'inf';
  if (/^float64|^complex128/.test(dtype))
    return String(v);
  if (/^u?int|^bool/.test(dtype))
    return Math.abs(v) > Number.MAX_SAFE_INTEGER ? 'about ' + v : v.toLocaleString('en-US', { maximumFractionDigits: 0 });
  for (let n = 1; n < 9; n++)
    if (Math.fround(+v.toPrecision(n)) === Math.fround(v))
      return String(+v.toPrecision(n));
  return String(+v.toPrecision(9));
}

// One picture that can be moved and zoomed. Several share a view: what is shown, and how large.
class Pane {
  constructor(heat, place, tensor, title) {
    this.heat = heat;
    this.place = place;
    this.tensor = tensor;
    this.images = new Map();
    this.sheet = element('div', { class: 'sheet' });
    this.mark = element('div', { class: 'cell', hidden: true });
    this.box = element('div', { class: 'heatbox', tabindex: '0', role: 'img', 'aria-label': `values of ${title}` }, this.sheet, this.mark);
    this.element = element('figure', null, element('figcaption', null, element('bdi', null, clipped(title))), this.box);
    this.box.addEventListener('wheel', (event) => {
      event.preventDefault();
      const at = this.at(event);
      heat.zoom(event.deltaY < 0 ? 2 : 0.5, at.x, at.y);
    }, { passive: false });
    this.box.addEventListener('keydown', (event) => heat.key(event));
    this.box.addEventListener('dblclick', (event) => {
      const at = this.at(event);
      heat.zoom(4, at.x, at.y);
    });
    this.box.addEventListener('pointerdown', (event) => this.drag(event));
    this.box.addEventListener('pointermove', (event) => {
      const at = this.at(event);
      heat.point(at.x, at.y, false);
    });
    this.box.addEventListener('pointerleave', () => heat.point(-1, -1, false));
  }

  at(event) {
    const box = this.box.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  drag(event) {
    if (event.button)
      return;
    let last = this.at(event), moved = 0;
    const move = (e) => {
      const now = this.at(e);
      moved += Math.abs(now.x - last.x) + Math.abs(now.y - last.y);
      if (moved > 3)
        this.heat.move(now.x - last.x, now.y - last.y);
      last = now;
    };
    const end = () => {
      this.box.removeEventListener('pointermove', move);
      if (moved <= 3)
        this.heat.point(last.x, last.y, true);
    };
    this.box.setPointerCapture(event.pointerId);
    this.box.addEventListener('pointermove', move);
    this.box.addEventListener('pointerup', end, { once: true });
    this.box.addEventListener('pointercancel', end, { once: true });
  }

  // Shows the tiles that are in sight, and no others.
  draw() {
    const h = this.heat, s = h.stack, cell = 2 ** h.level, wanted = new Map();
    const [w, high] = h.size();
    const first = (offset, scale) => Math.max(0, Math.floor(-offset / scale / cell / TILE));
    const last = (offset, scale, n, room) => Math.min(Math.ceil(n / cell / TILE) - 1, Math.floor((room - offset) / scale / cell / TILE));
    for (let r = first(h.y, h.sy); r <= last(h.y, h.sy, s.rows, high); r++)
      for (let c = first(h.x, h.sx); c <= last(h.x, h.sx, s.cols, w); c++) {
        const name = this.place.nameOf(this.tensor, h.slice, h.level, r, c);
        wanted.set(this.place.picture(name, h.exponent), [r, c]);
      }
    for (const [url, [r, c]] of wanted) {
      let image = this.images.get(url);
      if (!image) {
        image = element('img', { alt: '', draggable: 'false' });
        image.onload = () => this.settle();
        image.onerror = () => { this.failed = true; this.settle(); h.say('This part cannot be read: \u2018ckptfs check\u2019 tells why.'); };
        image.src = url;
        this.images.set(url, image);
        this.sheet.append(image);
      }
      // Cells at the edge stand for fewer elements, but are drawn as large as the others.
      const left = c * TILE * cell, top = r * TILE * cell;
      const wide = Math.ceil(Math.min(s.cols - left, TILE * cell) / cell) * cell, tall = Math.ceil(Math.min(s.rows - top, TILE * cell) / cell) * cell;
      image.style.left = `${h.x + left * h.sx}px`;
      image.style.top = `${h.y + top * h.sy}px`;
      image.style.width = `${wide * h.sx}px`;
      image.style.height = `${tall * h.sy}px`;
    }
    this.wanted = wanted;
    this.settle();
  }

  // Old pictures stay until all new ones are there.
  settle() {
    const busy = [...this.wanted.keys()].some((url) => !this.images.get(url).complete);
    this.box.dataset.busy = busy ? 'yes' : 'no';
    if (busy)
      return;
    for (const [url, image] of this.images)
      if (!this.wanted.has(url)) {
        image.remove();
        this.images.delete(url);
      }
  }
}

class Heat {
  constructor(box, tree, head) {
    this.box = box;
    this.tree = tree;
    this.head = head;
    this.row = -1;
    this.here = new Place('');
    this.neighbours = new Map();
    this.other = ''; // name of the checkpoint beside this one
  }

  // Another tensor was selected. Its values are read when the button is pressed.
  show(row) {
    const t = this.tree.table;
    if (row === this.row)
      return;
    this.row = row;
    this.panes = [];
    this.box.hidden = row < 0 || row >= t.stored || t.fault[row] > 0 || !t.elements(row) || !/^(b?float(8|16|32|64)|bfloat16|u?int|bool|b?complex)/.test(t.dtypeName(row));
    if (this.box.hidden)
      return;
    this.box.replaceChildren(element('h3', null, 'Values'),
      element('button', { type: 'button', id: 'heatshow', onclick: () => this.start(row) }, 'Show values'));
  }

  async start(row) {
    const t = this.tree.table;
    this.stack = new Stack(t.shapeOf(row));
    this.dtype = t.dtypeName(row);
    this.slice = 0;
    this.picked = null;
    this.line = element('p', { id: 'heatline', role: 'status' });
    this.panel = element('div', { class: 'panes' });
    this.graph = element('div', { class: 'charts' });
    this.scale = element('span', { id: 'heatscale' });
    this.box.replaceChildren(element('h3', null, 'Values'), this.controls(), this.panel, this.line, this.graph);
    try {
      while (!await this.overview()) // of a slice that is no longer shown
        if (this.row !== row)
          return;
    } catch (error) {
      if (this.row !== row)
        return;
      this.say(`The values cannot be read (${error.message}): \u2018ckptfs check\u2019 tells why.`);
      this.box.dataset.ready = String(row);
      return;
    }
    this.panes = [new Pane(this, this.here, row, this.head.in_run ? this.stepName() : t.names[row])];
    if (this.other)
      await this.compare(this.other);
    if (this.row !== row)
      return;
    this.layout();
    this.box.dataset.ready = String(row);
  }

  stepName() {
    return this.head.checkpoint.path.split('/').pop();
  }

  controls() {
    const button = (text, title, act) => element('button', { type: 'button', title, 'aria-label': title, onclick: act }, text);
    const middle = () => this.size().map((n) => n / 2);
    const list = [button('+', 'zoom in', () => this.zoom(2, ...middle())), button('\u2212', 'zoom out', () => this.zoom(0.5, ...middle())),
      button('all', 'all of the matrix', () => this.fit()),
      button('\u2039', 'stronger colours', () => this.recolour(-1)), this.scale,
      button('\u203a', 'weaker colours', () => this.recolour(1))];
    if (this.stack.slices > 1) {
      const index = element('span', { class: 'quiet', id: 'heatindex' }, this.sliceText());
      const input = element('input', { type: 'number', id: 'heatslice', min: '0', max: String(this.stack.slices - 1), value: '0', 'aria-label': 'slice', onchange: () => {
        this.slice = Math.min(this.stack.slices - 1, Math.max(0, Math.floor(+input.value) || 0));
        input.value = String(this.slice);
        index.textContent = this.sliceText();
        this.picked = null;
        this.overview().then((current) => current && this.draw(), (error) => this.say(error.message));
      } });
      list.push(element('label', null, element('span', { class: 'quiet' }, 'slice '), input), index);
    }
    if (this.head.in_run)
      list.push(this.stepPicker());
    return element('div', { class: 'heatbar' }, ...list);
  }

  sliceText() {
    return `of ${digits(this.stack.slices)}: [${this.stack.indexOf(this.slice).join(', ')}]`;
  }

  // The other checkpoints of the run; their names are loaded when the list is opened.
  stepPicker() {
    const select = element('select', { id: 'heatstep', 'aria-label': 'compare with a checkpoint', onchange: () => {
      this.other = select.value;
      this.panes.length = Math.min(this.panes.length, 1);
      const row = this.row;
      (this.other ? this.compare(this.other) : Promise.resolve()).then(() => {
        if (this.row === row && this.panes.length)
          this.layout();
      });
    } }, element('option', { value: '' }, 'beside: none'));
    const fill = async () => {
      this.run ||= loadSections('../../../.ckptfs/view/data.js').then((all) => inflated(all.head))
        .then((bytes) => JSON.parse(new TextDecoder().decode(bytes)).run.checkpoints);
      try {
        const names = (await this.run).filter((x) => x.complete && x.name !== this.stepName() && hasAddress(x.name)).map((x) => x.name);
        select.append(...names.map((n) => element('option', { value: n, selected: n === this.other }, clipped(n))));
      } catch (error) {
        this.run = null;
        this.say(`The run's checkpoints are unknown: its list ${error.message}.`);
      }
      select.dataset.ready = 'yes';
    };
    fill();
    return select;
  }

  async compare(name) {
    const t = this.tree.table, row = this.row;
    try {
      if (!this.neighbours.has(name))
        this.neighbours.set(name, neighbour(name));
      const place = await this.neighbours.get(name), at = place.rows.get(t.names[row]);
      // One pane: with none start() compares again, with two somebody picked the same one twice.
      if (this.row !== row || this.other !== name || this.panes.length !== 1)
        return;
      if (at === undefined)
        this.say(`${clipped(name)} has no such tensor.`);
      else if (shapeText(place.table.shapeOf(at)) !== shapeText(t.shapeOf(row)))
        this.say(`${clipped(name)} has it as ${shapeText(place.table.shapeOf(at))}.`);
      else
        this.panes.push(new Pane(this, place, at, name));
    } catch (error) {
      this.neighbours.delete(name);
      if (this.row === row && this.other === name)
        this.say(`${clipped(name)} cannot be shown: it ${error.message}.`);
    }
  }

  // The matrix in one tile: finds a scale for the colours, and draws the histogram. False: meanwhile another tensor or
  // slice was chosen, whose tile may have been there before this one.
  async overview() {
    const { row, slice } = this, level = this.stack.levels - 1, name = this.here.nameOf(row, slice, level, 0, 0);
    const current = () => this.row === row && this.slice === slice;
    const tile = await this.here.values(name).catch((error) => {
      if (current())
        throw error;
    });
    if (!tile || !current())
      return false;
    const { cells } = tile;
    const finite = cells.filter(Number.isFinite), most = finite.reduce((a, v) => Math.max(a, Math.abs(v)), 0);
    const mean = Math.sqrt(finite.reduce((a, v) => a + (v / (most || 1)) ** 2, 0) / (finite.length || 1)) * most;
    this.exponent = Math.min(MAX_EXPONENT, Math.max(MIN_EXPONENT, Math.ceil(Math.log2(Math.min(most, 3 * mean) || 1))));
    const side = Math.min(2 ** level, SAMPLES), counts = this.counted(finite);
    const block = `each ${2 ** level} \u00d7 ${2 ** level} block`;
    const what = level === 0 ? 'all values' : level <= Math.log2(SAMPLES) ? `the value of largest magnitude in ${block}`
      : `the largest in magnitude of ${side * side} values in ${block}`;
    this.graph.replaceChildren(...(counts ? [histogram(what, counts)] : []));
    const bad = cells.length - finite.length;
    if (bad)
      this.graph.append(element('p', { class: 'bad' }, `${digits(bad)} of ${digits(cells.length)} cells are NaN or infinite`));
    return true;
  }

  // Bins of equal width, as stat --hist makes them: a power of two.
  counted(finite) {
    if (!finite.length)
      return null;
    const low = finite.reduce((a, b) => Math.min(a, b)), high = finite.reduce((a, b) => Math.max(a, b));
    let width = 2 ** Math.max(-1000, Math.ceil(Math.log2((high - low) / 24 || Math.abs(high) / 64 || 1)));
    while (Math.floor(high / width) - Math.floor(low / width) > 23)
      width *= 2;
    const first = Math.floor(low / width), n = Math.floor(high / width) - first + 1, counts = new Array(n).fill(0);
    for (const v of finite)
      counts[Math.floor(v / width) - first]++;
    const most = Math.max(...counts);
    return { edges: Array.from({ length: n + 1 }, (_, i) => (first + i) * width), heights: counts.map((c) => Math.ceil(255 * c / most)) };
  }

  say(text) {
    this.line.textContent = text;
  }

  // ---- the view ----

  size() {
    const box = this.panes[0].box;
    return [box.clientWidth, box.clientHeight];
  }

  layout() {
    this.panel.replaceChildren(...this.panes.map((p) => p.element));
    this.fit();
  }

  fit() {
    const [w] = this.size(), s = this.stack;
    this.least = Math.min(w / s.cols, 420 / s.rows);
    this.s = this.least = Math.min(this.least, 32);
    this.place();
    const high = Math.min(420, Math.max(28, Math.ceil(s.rows * this.sy)));
    for (const pane of this.panes)
      pane.box.style.height = `${high}px`;
    this.x = (w - s.cols * this.sx) / 2;
    this.y = (high - s.rows * this.sy) / 2;
    this.draw();
  }

  // Scales in both directions, which are different only if a matrix would be too thin to be seen.
  place() {
    this.sx = Math.max(this.s, 24 / this.stack.cols);
    this.sy = Math.max(this.s, 24 / this.stack.rows);
    const level = Math.ceil(Math.log2(1 / Math.max(this.s, 1e-300)) - 1e-9);
    this.level = Math.max(0, Math.min(this.stack.levels - 1, level));
  }

  zoom(by, x, y) {
    const old = [this.sx, this.sy];
    this.s = Math.min(64, Math.max(this.least, this.s * by));
    this.place();
    this.x = x - (x - this.x) * this.sx / old[0];
    this.y = y - (y - this.y) * this.sy / old[1];
    this.keep();
  }

  move(dx, dy) {
    this.x += dx;
    this.y += dy;
    this.keep();
  }

  // The matrix stays in sight.
  keep() {
    const [w, high] = this.size();
    const within = (at, n, room) => n <= room ? (room - n) / 2 : Math.min(0, Math.max(room - n, at));
    this.x = within(this.x, this.stack.cols * this.sx, w);
    this.y = within(this.y, this.stack.rows * this.sy, high);
    this.draw();
  }

  recolour(by) {
    this.exponent = Math.min(MAX_EXPONENT, Math.max(MIN_EXPONENT, this.exponent + by));
    this.draw();
  }

  draw() {
    const end = numberText(2 ** this.exponent);
    this.scale.replaceChildren('\u2212' + end, element('span', { class: 'ramp' }), end);
    for (const pane of this.panes)
      pane.draw();
    this.point(-1, -1, false);
  }

  key(event) {
    const [w, high] = this.size();
    const act = { ArrowLeft: () => this.move(w / 4, 0), ArrowRight: () => this.move(-w / 4, 0), ArrowUp: () => this.move(0, high / 4),
      ArrowDown: () => this.move(0, -high / 4), '+': () => this.zoom(2, w / 2, high / 2), '-': () => this.zoom(0.5, w / 2, high / 2),
      Enter: () => this.point(w / 2, high / 2, true) }[event.key];
    if (!act)
      return;
    event.preventDefault();
    event.stopPropagation();
    act();
  }

  // The cell at a position in the pictures, or null.
  cellAt(x, y) {
    const cell = 2 ** this.level, col = Math.floor((x - this.x) / this.sx / cell), row = Math.floor((y - this.y) / this.sy / cell);
    const inside = col >= 0 && row >= 0 && col * cell < this.stack.cols && row * cell < this.stack.rows;
    return inside && x >= 0 && y >= 0 ? { level: this.level, slice: this.slice, row, col } : null;
  }

  // The pointer is at a cell: frames it. pick: reads its value, too.
  point(x, y, pick) {
    let at = this.cellAt(x, y);
    if (pick && at)
      this.picked = at;
    if (!at && this.picked && this.picked.level === this.level && this.picked.slice === this.slice)
      at = this.picked;
    for (const pane of this.panes) {
      pane.mark.hidden = !at;
      if (!at)
        continue;
      const cell = 2 ** this.level;
      pane.mark.style.left = `${this.x + at.col * cell * this.sx}px`;
      pane.mark.style.top = `${this.y + at.row * cell * this.sy}px`;
      pane.mark.style.width = `${cell * this.sx}px`;
      pane.mark.style.height = `${cell * this.sy}px`;
    }
    if (pick && at)
      this.tell(at);
  }

  async tell(at) {
    const where = this.stack.text(at.slice, at.level, at.row, at.col), side = Math.min(2 ** at.level, SAMPLES);
    this.say(`${where} \u2026`);
    try {
      const values = await Promise.all(this.panes.map(async (pane) => {
        const name = pane.place.nameOf(pane.tensor, at.slice, at.level, Math.floor(at.row / TILE), Math.floor(at.col / TILE));
        const tile = await pane.place.values(name);
        return tile.cells[at.row % TILE * tile.width + at.col % TILE];
      }));
      if (this.picked !== at)
        return;
      const size = /^b?complex/.test(this.dtype) ? 'magnitude ' : '';
      const texts = values.map((v) => size + exactText(v, this.dtype));
      const of = at.level ? `, the largest in magnitude of ${at.level <= Math.log2(SAMPLES) ? 'these' : `${side * side} of these`}` : '';
      this.line.replaceChildren(element('code', null, where), ' = ', ...texts.flatMap((text, i) => [i ? ' | ' : '', element('b', null, text)]), of,
        values.length > 1 && !at.level ? `; difference ${numberText(values[1] - values[0])}` : '');
    } catch (error) {
      this.say(`${where} ${error.message}: \u2018ckptfs check\u2019 tells why.`);
    }
  }
}
