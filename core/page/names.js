// The table of tensors (written by table.c), and the tree of their names.

const ROLES = ['model', 'optimizer', 'other', 'made', 'object'];
const ROLE_MADE = 3, ROLE_OBJECT = 4;
const NUMBER = /^(0|[1-9][0-9]{0,8})$/;
const MAX_DEPTH = 48;

class Table {
  constructor(names, rows) {
    const r = new Reader(rows);
    this.stored = r.uint();
    this.made = r.uint();
    this.objects = r.uint();
    this.n = this.stored + this.made + this.objects;
    this.dtypes = Array.from({ length: r.uint() }, () => {
      const [name, size] = r.string().split(':');
      return { name, size: +size };
    });
    this.shapes = Array.from({ length: r.uint() }, () => {
      const shape = r.uints(r.uint(), Array), logical = r.uints(r.uint(), Array);
      return { shape, logical, elements: shape.reduce((a, b) => a * b, 1) };
    });
    this.faults = Array.from({ length: r.uint() }, () => r.string());
    this.role = r.uints(this.n, Uint8Array);
    this.dtype = r.uints(this.n, Uint16Array);
    this.shape = r.uints(this.n, Uint32Array);
    this.fault = r.uints(this.n, Uint32Array);
    this.readModelNames(r);
    this.names = new Reader(names).names(this.n);
    this.bytes = new Float64Array(this.n);
    for (let i = 0; i < this.n; i++)
      if (this.role[i] !== ROLE_OBJECT)
        this.bytes[i] = this.shapes[this.shape[i]].elements * this.dtypes[this.dtype[i]].size;
  }

  readModelNames(r) {
    this.modelName = new Map(); // only if it is not the stored name without the prefix
    this.notModel = new Uint8Array(this.n);
    const at = [];
    // Names follow their marks, so they are read one by one.
    const reader = new Reader(r.bytes);
    reader.at = r.at;
    let before = new Uint8Array(0);
    for (let i = 0; i < this.stored; i++) {
      const kind = reader.uint();
      this.notModel[i] = kind === 2 ? 1 : 0;
      if (kind !== 1)
        continue;
      const same = reader.uint(), rest = reader.take(reader.uint());
      const name = new Uint8Array(same + rest.length);
      name.set(before.subarray(0, same));
      name.set(rest, same);
      before = name;
      at.push([i, name]);
    }
    for (const [i, name] of at)
      this.modelName.set(i, decodeName(name));
  }

  // Whether the model has the tensor; `stored` tensors may be only material for it.
  inModel(i) {
    return i < this.stored ? !this.notModel[i] : this.role[i] === ROLE_MADE;
  }

  faultOf(i) {
    const f = this.fault[i];
    return f === 0 ? null : f === 1 ? "incomplete; 'ckptfs check' says why" : this.faults[f - 2];
  }

  dtypeName(i) {
    return this.role[i] === ROLE_OBJECT ? 'object' : this.dtypes[this.dtype[i]].name;
  }

  shapeOf(i) {
    return this.shapes[this.shape[i]].shape;
  }

  elements(i) {
    return this.role[i] === ROLE_OBJECT ? 0 : this.shapes[this.shape[i]].elements;
  }
}

// An inner node: children are nodes, or numbers of rows. Rows below it are [start, start + count) where
// `whole`, which hostile names can prevent.
class Branch {
  constructor(label, depth, start) {
    this.label = label;
    this.depth = depth;
    this.start = start;
    this.count = 0;
    this.bytes = 0;
    this.whole = true;
    this.kind = 0;
    this.children = [];
    this.inner = null; // by label
    this.open = false;
    this.listed = null; // children, with equal ones folded
  }
}

// Siblings that differ only in a number. The rows below are those of members[current].
class Group {
  constructor(members, numbers, ofLeaves) {
    this.members = members;
    this.numbers = numbers;
    this.ofLeaves = ofLeaves;
    this.label = '{' + rangesText(numbers) + '}';
    this.current = 0;
    this.open = false;
    this.bytes = 0;
    this.count = 0;
  }
}

class Tree {
  constructor(table) {
    this.table = table;
    this.root = new Branch('', 0, 0);
    this.labelAt = new Uint32Array(table.n); // by row: where its last part begins
    this.addRows(this.root, 0, table.stored);
    this.addExtra('(model tensors that the recipe makes)', table.stored, table.made);
    this.addExtra('(objects, not tensors)', table.stored + table.made, table.objects);
    this.seed = Math.random() * 0x100000000 | 0;
    this.sum(this.root);
  }

  addExtra(label, start, n) {
    if (!n)
      return;
    const node = new Branch(label, 1, start);
    this.root.children.push(node);
    this.addRows(node, start, n);
  }

  addRows(top, start, n) {
    const names = this.table.names;
    const path = [top], ends = [0]; // the previous name's branches, and the end of each one's part
    let before = '';
    for (let i = start; i < start + n; i++) {
      const name = names[i];
      let same = 0;
      while (same < name.length && name.charCodeAt(same) === before.charCodeAt(same))
        same++;
      while (ends[path.length - 1] > same)
        path.pop();
      let node = path[path.length - 1], at = ends[path.length - 1];
      while (top.depth + path.length <= MAX_DEPTH) {
        const dot = name.indexOf('.', at);
        if (dot < 0)
          break;
        const label = name.slice(at, dot);
        let next = node.inner?.get(label);
        if (!next) {
          next = new Branch(label, node.depth + 1, i);
          (node.inner ||= new Map()).set(label, next);
          node.children.push(next);
        }
        node = next;
        at = dot + 1;
        ends[path.length] = at;
        path.push(node);
      }
      this.labelAt[i] = at;
      node.children.push(i);
      before = name;
    }
  }

  // An only child is joined with its parent: q_proj.weight. Numbers are not joined, because they
  // are folded.
  join(child) {
    const only = typeof child !== 'number' && child.children.length === 1 ? child.children[0] : null;
    if (only === null || child.depth === 1 && child.label[0] === '(' || NUMBER.test(child.label))
      return child;
    if (typeof only === 'number') {
      this.labelAt[only] -= child.label.length + 1;
    } else {
      if (NUMBER.test(only.label))
        return child;
      only.label = child.label + '.' + only.label;
    }
    return only;
  }

  // Computes, from the bottom up, counts, bytes, and a hash that equal branches share, with a seed
  // that nobody knows.
  sum(node) {
    const t = this.table, names = t.names, labelAt = this.labelAt;
    for (const child of node.children)
      if (typeof child !== 'number')
        this.sum(child);
    const children = node.children = node.children.map((child) => this.join(child));
    let next = node.start, a = this.seed, b = ~this.seed;
    const mix = (v) => {
      a = Math.imul(a ^ v, 0x9e3779b1);
      a ^= a >>> 15;
      b = Math.imul(b + v | 0, 0x85ebca77);
      b ^= b >>> 13;
    };
    const mixText = (text, from) => {
      for (let i = from; i < text.length; i++)
        mix(text.charCodeAt(i));
      mix(-1);
    };
    for (const child of children) {
      if (typeof child === 'number') {
        node.count++;
        node.bytes += t.role[child] === ROLE_MADE ? 0 : t.bytes[child];
        node.whole &&= child === next;
        next = child + 1;
        mixText(names[child], labelAt[child]);
        mix(t.dtype[child]);
        mix(t.shape[child]);
        mix(t.role[child]);
      } else {
        node.count += child.count;
        node.bytes += child.bytes;
        node.whole &&= child.whole && child.start === next;
        next = child.start + child.count;
        mixText(child.label, 0);
        mix(child.kind % 0x100000000 | 0);
        mix(child.kind / 0x100000000 | 0);
      }
    }
    node.kind = (a >>> 0) * 0x200000 + (b >>> 11);
  }

  labelOf(item) {
    return typeof item === 'number' ? this.table.names[item].slice(this.labelAt[item]) : item.label;
  }

  bytesOf(item) {
    return typeof item === 'number' ? this.table.bytes[item] : item.bytes;
  }

  countOf(item) {
    return typeof item === 'number' ? 1 : item.count;
  }

  // Children as they are listed: equal siblings whose names are numbers form one group.
  list(node) {
    if (node.listed)
      return node.listed;
    const t = this.table, groups = new Map(), all = [];
    for (const child of node.children) {
      const label = this.labelOf(child);
      const leaf = typeof child === 'number';
      if (!NUMBER.test(label) || (!leaf && !child.whole)) {
        all.push(child);
        continue;
      }
      const key = leaf ? `${t.dtype[child]},${t.shape[child]},${t.role[child]}` : child.kind;
      const group = groups.get(key);
      if (group) {
        group.push(child);
      } else {
        const first = [child];
        groups.set(key, first);
        all.push(first);
      }
    }
    node.listed = all.map((x) => {
      if (!Array.isArray(x))
        return x;
      if (x.length === 1)
        return x[0];
      const group = new Group(x, x.map((m) => +this.labelOf(m)), typeof x[0] === 'number');
      group.bytes = x.reduce((sum, m) => sum + this.bytesOf(m), 0);
      group.count = x.reduce((sum, m) => sum + this.countOf(m), 0);
      return group;
    });
    return node.listed;
  }

  isInner(item) {
    return typeof item !== 'number' && !(item instanceof Group && item.ofLeaves);
  }

  below(item) {
    return this.list(item instanceof Group ? item.members[item.current] : item);
  }

  // The row that represents a listed item; a group of leaves has one, too.
  rowOf(item) {
    if (typeof item === 'number')
      return item;
    return item instanceof Group && item.ofLeaves ? item.members[item.current] : -1;
  }

  // Shows member k: nodes that are open in one member stay open in the other.
  turn(group, k) {
    const from = group.members[group.current], to = group.members[k];
    group.current = k;
    if (group.ofLeaves)
      return;
    const copy = (a, b) => {
      b.open = a.open;
      if (a instanceof Group) {
        b.current = a.current;
        if (a.ofLeaves)
          return;
        copy(a.members[a.current], b.members[b.current]);
        return;
      }
      if (!a.listed)
        return;
      const there = this.list(b);
      this.list(a).forEach((x, i) => typeof x !== 'number' && typeof there[i] !== 'number' && there[i] && copy(x, there[i]));
    };
    copy(from, to);
  }

  // Every row that a listed row represents; chain: the groups around it, outermost first.
  rowsOf(row, chain) {
    let rows = [row];
    for (const group of chain) {
      const base = this.startOf(group.members[group.current]);
      rows = rows.flatMap((r) => group.members.map((m) => r + this.startOf(m) - base));
    }
    return rows;
  }

  startOf(member) {
    return typeof member === 'number' ? member : member.start;
  }

  firstRow(item) {
    while (typeof item !== 'number')
      item = (item.members || item.children)[0];
    return item;
  }

  eachRow(item, each) {
    if (typeof item === 'number')
      each(item);
    else
      for (const child of item.members || item.children)
        this.eachRow(child, each);
  }
}
