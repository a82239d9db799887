// The parts of the page and how they interact.

const RUN_ROWS = 500; // rows of a run's table

function verdictList(list) {
  const marks = { yes: '\u2713', no: '\u2717', unchecked: '?', absent: '\u2013' };
  return list.map((v) => element('li', { class: 'serves-' + v.serves },
    element('span', { class: 'mark', 'aria-label': v.serves }, marks[v.serves] || '?'), element('b', null, v.face + '/'), ' ',
    element('bdi', null, visible(v.text))));
}

// What is not read may be NaN, too.
function valuesCard({ values, unreadable, tensors }) {
  const bad = values.nan + values.inf, found = `${digits(values.nan)} NaN, ${digits(values.inf)} Inf`;
  if (unreadable)
    return [bad ? 'not finite' : 'not known', `${digits(unreadable)} of ${counted(tensors, 'tensor')} could not be read` +
      (unreadable < tensors ? `; ${found} in the others` : ''), 'bad'];
  return values.elements ? [bad ? 'not finite' : 'finite', found, bad ? 'bad' : 'good'] : ['\u2013', 'nothing that is a number'];
}

function showHead(head, table) {
  const c = head.checkpoint, run = head.run;
  const path = run ? run.path : c.path;
  document.getElementById('title').replaceChildren(element('bdi', null, clipped(path, 400)));
  const subtitle = [run ? `run of ${counted(run.checkpoints.length, 'checkpoint')}` : null,
    c ? `${c.format}${c.family ? ', ' + visible(c.family) : ''}` : null, c ? `saved ${timeText(c.mtime)}` : null,
    `described by ${head.program}${head.made ? ', ' + timeText(head.made) : ''}`];
  document.getElementById('subtitle').textContent = subtitle.filter(Boolean).join(' \u00b7 ');
  if (LIVE && head.in_run)
    document.getElementById('subtitle').append(' \u00b7 ', element('a', { href: '../../../.ckptfs/view/index.html' }, 'all checkpoints of the run'));
  if (run)
    showRun(run, c);
  if (!c)
    return;
  const sums = new Map();
  for (let i = 0; i < table.stored + table.made; i++)
    if (c.has_model ? table.inModel(i) : i < table.stored)
      sums.set(table.dtypeName(i), (sums.get(table.dtypeName(i)) || 0) + table.elements(i));
  const dtypes = [...sums].sort((a, b) => b[1] - a[1]);
  const cards = [
    ['parameters', c.has_model ? countText(c.parameters) : '\u2013', c.has_model ? counted(c.model_tensors, 'tensor') + ' of the model' : 'no model'],
    ['tensors', digits(c.tensors), `${sizeText(c.tensor_bytes)}, ${counted(c.objects, 'object')}`],
    [c.has_model ? 'dtypes of the model' : 'dtypes', dtypes.length ? dtypes[0][0] : '\u2013', dtypes.length < 2 ? 'all elements'
      : dtypes.slice(0, 4).map(([name, n]) => `${name} ${countText(n)}`).join(', ') + (dtypes.length > 4 ? ', \u2026' : '')],
    ['files', digits(c.files), `${sizeText(c.stored_bytes)}, ${counted(c.chunks, 'chunk')}`],
    ['ranks', c.ranks ? digits(c.ranks) : '\u2013', c.ranks ? 'that wrote data files' : 'file names do not say'],
    ['complete', c.incomplete || c.missing ? 'no' : 'yes', c.incomplete ? `${digits(c.incomplete)} cannot be opened`
      : c.missing ? 'not everything is there: ' + visible(c.missing) : 'everything can be opened', c.incomplete || c.missing ? 'bad' : 'good'],
    c.values ? ['values', ...valuesCard(c)] : null,
  ].filter(Boolean);
  document.getElementById('facts').replaceChildren(...cards.map(([name, big, small, how]) =>
    element('div', { class: 'card ' + (how || '') }, element('dt', null, name), element('dd', null, big), element('dd', { class: 'quiet' }, small))));
  document.getElementById('verdicts').replaceChildren(...verdictList(c.verdicts));
}

// undefined if there is no finite element, or if they are complex.
function maxAbs(values) {
  return values.max === undefined ? undefined : Math.max(Math.abs(values.min), Math.abs(values.max));
}

// In a mount, a checkpoint has a page of its own.
function nameInRun(x) {
  const name = element('bdi', null, clipped(x.name));
  if (!LIVE || !x.complete || !hasAddress(x.name))
    return name;
  return element('a', { href: `../../${encodeURIComponent(x.name)}/.ckptfs/view/index.html` }, name);
}

function showRun(run, shown) {
  const box = document.getElementById('run'), all = run.checkpoints, last = all.slice(-RUN_ROWS);
  const withValues = all.some((x) => x.values), unreadable = all.some((x) => x.unreadable);
  const opened = all.some((x) => x.tensors !== undefined); // the page in a mount opens none
  const cell = (text, how) => element('td', { class: how || null }, text);
  const count = (n, known) => cell(known ? digits(n) : '\u2013', 'n' + (n ? ' bad' : ''));
  const ofValues = withValues ? [['norm', (v) => cell(numberText(v.norm), 'n')], ['max abs', (v) => cell(numberText(maxAbs(v)), 'n')],
    ['NaN', (v) => count(v.nan, v.elements)], ['Inf', (v) => count(v.inf, v.elements)],
    ...(unreadable ? [['unreadable', (v, x) => count(x.unreadable, true)]] : [])] : [];
  const columns = ['checkpoint', 'saved', 'complete', ...(opened ? ['parameters', 'tensors', 'bytes'] : []), ...ofValues.map(([name]) => name)];
  const rows = last.map((x) => element('tr', { class: x.latest ? 'latest' : null },
    element('td', null, nameInRun(x), x.latest ? element('span', { class: 'flag calm' }, 'latest') : null),
    cell(timeText(x.mtime)),
    x.fault ? element('td', { class: 'bad' }, x.complete ? 'yes, but ' : 'no: ', element('bdi', null, visible(x.fault)))
      : cell(!x.complete ? 'no' : x.incomplete ? `${digits(x.incomplete)} cannot be opened` : 'yes', x.complete && !x.incomplete ? 'good' : 'bad'),
    ...(!opened ? [] : x.tensors === undefined ? [cell(''), cell(''), cell('')]
      : [cell(countText(x.parameters), 'n'), cell(digits(x.tensors), 'n'), cell(sizeText(x.tensor_bytes), 'n')]),
    ...ofValues.map(([, of]) => x.values ? of(x.values, x) : cell(''))));
  box.hidden = false;
  const charts = withValues ? [['norm', (v) => v.norm], ['std', (v) => v.std], ['max abs', maxAbs]].map(([what, of]) => lineChart(`${what} of the model`,
    all.map((x) => x.values ? of(x.values) ?? NaN : NaN), -1, [all[0].name, all[all.length - 1].name])).filter(Boolean) : [];
  box.replaceChildren(element('h2', null, 'Checkpoints'),
    element('div', { class: 'scroll' }, element('table', null, element('thead', null, element('tr', null,
      ...columns.map((c, i) => element('th', { class: i > 2 ? 'n' : null }, c)))), element('tbody', null, ...rows))),
    all.length > last.length ? element('p', { class: 'quiet' }, `and ${digits(all.length - last.length)} before these`) : '',
    element('div', { class: 'charts' }, ...charts),
    shown ? element('h2', null, 'Latest: ', element('bdi', null, clipped(shown.path, 300)))
      : all.some((x) => x.complete) ? '' : element('p', { class: 'notice' }, 'None is complete.'));
}

// ---- the search ----

function globOf(word) {
  return new RegExp('^' + word.split('*').map((part) => part.replace(/[.+?^${}()|[\]\\]/g, '\\$&')).join('.*') + '$', 'is');
}

// is:nan and similar words. Without --stat nothing is known about values.
function stateOf(state, table) {
  if (state === 'incomplete')
    return (i) => table.fault[i] > 0;
  if (diff)
    return diff.state(state);
  if (!values)
    return () => false;
  switch (state) {
    case 'nan': return (i) => values.nan[i] > 0;
    case 'inf': return (i) => values.inf[i] > 0;
    case 'zero': return (i) => values.known[i] > 0 && table.elements(i) > 0 && values.zero[i] === table.elements(i);
  }
  return () => false;
}

// The condition that a word sets for a row.
function condition(word, table) {
  const [, key, value] = /^(dtype|role|rank|is):(.+)$/.exec(word) || [];
  switch (key) {
    case 'dtype': return (i) => table.dtypeName(i).includes(value);
    case 'role': return (i) => ROLES[table.role[i]].startsWith(value);
    case 'rank': return (i) => chunks && i < table.stored && chunks.ranksOf(i).some(([rank]) => rank === +value);
    case 'is':
      return stateOf(value, table);
  }
  if (word.includes('*')) {
    const glob = globOf(word);
    return (i) => glob.test(table.names[i]);
  }
  return null;
}

function searchFor(text, table, lower) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean), plain = [], conditions = [];
  for (const word of words) {
    const c = condition(word, table);
    if (c)
      conditions.push(c);
    else
      plain.push(word);
  }
  const found = [];
  for (let i = 0; i < table.n; i++)
    if (plain.every((w) => lower[i].includes(w)) && conditions.every((c) => c(i)))
      found.push(i);
  return { found, plain };
}

// ---- printing ----

// A browser would print only the visible rows of the list.
function printTree(list) {
  const rows = [], most = 1500, tree = list.tree;
  const walk = (node, depth) => {
    for (const item of tree.list(node)) {
      if (rows.length >= most)
        return;
      const row = tree.rowOf(item), name = element('td', null, element('bdi', null, clipped(tree.labelOf(item))),
        item instanceof Group ? ' \u00d7' + item.members.length : '');
      name.style.paddingInlineStart = depth + 'em';
      rows.push(element('tr', null, name,
        element('td', null, row >= 0 && tree.table.role[row] !== ROLE_OBJECT ? tree.table.dtypeName(row) + '  ' + shapeText(tree.table.shapeOf(row)) : ''),
        element('td', { class: 'n' }, list.figure(item)[0])));
      if (tree.isInner(item))
        walk(item instanceof Group ? item.members[item.current] : item, depth + 1);
    }
  };
  walk(tree.root, 0);
  document.getElementById('printed').replaceChildren(element('table', null, element('tbody', null, ...rows)),
    rows.length >= most ? element('p', null, `The first ${digits(most)} rows.`) : '');
}

// ---- together ----

function colourings(map, names) {
  const titles = { role: 'model / optimizer', nan: 'NaN' };
  const buttons = names.map((name) => element('button', { type: 'button', role: 'radio', 'aria-checked': String(name === map.colouring),
    id: 'colour-' + name, onclick: () => use(name) }, titles[name] || name));
  const use = (name) => {
    map.colouring = name;
    buttons.forEach((b, i) => b.setAttribute('aria-checked', String(names[i] === name)));
    map.draw();
  };
  document.getElementById('colours').replaceChildren(...buttons);
  return () => use(names[(names.indexOf(map.colouring) + 1) % names.length]);
}

// The first view: large nodes are open, as far as there is room.
function openSome(tree) {
  const room = 26;
  let shown = tree.list(tree.root).length, level = tree.list(tree.root);
  while (level.length) {
    const next = [];
    for (const item of [...level].sort((a, b) => tree.bytesOf(b) - tree.bytesOf(a))) {
      if (!tree.isInner(item) || (level.length > 1 && shown + tree.below(item).length > room))
        continue;
      item.open = true;
      shown += tree.below(item).length;
      next.push(...tree.below(item));
    }
    level = next;
  }
}

// kinds: the classes of the parts, and what the map can be coloured by, the first one at first.
function start(head, table, kinds) {
  const tree = new Tree(table), at = (id) => document.getElementById(id);
  const search = at('search'), status = at('status');
  let list = null, map = null, current = null, lower = null;
  const detail = new kinds.Detail(at('detail'), tree, head, () => {
    list.fill();
    map.draw();
    const [item, chain] = current;
    const i = list.items.indexOf(item);
    if (i >= 0)
      list.select(i);
    else if (list.selected >= 0)
      list.select(list.selected); // the same item in another member
    else
      detail.show(item, chain);
  });
  const told = (item, chain, reveal) => {
    current = [item, chain];
    if (reveal) {
      leave();
      list.reveal(tree.rowOf(item));
      return;
    }
    detail.show(item, chain);
    map.show(item);
  };
  list = new kinds.List(at('tree'), tree, told);
  if (LIVE)
    detail.heat = new Heat(at('heat'), tree, head);
  map = new kinds.Treemap(at('mapbox'), tree, (cell) => {
    leave();
    list.reveal(cell.row);
  });

  const fill = () => {
    list.fill();
    status.textContent = list.found ? `${counted(list.found.length, 'match').replace(/matchs$/, 'matches')} of ${digits(table.n)}` : `${counted(table.stored, 'tensor')}`;
  };
  const run = () => {
    const text = search.value.trim();
    if (!text) {
      list.found = null;
    } else {
      lower ||= table.names.map((name) => name.toLowerCase());
      const { found, plain } = searchFor(text, table, lower);
      list.found = found;
      list.words = plain;
    }
    list.selected = -1;
    at('tree').scrollTop = 0;
    fill();
  };
  const leave = () => {
    if (!search.value && !list.found)
      return;
    search.value = '';
    run();
  };
  search.addEventListener('input', run);
  search.addEventListener('keydown', (event) => {
    if (event.key !== 'ArrowDown' && event.key !== 'Enter')
      return;
    event.preventDefault();
    at('tree').focus();
    list.select(0);
  });
  const order = () => {
    const item = list.items[list.selected];
    list.weighed = !list.weighed;
    at('order').textContent = list.weighed ? kinds.weighed : 'by name';
    fill();
    if (item !== undefined && !list.found)
      list.select(list.items.indexOf(item), true);
  };
  at('order').addEventListener('click', order);
  at('fold').addEventListener('click', () => list.foldAll());
  at('helpclose').addEventListener('click', () => at('help').close());
  map.colouring = kinds.colours[0];
  const next = colourings(map, kinds.colours);
  const turn = (by) => {
    const group = detail.chain && detail.chain[detail.chain.length - 1];
    if (!group || !group.members[group.current + by])
      return;
    tree.turn(group, group.current + by);
    detail.turned();
  };
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || at('help').open)
      return;
    if (event.key === 'Escape') {
      if (search.value)
        leave();
      else if (map.path.length)
        map.zoom(map.path.slice(0, -1));
      at('tree').focus();
      return;
    }
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName))
      return;
    const act = { '/': () => search.focus(), '?': () => at('help').showModal(), s: order, c: next, '[': () => turn(-1), ']': () => turn(1) }[event.key];
    if (!act)
      return;
    event.preventDefault();
    act();
  });
  window.addEventListener('beforeprint', () => printTree(list));
  openSome(tree);
  fill();
  if (list.items.length)
    list.select(0);
  return { tree, list, map };
}

async function main() {
  try {
    const bytes = await section('head');
    const head = JSON.parse(new TextDecoder().decode(bytes));
    const names = await section('names');
    if (!names) {
      showHead(head, null);
      document.querySelector('main').hidden = true;
      return;
    }
    const table = new Table(names, await section('rows'));
    if (head.diff) {
      await startDiff(head, table);
      return;
    }
    chunks = new Chunks(table, await section('paths'), await section('chunks'));
    const packed = await section('values');
    if (packed) {
      values = new Values(table, packed);
      values.addHists(await section('hists'));
    }
    const followed = await section('series');
    if (followed)
      series = new Series(table, followed);
    showHead(head, table);
    start(head, table, { Detail, List, Treemap, weighed: 'by size',
      colours: ['dtype', 'role', ...(chunks.hasRanks() ? ['rank'] : []), ...(values ? ['nan'] : [])] });
  } catch (error) {
    const problem = document.getElementById('problem');
    problem.textContent = 'This page cannot be shown: ' + (typeof DecompressionStream === 'undefined'
      ? 'it needs a browser that has DecompressionStream (2023 or later)' : error.message);
    problem.hidden = false;
    console.error(error);
  } finally {
    document.documentElement.dataset.ready = 'yes';
  }
}

main();
