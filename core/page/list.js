// The list on the left: a tree of which only visible rows exist, or the results of a search.

const ROW_HEIGHT = 26;

class List {
  constructor(box, tree, told) {
    this.box = box;
    this.rows = box.firstElementChild;
    this.tree = tree;
    this.told = told; // called with the selection
    this.weighed = false; // sorted by weight, not by name
    this.found = null; // rows found by a search
    this.words = [];
    this.items = [];
    this.depths = [];
    this.selected = -1;
    box.addEventListener('scroll', () => this.draw());
    box.addEventListener('click', (event) => this.click(event));
    box.addEventListener('dblclick', (event) => this.click(event));
    box.addEventListener('keydown', (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(box);
  }

  ordered(children) {
    return this.weighed ? [...children].sort((a, b) => this.weight(b) - this.weight(a)) : children;
  }

  weight(item) {
    return this.tree.bytesOf(item);
  }

  // What is said of an item on the right, and the share of the row that a bar fills.
  figure(item) {
    const tree = this.tree, t = tree.table;
    return [t.role[tree.firstRow(item)] === ROLE_OBJECT ? '' : sizeText(tree.bytesOf(item)), tree.bytesOf(item) / (tree.root.bytes || 1)];
  }

  flags(item, row) {
    const t = this.tree.table, flags = [];
    if (row >= 0 && t.fault[row])
      flags.push(element('span', { class: 'flag', title: visible(t.faultOf(row)) }, 'incomplete'));
    if (values && values.anyNan(this.tree, item))
      flags.push(element('span', { class: 'flag' }, 'NaN'));
    return flags;
  }

  // Fills the list with the results of a search, or with the rows below open nodes.
  fill() {
    const items = [], depths = [], tree = this.tree;
    if (this.found) {
      this.items = this.found;
      this.depths = null;
    } else {
      const stack = [[this.ordered(tree.list(tree.root)), 0]];
      while (stack.length) {
        const top = stack[stack.length - 1];
        if (top[1] === top[0].length) {
          stack.pop();
          continue;
        }
        const item = top[0][top[1]++];
        items.push(item);
        depths.push(stack.length);
        if (item.open && tree.isInner(item))
          stack.push([this.ordered(tree.below(item)), 0]);
      }
      this.items = items;
      this.depths = depths;
    }
    this.rows.style.height = this.items.length * ROW_HEIGHT + 'px';
    this.draw();
  }

  depth(i) {
    return this.depths ? this.depths[i] : 1;
  }

  // Groups that row i is in, outermost first.
  chain(i) {
    const chain = [];
    if (!this.depths)
      return chain;
    for (let k = i, d = this.depths[i] + 1; k >= 0 && d > 1; k--)
      if (this.depths[k] < d) {
        d = this.depths[k];
        if (this.items[k] instanceof Group)
          chain.unshift(this.items[k]);
      }
    return chain;
  }

  draw() {
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW_HEIGHT) - 4);
    const last = Math.min(this.items.length, Math.ceil((this.box.scrollTop + this.box.clientHeight) / ROW_HEIGHT) + 4);
    const rows = [];
    for (let i = first; i < last; i++)
      rows.push(this.row(i));
    this.rows.replaceChildren(...rows);
    const on = this.selected >= first && this.selected < last;
    if (on)
      this.box.setAttribute('aria-activedescendant', 'row-' + this.selected);
    else
      this.box.removeAttribute('aria-activedescendant');
  }

  row(i) {
    const item = this.items[i], tree = this.tree, t = tree.table;
    const inner = tree.isInner(item), row = tree.rowOf(item), depth = this.depth(i);
    const e = element('div', {
      class: 'row' + (i === this.selected ? ' selected' : '') + (row >= 0 && t.fault[row] ? ' bad' : ''),
      id: 'row-' + i, role: 'treeitem', 'aria-level': depth, 'aria-selected': String(i === this.selected),
      'aria-setsize': this.items.length, 'aria-posinset': i + 1,
      'aria-expanded': inner ? String(!!item.open) : null,
    });
    e.style.top = i * ROW_HEIGHT + 'px';
    const name = element('span', { class: 'name' });
    name.style.paddingInlineStart = Math.min(depth - 1, 24) * 16 + 'px';
    const label = this.found ? t.names[row] : tree.labelOf(item);
    name.append(element('span', { class: 'twist', 'aria-hidden': 'true' }, inner ? (item.open ? '\u25be' : '\u25b8') : ''));
    const shown = element('bdi', { title: row >= 0 ? clipped(t.names[row], 2000) : null });
    this.mark(shown, clipped(label));
    name.append(shown);
    if (item instanceof Group)
      name.append(element('span', { class: 'times' }, '\u00d7' + item.members.length));
    name.append(...this.flags(item, row));
    const isObject = t.role[tree.firstRow(item)] === ROLE_OBJECT;
    const what = row < 0 ? counted(tree.countOf(item), isObject ? 'object' : 'tensor')
      : isObject ? 'object' : t.dtypeName(row) + '  ' + shapeText(t.shapeOf(row));
    e.append(name, element('span', { class: 'what' }, what));
    const [text, share] = this.figure(item), bar = element('span', { class: 'share', 'aria-hidden': 'true' });
    e.append(element('span', { class: 'size' }, text));
    bar.style.width = 72 * share + 'px';
    e.append(bar);
    return e;
  }

  // Marks the words of the search wherever they occur in the text.
  mark(to, text) {
    const lower = text.toLowerCase();
    const hits = this.found ? this.words.map((w) => [lower.indexOf(w), w.length]).filter(([at]) => at >= 0) : [];
    hits.sort((a, b) => a[0] - b[0]);
    let at = 0;
    for (const [start, length] of hits) {
      if (start < at || lower.length !== text.length)
        continue;
      to.append(text.slice(at, start), element('mark', null, text.slice(start, start + length)));
      at = start + length;
    }
    to.append(text.slice(at));
  }

  select(i, quiet) {
    if (!this.items.length)
      return;
    this.selected = Math.max(0, Math.min(i, this.items.length - 1));
    const top = this.selected * ROW_HEIGHT;
    if (top < this.box.scrollTop)
      this.box.scrollTop = top;
    else if (top + ROW_HEIGHT > this.box.scrollTop + this.box.clientHeight)
      this.box.scrollTop = top + ROW_HEIGHT - this.box.clientHeight;
    this.draw();
    if (!quiet)
      this.told(this.items[this.selected], this.chain(this.selected));
  }

  toggle(i, open) {
    const item = this.items[i];
    if (this.found || !this.tree.isInner(item) || item.open === open)
      return false;
    item.open = open === undefined ? !item.open : open;
    this.fill();
    return true;
  }

  foldAll() {
    const close = (node) => {
      node.open = false;
      if (node instanceof Group) {
        if (!node.ofLeaves)
          node.members.forEach(close);
        return;
      }
      if (node.listed)
        node.listed.forEach((x) => typeof x !== 'number' && close(x));
    };
    close(this.tree.root);
    this.selected = -1;
    this.fill();
    this.box.scrollTop = 0;
  }

  // Opens everything that contains a row, and selects the row.
  reveal(row) {
    const tree = this.tree;
    let node = tree.root;
    for (;;) {
      const all = tree.list(node);
      const inside = (m) => typeof m === 'number' ? m === row : m.start <= row && row < m.start + m.count;
      let next = null;
      for (const item of all) {
        if (item instanceof Group) {
          const k = item.members.findIndex(inside);
          if (k >= 0) {
            tree.turn(item, k);
            next = item;
          }
        } else if (typeof item === 'number' ? item === row : inside(item) && contains(item, row)) {
          next = item;
        }
        if (next !== null)
          break;
      }
      if (next === null)
        return false;
      if (tree.rowOf(next) >= 0) {
        this.fill();
        this.select(this.items.indexOf(next));
        return true;
      }
      next.open = true;
      node = next instanceof Group ? next.members[next.current] : next;
    }
  }

  click(event) {
    const e = event.target.closest('.row');
    if (!e)
      return;
    const i = +e.id.slice(4), twist = event.target.closest('.twist');
    if (event.type === 'dblclick' ? !twist : twist)
      this.toggle(i);
    if (event.type === 'click')
      this.select(i);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey)
      return;
    const page = Math.max(1, Math.floor(this.box.clientHeight / ROW_HEIGHT) - 1), at = this.selected;
    const item = this.items[at];
    switch (event.key) {
      case 'ArrowDown': this.select(at + 1); break;
      case 'ArrowUp': this.select(at - 1); break;
      case 'PageDown': this.select(at + page); break;
      case 'PageUp': this.select(at - page); break;
      case 'Home': this.select(0); break;
      case 'End': this.select(this.items.length - 1); break;
      case 'ArrowRight':
        if (item !== undefined && !this.toggle(at, true) && this.tree.isInner(item))
          this.select(at + 1);
        break;
      case 'ArrowLeft':
        if (item !== undefined && !this.toggle(at, false) && this.depths) {
          let k = at;
          while (k > 0 && this.depths[k] >= this.depths[at])
            k--;
          this.select(k);
        }
        break;
      case 'Enter':
      case ' ':
        if (item !== undefined && !this.toggle(at) && this.found)
          this.told(item, [], true);
        break;
      default: return;
    }
    event.preventDefault();
  }
}

// Whether a row is below a node, whose rows need not follow each other.
function contains(node, row) {
  if (node.whole)
    return true;
  return node.children.some((c) => typeof c === 'number' ? c === row : contains(c, row));
}
