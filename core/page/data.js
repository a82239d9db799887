'use strict';
// The data of the page: sections compressed by page.c, and the numbers in them (page_add_uint).

async function inflated(text) {
  const bytes = atob(text), packed = new Uint8Array(bytes.length);
  for (let i = 0; i < bytes.length; i++)
    packed[i] = bytes.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('deflate-raw'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// The page is in a mount; see heat.js, which other pages lack.
const LIVE = typeof Heat !== 'undefined';

// The bytes of a section, or null if this page does not have it.
async function section(id) {
  const element = document.getElementById('data-' + id);
  if (LIVE) {
    if (!sections)
      throw new Error('data.js, beside this file, cannot be read');
    return id in sections ? inflated(sections[id]) : null;
  }
  if (!element)
    return null;
  element.remove();
  return inflated(element.textContent);
}

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  // Numbers beyond 2^53 are rounded to the nearest double.
  uint() {
    const b = this.bytes;
    let byte = b[this.at++];
    if (byte < 0x80)
      return byte;
    let value = byte & 0x7f, scale = 0x80;
    do {
      byte = b[this.at++];
      value += (byte & 0x7f) * scale;
      scale *= 0x80;
    } while (byte >= 0x80);
    return value;
  }

  int() {
    const v = this.uint();
    return v % 2 ? -(v + 1) / 2 : v / 2;
  }

  take(n) {
    const part = this.bytes.subarray(this.at, this.at + n);
    this.at += n;
    return part;
  }

  uints(n, Type) {
    const list = new Type(n);
    for (let i = 0; i < n; i++)
      list[i] = this.uint();
    return list;
  }

  // As page_add_floats writes them; the array has room for `total`.
  floats(n, total) {
    const planes = this.take(4 * n), joined = new Uint8Array(4 * total);
    for (let k = 0; k < 4; k++)
      for (let i = 0; i < n; i++)
        joined[4 * i + k] = planes[k * n + i];
    return new Float32Array(joined.buffer);
  }

  string() {
    return decodeName(this.take(this.uint()));
  }

  // Names as name_column.c writes them.
  names(n) {
    const list = new Array(n);
    let bytes = new Uint8Array(256), plain = 0;
    for (let i = 0; i < n; i++) {
      const same = this.uint(), rest = this.uint(), end = same + rest;
      if (end > bytes.length) {
        const grown = new Uint8Array(2 * end);
        grown.set(bytes);
        bytes = grown;
      }
      // plain: the number of leading bytes of the name that are ASCII.
      plain = Math.min(plain, same);
      let ascii = plain === same;
      for (let k = 0; k < rest; k++) {
        const byte = this.bytes[this.at + k];
        bytes[same + k] = byte;
        ascii &&= byte < 0x80;
        plain += ascii;
      }
      const name = bytes.subarray(0, end);
      list[i] = ascii && end < 4096 ? String.fromCharCode.apply(null, name) : decodeName(name);
      this.at += rest;
    }
    return list;
  }
}

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

// Names are UTF-8, with lone surrogates as Python writes them (ED A0 to BF, one byte more).
function decodeName(bytes) {
  try {
    return utf8.decode(bytes);
  } catch {
    let text = '';
    for (let i = 0; i < bytes.length;) {
      const b = bytes[i];
      if (b === 0xed && bytes[i + 1] >= 0xa0 && bytes[i + 2] >= 0x80) {
        text += String.fromCharCode(0xd000 | (bytes[i + 1] & 0x3f) << 6 | bytes[i + 2] & 0x3f);
        i += 3;
        continue;
      }
      const n = b < 0x80 ? 1 : b >= 0xf0 ? 4 : b >= 0xe0 ? 3 : 2;
      try {
        text += utf8.decode(bytes.subarray(i, i + n));
        i += n;
      } catch {
        text += '\ufffd';
        i++;
      }
    }
    return text;
  }
}
