"""Checks of the page in a mount, .ckptfs/view, byte for byte and in Chromium: view.py CKPTFS SHOTS FUNCTION ARG..."""

import base64
import http.server
import json
import math
import os
import random
import struct
import subprocess
import sys
import threading
import zlib

from browser import Browser

CKPTFS, SHOTS = sys.argv[1:3]
TILE, SAMPLES = 256, 4
RANDOM = random.Random(os.environ.get("TEST_SEED"))


def f32(values):
    return struct.pack(f"<{len(values)}f", *values)


def write(file, values):
    """Writes a file of elements for make_dcp.py."""
    with open(file, "wb") as f:
        f.write(f32(values))


def picture(rows, cols, step):
    """A matrix that shows something: waves, and lines in known places."""
    down, along = [math.sin(r / 40 + step) for r in range(rows)], [0.05 * math.cos(c / 60) for c in range(cols)]
    sin, cos = ([f(i * i / 9000) for i in range(max(rows, cols))] for f in (math.sin, math.cos))
    values = []
    for r in range(rows):  # sin of a sum of squares, by sin(a + b)
        d, s, t = down[r], 0.02 * sin[r], 0.02 * cos[r]
        values += [d * a + s * y + t * x for a, x, y in zip(along, sin, cos)]
        values[-cols::300] = [0.2] * -(-cols // 300)
        if not r % 200:
            values[-cols:] = [0.2] * cols
    return values


def make(step):
    """Writes the files of elements for a step: view.py ... make N"""
    write("w.f32", picture(700, 900, int(step)))
    small(int(step))


def tiled():
    """The same, with a smaller matrix, because every tile will be compared."""
    write("k.f32", picture(300, 530, 1))
    small(1)


def small(step):
    write("v.f32", [math.sin(i / 50 + step) for i in range(3000)])
    write("x.f32", [float("nan") if i == 17 else i * 0.01 for i in range(4 * 6 * 10)])


# ---- pictures and values, by another decoder ----


def png(data):
    """Width, height, palette and pixels, with every checksum checked."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 8:at + 8 + size]
        assert struct.unpack_from(">I", data, at + 8 + size)[0] == zlib.crc32(kind + body), kind
        assert kind not in chunks
        chunks[kind] = body
        at += 12 + size
    assert list(chunks) == [b"IHDR", b"PLTE", b"IDAT", b"IEND"], list(chunks)
    w, h, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert rest == [8, 3, 0, 0, 0] and len(chunks[b"PLTE"]) == 768
    raw = zlib.decompress(chunks[b"IDAT"])
    assert len(raw) == h * (w + 1)
    rows = [raw[y * (w + 1):(y + 1) * (w + 1)] for y in range(h)]
    assert all(r[0] == 0 for r in rows)
    return w, h, chunks[b"PLTE"], [r[1:] for r in rows]


def script(data, name):
    """Width, height and cells of a tile's values."""
    head = f'ckptfsTile("{name}",'.encode()
    assert data.startswith(head) and data.endswith(b'");\n'), data[:80]
    w, h, text = data[len(head):-3].split(b",")
    bytes_ = base64.b64decode(text[1:-1], validate=True)
    cells = struct.unpack(f"<{len(bytes_) // 8}d", bytes_)
    assert len(cells) == int(w) * int(h)
    return int(w), int(h), cells


def expected(m, level, row, col):
    """What a tile of a matrix shows: the largest sample of each block."""
    side = 2 ** level
    step = side // min(side, SAMPLES)
    rows, cols = len(m), len(m[0])
    out = []
    for r in range(row * TILE, min((row + 1) * TILE, -(-rows // side))):
        out.append([])
        for c in range(col * TILE, min((col + 1) * TILE, -(-cols // side))):
            samples = [m[i][k] for i in range(r * side, min(rows, (r + 1) * side), step) for k in range(c * side, min(cols, (c + 1) * side), step)]
            out[-1].append(math.nan if any(math.isnan(v) for v in samples) else max(samples, key=abs))
    return out


def colour(v, exponent):
    if math.isnan(v):
        return 255
    x = v / 2.0 ** exponent
    return round(127 + 127 * max(-1.0, min(1.0, x)))  # ties to even, like lrint


def same(a, b):
    return math.isnan(a) and math.isnan(b) or abs(a) == abs(b)


def tiles(mount, tensor, rows, cols, file, slice_="0"):
    """Compares every tile of a matrix, at every level, with the elements in FILE."""
    rows, cols, s = int(rows), int(cols), int(slice_)
    with open(file, "rb") as f:
        f.seek(s * rows * cols * 4)
        flat = struct.unpack(f"<{rows * cols}f", f.read(rows * cols * 4))
    m = [flat[r * cols:(r + 1) * cols] for r in range(rows)]
    level, seen = 0, 0
    while True:
        side = 2 ** level
        high, wide = -(-(-(-rows // side)) // TILE), -(-(-(-cols // side)) // TILE)
        for r in range(high):
            for c in range(wide):
                name = f"t{tensor}.s{s}.l{level}.r{r}.c{c}"
                want = expected(m, level, r, c)
                path = os.path.join(mount, ".ckptfs/view", name + ".js")
                size = os.stat(path).st_size
                with open(path, "rb") as f:
                    data = f.read()
                assert len(data) == size, (name, len(data), size)
                w, h, cells = script(data, name + ".js")
                assert (w, h) == (len(want[0]), len(want)), (name, w, h)
                for i, v in enumerate(cells):
                    assert same(v, want[i // w][i % w]), (name, i, v, want[i // w][i % w])
                exponent = RANDOM.choice([-149, -3, 0, 128, -8])
                path = os.path.join(mount, ".ckptfs/view", f"{name}.e{exponent}.png")
                size = os.stat(path).st_size
                with open(path, "rb") as f:
                    data = f.read()
                assert len(data) == size, (name, len(data), size)
                w, h, _, pixels = png(data)
                assert (w, h) == (len(want[0]), len(want))
                for y in range(h):
                    for x in range(w):
                        assert pixels[y][x] == colour(cells[y * w + x], exponent), (name, x, y, pixels[y][x], cells[y * w + x], exponent)
                seen += 1
        for r, c in ((high, 0), (0, wide)):
            assert not os.path.exists(os.path.join(mount, ".ckptfs/view", f"t{tensor}.s{s}.l{level}.r{r}.c{c}.js"))
        if high == wide == 1:
            break
        level += 1
    assert not os.path.exists(os.path.join(mount, ".ckptfs/view", f"t{tensor}.s{s}.l{level + 1}.r0.c0.js"))
    print(seen, "tiles")


# ---- in a browser ----


class Mounted(Browser):
    """A browser in which a page must neither complain nor request anything outside the mount."""

    def __init__(self, mount):
        super().__init__(SHOTS)
        self.inside = "file://" + os.path.realpath(mount) + "/"

    def __exit__(self, *what):
        super().__exit__(*what)
        if what[0] is None:
            assert not self.complaints, self.complaints
            other = [r for r in self.requests if not os.path.normpath(r.replace("file://", "file:")).startswith(self.inside.replace("file://", "file:"))
                     and not r.startswith("about:")]
            assert self.requests and not other, other


def settled(page):
    page.wait("document.querySelectorAll('.heatbox').length && [...document.querySelectorAll('.heatbox')].every(b => b.dataset.busy === 'no' && b.querySelector('img'))")


def choose(page, name):
    page.key("Escape")
    page.key("/")
    page.type(name)
    page.key("ArrowDown")
    page.key("Escape")


def show(page, name):
    choose(page, name)
    page.click("#heatshow")
    page.wait("document.querySelector('#heat .heatbox') !== null")
    settled(page)


def loaded(browser, ending):
    return [r for r in browser.requests if r.endswith(ending)]


def options(mount, *words):
    """data.js must have these options."""
    with open(f"{mount}/.ckptfs/view/data.js", encoding="ascii") as f:
        text = f.read()
    packed = text[text.index('head:"') + 6:]
    head = json.loads(zlib.decompress(base64.b64decode(packed[:packed.index('"')]), -15))
    assert head["options"] == list(words), head["options"]


def page(mount, ckpt, name):
    url = "file://" + os.path.realpath(mount) + "/.ckptfs/view/index.html"
    for dark in (False, True):
        with Mounted(mount) as b:
            p = b.open(url, dark=dark, height=1300)
            assert p.value("document.querySelector('#problem').hidden"), p.value("document.querySelector('#problem').textContent")
            assert len(loaded(b, "data.js")) == 1 and not loaded(b, ".png") and len(loaded(b, ".js")) == 1, b.requests
            show(p, name)
            assert loaded(b, ".png"), b.requests
            p.value("document.getElementById('heat').scrollIntoView()")
            p.shot("view-dark" if dark else "view-light")
            # Zoom in to one element, whose value is then shown.
            for _ in range(12):
                p.click("#heat button[title='zoom in']")
            settled(p)
            x, y = p.value("(() => { const b = document.querySelector('.heatbox').getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()")
            p.click_at(x, y)
            p.wait("document.querySelector('#heatline b') !== null")
            where, value = p.value("[document.querySelector('#heatline code').textContent, document.querySelector('#heatline b').textContent]")
            element = json.loads(subprocess.run([CKPTFS, "head", "--json", ckpt, name, where], check=True, stdout=subprocess.PIPE).stdout)
            assert struct.pack("<f", float(value)) == struct.pack("<f", element), (where, value, element)
            p.shot("view-element-dark" if dark else "view-element")


def served(mount, name):
    """The same through a plain file server."""
    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=mount)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/"
    with Browser(SHOTS) as b:
        p = b.open(url + ".ckptfs/view/index.html")
        show(p, name)
        assert loaded(b, ".png")
        p.click(".heatbox")
        p.wait("document.querySelector('#heatline b') !== null")
        assert all(r.startswith((url, "about:")) or r == "/favicon.ico" for r in b.requests), b.requests
        assert not [c for c in b.complaints if "favicon" not in c and "404" not in c], b.complaints
    server.shutdown()


def kinds(mount, *names):
    """Tensors of every rank and dtype have a picture, and slices can be chosen; without values there is no button."""
    url = "file://" + os.path.realpath(mount) + "/.ckptfs/view/index.html"
    with Mounted(mount) as b:
        p = b.open(url)
        for name in names:
            name, shown = name.split("=")
            choose(p, name)
            assert (p.value("document.querySelector('#heatshow')?.offsetParent != null")) == (shown == "yes"), name
            if shown == "yes":
                p.click("#heatshow")
                p.wait("document.querySelector('#heat .heatbox') !== null")
                settled(p)
                p.value("document.querySelector('.heatbox').focus()")
                p.key("Enter")
                p.wait("document.querySelector('#heatline b') !== null")
        p.shot("view-kinds")


def slices(mount, ckpt, name):
    """A slice of a tensor with more dimensions, which contains a NaN; with keys alone."""
    url = "file://" + os.path.realpath(mount) + "/.ckptfs/view/index.html"
    with Mounted(mount) as b:
        p = b.open(url)
        show(p, name)
        assert "1 of 60 cells" in p.value("document.getElementById('heat').textContent")
        p.value("(() => { const s = document.getElementById('heatslice'); s.value = '2'; s.dispatchEvent(new Event('change')); })()")
        p.wait("document.getElementById('heatindex').textContent === 'of 4: [2]'")
        p.wait("[...document.querySelectorAll('.heatbox img')].every(i => i.src.includes('.s2.'))")
        settled(p)
        p.value("document.querySelector('.heatbox').focus()")
        p.key("Enter")
        p.wait("document.querySelector('#heatline b') !== null")
        where, value = p.value("[document.querySelector('#heatline code').textContent, document.querySelector('#heatline b').textContent]")
        assert where.startswith("[2, "), where
        element = json.loads(subprocess.run([CKPTFS, "head", "--json", ckpt, name, where], check=True, stdout=subprocess.PIPE).stdout)
        assert struct.pack("<f", float(value)) == struct.pack("<f", element), (where, value, element)
        p.shot("view-slices")


def races(mount, name, other):
    """Data that arrives late must not be drawn over what has been chosen meanwhile."""
    url = "file://" + os.path.realpath(mount) + "/.ckptfs/view/index.html"
    with Mounted(mount) as b:
        p = b.open(url)
        p.value("""{ const real = Heat.prototype.overview, values = Place.prototype.values;
            Heat.prototype.overview = function () { globalThis.heat = this; return real.call(this); };
            globalThis.gate = Promise.resolve(), globalThis.slow = '.none.';
            Place.prototype.values = async function (name) {
                const waits = name.includes(slow) && gate, tile = await values.call(this, name);
                await waits;
                return tile;
            };
            globalThis.close = () => { gate = new Promise((resolve) => { globalThis.open = resolve; }); }; }""")
        show(p, name)
        # Choose a slice, then another whose data arrives first.
        assert p.value("""(async () => {
            slow = '.s1.', close(), heat.slice = 1;
            const late = heat.overview();
            heat.slice = 2;
            const now = await heat.overview(), before = heat.graph.innerHTML;
            open();
            return [now, await late, heat.graph.innerHTML === before]; })()""") == [True, False, True]
        # Choose a slice before the first one has arrived: the chosen one must be shown.
        choose(p, other)
        choose(p, name)
        p.value("slow = '.s0.', close()")
        p.click("#heatshow")
        p.value("(() => { const s = document.getElementById('heatslice'); s.value = '3'; s.dispatchEvent(new Event('change')); open(); })()")
        p.wait("document.querySelector('#heat .heatbox') !== null")
        settled(p)
        assert p.value("[...document.querySelectorAll('.heatbox img')].every(i => i.src.includes('.s3.'))")
        # The same with another tensor.
        choose(p, other)
        choose(p, name)
        p.value("slow = '.s0.', close()")
        p.click("#heatshow")
        choose(p, other)
        p.value("(async () => { open(); await new Promise((resolve) => setTimeout(resolve, 100)); })()")
        assert p.value("document.querySelector('#heatshow') !== null && !document.querySelector('.heatbox') && !heat.panes.length")
        # A script that does not bring its data, after one that did.
        assert p.value("sections !== null && loadSections('t0.s0.l0.r0.c0.js').then(() => 'came', (e) => e.message)") == "brings no data"
        assert p.value("['a', 'a\ufffd', 'a\ud800'].map((name) => nameInRun({ name, complete: true }).tagName)") == ["A", "BDI", "BDI"]
        # An unknown type.
        p.value("heat.tree.table.dtypeName = () => 'bcomplex32'")
        show(p, name)
        p.value("document.querySelector('.heatbox').focus()")
        p.key("Enter")
        p.wait("document.querySelector('#heatline b') !== null")
        assert p.value("document.querySelector('#heatline b').textContent").startswith("magnitude ")


def beside(mount, first, second, name):
    """The same part of a tensor in two checkpoints of a run."""
    url = "file://" + os.path.realpath(mount) + "/.ckptfs/view/index.html"
    with Mounted(mount) as b:
        p = b.open(url)
        links = p.value("[...document.querySelectorAll('#run a')].map(a => a.textContent)")
        assert first in links and second in links, links
        p.shot("view-run")
        p.value(f"[...document.querySelectorAll('#run a')].find(a => a.textContent === {json.dumps(first)}).click()")
        p.wait("document.documentElement?.dataset.ready === 'yes' && document.getElementById('tree')?.querySelector('.row') !== null")
        assert p.value("document.title").endswith(f"/{first} - ckptfs report"), p.value("document.title")
        assert p.value("document.querySelector('#subtitle a').href") == url
        show(p, name)
        p.wait("document.getElementById('heatstep').dataset.ready === 'yes'")
        assert p.value("[...document.getElementById('heatstep').options].map(o => o.value)") == ["", second]
        p.value(f"(() => {{ const s = document.getElementById('heatstep'); s.value = {json.dumps(second)}; s.dispatchEvent(new Event('change')); }})()")
        p.wait("document.querySelectorAll('.heatbox').length === 2")
        settled(p)
        for _ in range(3):
            p.click("#heat button[title='zoom in']")
        settled(p)
        p.click(".heatbox")
        p.wait("document.querySelectorAll('#heatline b').length === 2")
        where, *values = p.value("[document.querySelector('#heatline code').textContent, ...[...document.querySelectorAll('#heatline b')].map(b => b.textContent)]")
        for step, value in zip((first, second), values):
            element = json.loads(subprocess.run([CKPTFS, "head", "--json", f"{os.environ['RUN']}/{step}", name, where], check=True, stdout=subprocess.PIPE).stdout)
            assert struct.pack("<f", float(value)) == struct.pack("<f", element), (where, value, element)
        p.value("document.getElementById('heat').scrollIntoView()")
        p.shot("view-beside")
        urls = {os.path.dirname(r) for r in loaded(b, ".png")}
        assert len(urls) == 2, urls
        # Choose it again, twice, before the data has arrived.
        p.value("""(() => { const s = document.getElementById('heatstep'), second = s.value;
            for (const value of ['', second, '', second]) { s.value = value; s.dispatchEvent(new Event('change')); } })()""")
        p.wait("document.querySelectorAll('.heatbox').length === 2")
        settled(p)
        assert p.value("document.querySelectorAll('.heatbox').length") == 2


if __name__ == "__main__":
    globals()[sys.argv[3]](*sys.argv[4:])
