// Text forms of names and numbers.

function element(tag, attributes, ...children) {
  const e = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {}))
    if (key.startsWith('on'))
      e.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false)
      e.setAttribute(key, value === true ? '' : value);
  e.append(...children.filter((c) => c !== null && c !== undefined));
  return e;
}

// Control characters, those that change the direction of text or have no width, lone surrogates.
const UNFIT = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]/;
const UNFIT_ALL = new RegExp(`([\\ud800-\\udbff][\\udc00-\\udfff])|${UNFIT.source}`, 'g');

// Surrogates without their other half: bytes of a name that are not UTF-8.
const UNPAIRED = /\p{Surrogate}/u;

// Whether the name of a file can be a part of an address: of other bytes JSON has only that they were there, U+FFFD.
function hasAddress(name) {
  return !UNPAIRED.test(name) && !name.includes('\ufffd');
}

function escapeChar(c) {
  const code = c.charCodeAt(0);
  return code < 0x100 ? '\\x' + code.toString(16).padStart(2, '0') : '\\u' + code.toString(16).padStart(4, '0');
}

// The display form of a name: each character stands for itself or is escaped.
function visible(name) {
  if (name === '')
    return '(empty)';
  return UNFIT.test(name) ? name.replace(UNFIT_ALL, (c, pair) => pair || escapeChar(c)) : name;
}

// Clips text to fit a row; the title shows all of it.
function clipped(name, most = 200) {
  const text = visible(name.length > 4 * most ? name.slice(0, 4 * most) : name);
  return text.length > most || name.length > 4 * most ? text.slice(0, most - 1) + '\u2026' : text;
}

function bytesOf(name) {
  const bytes = [];
  for (const c of name) {
    const code = c.codePointAt(0);
    if (code >= 0xd800 && code <= 0xdfff)
      bytes.push(0xe0 | code >> 12, 0x80 | code >> 6 & 0x3f, 0x80 | code & 0x3f);
    else
      bytes.push(...new TextEncoder().encode(c));
  }
  return bytes;
}

// Quotes a word for a shell.
function shellWord(name) {
  if (/^[A-Za-z0-9_./:=@%+,-]+$/.test(name))
    return name;
  if (!UNFIT.test(name))
    return "'" + name.replaceAll("'", "'\\''") + "'";
  return "$'" + bytesOf(name).map((b) => b < 0x20 || b > 0x7e ? '\\x' + b.toString(16).padStart(2, '0')
    : b === 0x27 || b === 0x5c ? '\\' + String.fromCharCode(b) : String.fromCharCode(b)).join('') + "'";
}

// A Python string literal.
function pythonString(name) {
  return '"' + name.replace(/[\\"]/g, '\\$&').replace(UNFIT_ALL, (c, pair) => pair ||
    '\\u' + c.charCodeAt(0).toString(16).padStart(4, '0')) + '"';
}

function digits(n) {
  return n.toLocaleString('en-US');
}

function counted(n, one) {
  return digits(n) + ' ' + one + (n === 1 ? '' : 's');
}

// As text_size does for the program: of two texts that are equally near, the even one.
function sizeText(n) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];
  let k = 0;
  while (n >= 1024 && k < units.length - 1) {
    n /= 1024;
    k++;
  }
  const places = k && n < 100 ? 1 : 0, scaled = n * 10 ** places, down = Math.floor(scaled);
  const rounded = scaled - down === 0.5 ? down + down % 2 : Math.round(scaled);
  return (rounded / 10 ** places).toFixed(places) + ' ' + units[k];
}

function countText(n) {
  if (n < 1e6)
    return digits(n);
  const units = ['M', 'B', 'T', 'Q'];
  let k = -1;
  while (n >= 1000 && k < units.length - 1) {
    if (k < 0)
      n /= 1e6;
    else
      n /= 1000;
    k++;
  }
  return n.toPrecision(3) + ' ' + units[k];
}

function numberText(v) {
  if (v === null || v === undefined)
    return '\u2013';
  if (v === Infinity || v === -Infinity)
    return (v < 0 ? '< -' : '> ') + '3.4e38';
  if (v === 0)
    return '0';
  const size = Math.abs(v);
  return size >= 1e-4 && size < 1e6 ? String(+v.toPrecision(6)) : v.toExponential(4);
}

function timeText(seconds) {
  return seconds ? new Date(seconds * 1000).toISOString().slice(0, 16).replace('T', ' ') + ' UTC' : '';
}

function shapeText(shape) {
  return shape.length ? shape.join(' \u00d7 ') : 'scalar';
}

// Numbers as ranges: 0..2,5
function rangesText(numbers) {
  const parts = [];
  for (let i = 0; i < numbers.length;) {
    let k = i;
    while (k + 1 < numbers.length && numbers[k + 1] === numbers[k] + 1)
      k++;
    parts.push(k > i ? `${numbers[i]}..${numbers[k]}` : `${numbers[i]}`);
    i = k + 1;
  }
  return parts.length > 4 ? parts.slice(0, 3).join(',') + ',\u2026,' + parts[parts.length - 1] : parts.join(',');
}
