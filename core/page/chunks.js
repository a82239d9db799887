// The positions of tensors' chunks (written by chunkrows.c), and a drawing of them.

const CUT_WHOLE = 1, CUT_GRID = 2, CUT_BOXES = 3;
const LISTED_CHUNKS = 40, MORE_CHUNKS = 1000;

// Takes ranks from the names of data files, as the library does.
function rankOf(path) {
  const name = path.slice(path.lastIndexOf('/') + 1);
  const m = /^__(\d{1,9})_\d{1,9}\.distcp$/.exec(name) || /^shard-(\d{1,9})-model-/.exec(name) ||
    /_rank(\d{1,9})_\.[^/]*$/.exec(name) || /_rank(\d{1,9})(?:_\d*)?\.(?:bytes|safetensors)$/.exec(name);
  return m ? +m[1] : -1;
}

class Chunks {
  constructor(table, paths, rows) {
    let r = new Reader(paths);
    this.paths = r.names(r.uint());
    this.ranks = this.paths.map(rankOf);
    r = new Reader(rows);
    this.cuts = Array.from({ length: r.uint() }, () => this.readCut(r));
    this.files = Array.from({ length: r.uint() }, (_, k) => {
      let file = 0;
      return k ? Array.from({ length: r.uint() }, () => file += r.int()) : [];
    });
    this.cut = r.uints(table.stored, Uint32Array);
    this.file = r.uints(table.stored, Uint32Array);
    this.table = table;
    this.shares = new Map();
  }

  readCut(r) {
    const kind = r.uint();
    if (kind !== CUT_GRID && kind !== CUT_BOXES)
      return { kind };
    const dims = r.uint();
    if (kind === CUT_GRID) {
      const sizes = new Array(dims);
      for (let d = dims; d-- > 0;)
        sizes[d] = r.uints(r.uint(), Array);
      return { kind, sizes };
    }
    return { kind, boxes: Array.from({ length: r.uint() }, () => ({ off: r.uints(dims, Array), len: r.uints(dims, Array) })) };
  }

  // [{ off, len, path, rank }]; null: the page does not have them.
  of(row) {
    const cut = row < this.cut.length ? this.cuts[this.cut[row]] : null;
    const files = row < this.cut.length && this.file[row] ? this.files[this.file[row]] : null;
    if (!cut || !cut.kind || !files)
      return null;
    const shape = this.table.shapeOf(row);
    let boxes;
    if (cut.kind === CUT_WHOLE) {
      boxes = [{ off: shape.map(() => 0), len: shape }];
    } else if (cut.kind === CUT_BOXES) {
      boxes = cut.boxes;
    } else {
      boxes = [{ off: [], len: [] }];
      for (const sizes of cut.sizes) {
        const next = [];
        for (const b of boxes) {
          let at = 0;
          for (const size of sizes) {
            next.push({ off: [...b.off, at], len: [...b.len, size] });
            at += size;
          }
        }
        boxes = next;
      }
    }
    return boxes.map((b, i) => ({ ...b, path: this.paths[files[i]], rank: this.ranks[files[i]], file: files[i] }));
  }

  // Elements by rank; tensors with equal chunks in the same files share the result.
  ranksOf(row) {
    if (row >= this.cut.length)
      return [[-1, this.table.elements(row)]];
    const shape = this.table.shape[row], key = `${this.cut[row]},${this.file[row]},${shape}`;
    let list = this.shares.get(key);
    if (list)
      return list;
    const sums = new Map(), all = this.of(row);
    for (const c of all || [])
      sums.set(c.rank, (sums.get(c.rank) || 0) + c.len.reduce((a, b) => a * b, 1));
    list = all ? [...sums] : [[-1, this.table.elements(row)]];
    this.shares.set(key, list);
    return list;
  }

  hasRanks() {
    return this.ranks.some((r) => r >= 0);
  }
}

function boxText(c) {
  return '[' + c.off.map((o, d) => `${o}:${o + c.len[d]}`).join(', ') + ']';
}

// The drawing of a tensor's chunks, to scale: the last two dimensions, at a fixed index of the
// others.
class ChunkMap {
  constructor(shape, all) {
    this.shape = shape;
    this.all = all;
    this.index = shape.slice(0, -2).map(() => 0);
    this.canvas = element('canvas', { class: 'chunkmap', role: 'img', 'aria-label': `${all.length} chunks; listed below` });
    this.note = element('p', { class: 'quiet' });
    this.say = element('p', { class: 'quiet', role: 'status' }, '\u00a0');
    this.element = element('div', null, ...this.sliders(), this.canvas, this.say, this.note);
    this.canvas.addEventListener('mousemove', (event) => this.hover(event));
    this.canvas.addEventListener('mouseleave', () => { this.say.textContent = '\u00a0'; });
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  sliders() {
    return this.index.map((_, d) => {
      const value = element('output', null, '0');
      const input = element('input', {
        type: 'range', min: 0, max: Math.max(0, this.shape[d] - 1), value: 0, 'aria-label': `index of dimension ${d}`,
        oninput: () => {
          this.index[d] = +input.value;
          value.textContent = input.value;
          this.draw();
        },
      });
      return element('label', { class: 'slice' }, `dimension ${d}`, input, value);
    });
  }

  draw() {
    const most = Math.min(this.element.clientWidth, 620), shape = this.shape;
    if (!most)
      return;
    const rows = shape.length > 1 ? shape[shape.length - 2] : 1, columns = shape.length ? shape[shape.length - 1] : 1;
    let w = most, h = shape.length > 1 ? most * rows / columns : 44;
    if (h > 300) {
      w = shape.length > 1 ? 300 * columns / rows : w;
      h = 300;
    }
    const exact = shape.length < 2 || (w >= 28 && h >= 28);
    w = Math.max(w, 28);
    h = Math.max(h, 28);
    const ratio = Math.min(devicePixelRatio || 1, 3), g = this.canvas.getContext('2d');
    this.canvas.width = Math.round(w * ratio);
    this.canvas.height = Math.round(h * ratio);
    this.canvas.style.width = w + 'px';
    this.canvas.style.height = h + 'px';
    g.scale(ratio, ratio);
    this.hatch(g, w, h);
    const lead = shape.length - 2;
    this.drawn = [];
    for (const c of this.all) {
      if (lead > 0 && !this.index.every((k, d) => c.off[d] <= k && k < c.off[d] + c.len[d]))
        continue;
      const dy = shape.length - 2, dx = shape.length - 1;
      const x = shape.length ? c.off[dx] / columns * w : 0, cw = shape.length ? c.len[dx] / columns * w : w;
      const y = shape.length > 1 ? c.off[dy] / rows * h : 0, ch = shape.length > 1 ? c.len[dy] / rows * h : h;
      this.drawn.push({ c, x, y, w: cw, h: ch });
      g.fillStyle = rankColour(c.rank < 0 ? c.file : c.rank);
      g.fillRect(x, y, cw, ch);
      if (cw > 3 && ch > 3) {
        g.strokeStyle = cssColour('--page');
        g.lineWidth = 1;
        g.strokeRect(x + 0.5, y + 0.5, cw - 1, ch - 1);
      }
      if (cw > 22 && ch > 14 && c.rank >= 0) {
        g.fillStyle = cssColour('--mapink');
        g.font = '11px ui-sans-serif, system-ui, sans-serif';
        g.textAlign = 'center';
        g.textBaseline = 'middle';
        g.fillText(String(c.rank), x + cw / 2, y + ch / 2);
      }
    }
    this.note.textContent = shape.length > 2 ? 'The last two dimensions at that index of the others' + (exact ? ', to scale.' : ', not to scale.')
      : exact ? '' : 'Too narrow to be to scale.';
    this.note.hidden = !this.note.textContent;
  }

  // Marks areas without a chunk.
  hatch(g, w, h) {
    g.fillStyle = cssColour('--page');
    g.fillRect(0, 0, w, h);
    g.strokeStyle = cssColour('--bad');
    g.lineWidth = 1;
    g.beginPath();
    for (let x = -h; x < w; x += 6) {
      g.moveTo(x, h);
      g.lineTo(x + h, 0);
    }
    g.stroke();
  }

  hover(event) {
    const box = this.canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const hit = this.drawn.findLast((d) => x >= d.x && x < d.x + d.w && y >= d.y && y < d.y + d.h);
    this.say.textContent = !hit ? 'no data'
      : `${boxText(hit.c)}  ${hit.c.rank >= 0 ? 'rank ' + hit.c.rank + ', ' : ''}${clipped(hit.c.path || 'in the index')}`;
  }
}

function chunkTable(all) {
  const body = element('tbody');
  const table = element('table', { class: 'chunks' },
    element('thead', null, element('tr', null, element('th', null, 'elements'), element('th', null, 'rank'), element('th', null, 'file'))), body);
  const add = (list) => body.append(...list.map((c) => element('tr', null, element('td', null, boxText(c)),
    element('td', null, c.rank < 0 ? '' : String(c.rank)), element('td', null, element('bdi', null, clipped(c.path || 'in the index'))))));
  add(all.slice(0, LISTED_CHUNKS));
  let shown = LISTED_CHUNKS;
  if (all.length <= shown)
    return [table];
  const more = element('button', { type: 'button', onclick: () => {
    add(all.slice(shown, shown += MORE_CHUNKS));
    more.textContent = label();
    more.hidden = shown >= all.length;
  } });
  const label = () => `show ${digits(Math.min(MORE_CHUNKS, all.length - shown))} more`;
  more.textContent = label();
  return [table, more];
}
