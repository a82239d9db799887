// The map: an area for each tensor, as large as its bytes, coloured by the selected property.

const COLOURS = 10; // --c0 ... of page.css

// The style sheet's value of a colour, cached until the theme switches between light and dark.
const cssColours = new Map();

function cssColour(name) {
  let colour = cssColours.get(name);
  if (!colour)
    cssColours.set(name, colour = getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return colour;
}

function colourOf(k) {
  return cssColour('--c' + k % COLOURS);
}

// There are many ranks: neighbours get clearly different colours.
function rankColour(rank) {
  if (rank < 0)
    return cssColour('--none');
  return `hsl(${((rank * 137.508 + 210) % 360).toFixed(0)} ${cssColour('--rank')})`;
}

// Rectangles for weights, in order of size, as square as they can be (Bruls, Huizing, van Wijk).
function squarify(weights, x, y, w, h, put) {
  const total = weights.reduce((a, b) => a + b, 0);
  if (!total || w <= 0 || h <= 0)
    return;
  const scale = w * h / total;
  const worst = (sum, low, high, side) => Math.max(side * side * high / (sum * sum), sum * sum / (side * side * low));
  for (let i = 0; i < weights.length;) {
    const side = Math.min(w, h);
    let sum = weights[i] * scale, low = sum, high = sum, k = i + 1;
    for (; k < weights.length; k++) {
      const next = weights[k] * scale;
      if (next <= 0 || worst(sum + next, Math.min(low, next), Math.max(high, next), side) > worst(sum, low, high, side))
        break;
      sum += next;
      low = Math.min(low, next);
      high = Math.max(high, next);
    }
    const thick = sum / side;
    let at = 0;
    for (; i < k; i++) {
      const long = weights[i] * scale / thick;
      if (w < h)
        put(i, x + at, y, long, thick);
      else
        put(i, x, y + at, thick, long);
      at += long;
    }
    if (w < h) {
      y += thick;
      h -= thick;
    } else {
      x += thick;
      w -= thick;
    }
    if (weights[k] <= 0)
      return;
  }
}

class Treemap {
  constructor(box, tree, told) {
    this.box = box;
    this.canvas = box.querySelector('canvas');
    this.tip = box.querySelector('#tip');
    this.tree = tree;
    this.told = told;
    this.path = []; // items zoomed into
    this.colouring = 'dtype';
    this.cells = [];
    this.selected = null;
    this.canvas.addEventListener('mousemove', (event) => this.hover(event));
    this.canvas.addEventListener('mouseleave', () => { this.tip.hidden = true; });
    this.canvas.addEventListener('click', (event) => this.click(event));
    new ResizeObserver(() => this.draw()).observe(box);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
      cssColours.clear();
      this.draw();
    });
  }

  // How a row is coloured: [colour, key, share] of each part.
  paint(row) {
    const t = this.tree.table;
    switch (this.colouring) {
      case 'role':
        return [[colourOf([0, 1, 4, 2, 3][t.role[row]]), ROLES[t.role[row]], 1]];
      case 'rank':
        return chunks.ranksOf(row).map(([rank, n]) => [rankColour(rank), rank < 0 ? 'unknown' : 'rank ' + rank, n / (t.elements(row) || 1)]);
      case 'nan':
        return [values.nan[row] ? [cssColour('--bad'), 'NaN', 1] : values.inf[row] ? [cssColour('--warn'), 'Inf', 1]
          : values.known[row] ? [cssColour('--good'), 'finite', 1] : [cssColour('--none'), 'unknown', 1]];
      default:
        return [[colourOf(t.dtype[row]), t.dtypeName(row), 1]];
    }
  }

  // The same for all rows that a listed row represents.
  paintAll(row, chain) {
    if (!chain.length || this.colouring === 'dtype' || this.colouring === 'role')
      return this.paint(row);
    const sums = new Map();
    let n = 0;
    for (const r of this.tree.rowsOf(row, chain)) {
      n++;
      for (const [colour, key, share] of this.paint(r)) {
        const sum = sums.get(key);
        if (sum)
          sum[2] += share;
        else
          sums.set(key, [colour, key, share]);
      }
    }
    const parts = [...sums.values()];
    // A single NaN in a hundred layers must be visible.
    if (this.colouring === 'nan') {
      const worst = ['NaN', 'Inf', 'unknown'].map((key) => parts.find((p) => p[1] === key)).find(Boolean) || parts[0];
      return [[worst[0], worst[1], 1]];
    }
    return parts.map((p) => [p[0], p[1], p[2] / n]).sort((x, y) => +x[1].slice(5) - +y[1].slice(5));
  }

  top() {
    return this.path.length ? this.path[this.path.length - 1] : this.tree.root;
  }

  draw() {
    const w = this.box.clientWidth, h = this.box.clientHeight;
    if (!w || !h)
      return;
    const ratio = Math.min(devicePixelRatio || 1, 3);
    this.canvas.width = Math.round(w * ratio);
    this.canvas.height = Math.round(h * ratio);
    this.g = this.canvas.getContext('2d');
    this.g.scale(ratio, ratio);
    this.cells = [];
    this.line = cssColour('--page');
    this.ink = cssColour('--mapink');
    this.place(this.top(), this.path.slice(0, -1).filter((x) => x instanceof Group), 0, 0, w, h, 0);
    this.outline();
    this.legend();
  }

  items(item) {
    const tree = this.tree;
    return tree.below(item).filter((x) => tree.bytesOf(x) > 0 && !(tree.rowOf(x) >= 0 && tree.table.role[tree.rowOf(x)] >= ROLE_MADE))
      .sort((a, b) => tree.bytesOf(b) - tree.bytesOf(a));
  }

  place(item, chain, x, y, w, h, depth) {
    const tree = this.tree, row = tree.rowOf(item);
    const inside = item instanceof Group ? [...chain, item] : chain;
    if (row >= 0) {
      this.leaf(item, row, inside, x, y, w, h);
      return;
    }
    if (depth && w * h < 60) {
      this.leaf(item, tree.firstRow(item), [], x, y, w, h); // too small for more
      return;
    }
    let head = 0;
    if (depth && w > 54 && h > 34) {
      head = 15;
      this.cells.push({ item, chain, x, y, w, h });
      this.g.fillStyle = cssColour('--maphead');
      this.g.fillRect(x + 0.5, y + 0.5, w - 1, h - 1);
      this.text(tree.labelOf(item) + (item instanceof Group ? ' \u00d7' + item.members.length : ''), x + 4, y + 11, w - 8, cssColour('--text'));
    }
    const gap = head ? 2 : 0;
    const items = this.items(item);
    squarify(items.map((i) => tree.bytesOf(i)), x + gap, y + head, w - 2 * gap, h - head - gap,
      (i, cx, cy, cw, ch) => this.place(items[i], inside, cx, cy, cw, ch, depth + 1));
  }

  leaf(item, row, chain, x, y, w, h) {
    const parts = this.paintAll(row, chain), g = this.g;
    const bytes = this.tree.table.bytes[row] * chain.reduce((n, group) => n * group.members.length, 1);
    const wide = w >= h;
    let at = 0;
    for (const [colour, , share] of parts) {
      g.fillStyle = colour;
      if (wide)
        g.fillRect(x + at * w, y, w * share, h);
      else
        g.fillRect(x, y + at * h, w, h * share);
      at += share;
    }
    if (w > 5 && h > 5) {
      g.strokeStyle = this.line;
      g.lineWidth = 1;
      g.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
    }
    if (w > 40 && h > 15) {
      this.text(this.tree.labelOf(item), x + 4, y + 12, w - 8, this.ink);
      if (h > 30)
        this.text(sizeText(bytes), x + 4, y + 25, w - 8, this.ink, 0.75);
    }
    this.cells.push({ item, chain, x, y, w, h, row });
  }

  text(name, x, y, room, colour, alpha) {
    const g = this.g;
    g.font = '11px ui-sans-serif, system-ui, sans-serif';
    let text = clipped(name, 60);
    if (g.measureText(text).width > room) {
      const fits = Math.floor(text.length * room / g.measureText(text).width) - 1;
      if (fits < 3)
        return;
      text = text.slice(0, fits) + '\u2026';
    }
    g.globalAlpha = alpha || 1;
    g.fillStyle = colour;
    g.fillText(text, x, y);
    g.globalAlpha = 1;
  }

  outline() {
    const cell = this.selected !== null && this.cells.find((c) => c.item === this.selected);
    if (!cell)
      return;
    this.g.strokeStyle = cssColour('--text');
    this.g.lineWidth = 2;
    this.g.strokeRect(cell.x + 1, cell.y + 1, cell.w - 2, cell.h - 2);
  }

  legend() {
    const sums = new Map();
    this.tree.eachRow(this.top(), (row) => {
      if (this.tree.table.role[row] >= ROLE_MADE)
        return;
      for (const [colour, key, share] of this.paint(row)) {
        const sum = sums.get(key);
        if (sum)
          sum.bytes += this.tree.table.bytes[row] * share;
        else
          sums.set(key, { colour, bytes: this.tree.table.bytes[row] * share });
      }
    });
    const all = [...sums].sort((a, b) => b[1].bytes - a[1].bytes);
    const items = all.slice(0, 16).map(([key, sum]) => {
      const swatch = element('span', { class: 'swatch' });
      swatch.style.background = sum.colour;
      return element('li', null, swatch, key, element('span', { class: 'quiet' }, sizeText(Math.round(sum.bytes))));
    });
    if (all.length > 16)
      items.push(element('li', { class: 'quiet' }, `and ${all.length - 16} more`));
    document.getElementById('legend').replaceChildren(...items);
    const crumbs = [element('button', { type: 'button', onclick: () => this.zoom([]) }, 'all')];
    this.path.forEach((item, i) => crumbs.push('\u203a ',
      element('button', { type: 'button', onclick: () => this.zoom(this.path.slice(0, i + 1)) }, clipped(this.tree.labelOf(item), 40))));
    document.getElementById('crumbs').replaceChildren(...(this.path.length ? crumbs : []));
  }

  zoom(path) {
    this.path = path;
    this.draw();
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    for (let i = this.cells.length - 1; i >= 0; i--) {
      const c = this.cells[i];
      if (x >= c.x && x < c.x + c.w && y >= c.y && y < c.y + c.h)
        return c;
    }
    return null;
  }

  hover(event) {
    const cell = this.at(event);
    this.tip.hidden = !cell;
    this.canvas.style.cursor = cell ? 'pointer' : '';
    if (!cell)
      return;
    const tree = this.tree, row = tree.rowOf(cell.item);
    const name = row >= 0 ? tree.table.names[row] : tree.labelOf(cell.item);
    const many = tree.countOf(cell.item);
    this.tip.replaceChildren(element('bdi', null, clipped(name, 120)), element('br'),
      row >= 0 ? `${tree.table.dtypeName(row)}  ${shapeText(tree.table.shapeOf(row))}, ` : counted(many, 'tensor') + ', ',
      sizeText(tree.bytesOf(cell.item)));
    const box = this.box.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    this.tip.style.left = Math.max(0, Math.min(x + 12, box.width - this.tip.offsetWidth - 4)) + 'px';
    this.tip.style.top = (y + 16 + this.tip.offsetHeight > box.height ? y - this.tip.offsetHeight - 8 : y + 16) + 'px';
  }

  click(event) {
    const cell = this.at(event);
    if (!cell)
      return;
    if (cell.row === undefined) {
      const path = this.find(cell.item);
      if (path)
        this.zoom(path);
      return;
    }
    this.told(cell);
  }

  // The path of items from the one shown to this one.
  find(item) {
    const walk = (node, path) => {
      for (const child of this.items(node)) {
        if (child === item)
          return [...path, child];
        if (this.tree.isInner(child)) {
          const deeper = walk(child, [...path, child]);
          if (deeper)
            return deeper;
        }
      }
      return null;
    };
    return walk(this.top(), this.path);
  }

  show(item) {
    this.selected = item;
    this.draw();
  }
}
