"""Checks of the page of `ckptfs diff --report`: diff_report.py CKPTFS SHOTS FUNCTION ARGUMENT..."""

import ast
import json
import math
import os
import random
import re
import struct
import subprocess
import sys

from report import CKPTFS, HOSTILE, SHOTS, URL, Quiet, cards, ckptfs, detail, rows, search

RESULTS = {"only_a": "only in A", "only_b": "only in B"}
SIDE = 64


def save(path, tensors):
    """tensors: name: (type of safetensors, shape, bytes)"""
    head, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def floats(*values):
    return struct.pack(f"<{len(values)}f", *values)


def compare(*words, status=1):
    """Make page.html; returns what was printed."""
    done = subprocess.run([CKPTFS, "diff", "--quiet", "--report=page.html", *words], stdout=subprocess.PIPE, check=False)
    assert done.returncode == status, done
    return done.stdout.decode()


LINES = """(() => { const d = diff, t = d.table; return t.names.map((name, i) => ({ name, result: RESULTS[d.result[i]], known: d.known[i],
    dtype: t.dtypeName(i), shape: t.shapeOf(i), bytes: t.bytes[i], role: ROLES[t.role[i]], fault: t.faultOf(i),
    dtype_a: d.dtypeA[i] >= 0 ? t.dtypes[d.dtypeA[i]].name : null, shape_a: d.shapeA[i] >= 0 ? t.shapes[d.shapeA[i]].shape : null,
    ...Object.fromEntries(['changed', 'nanA', 'nanB', 'infinite', 'l2', 'normA', 'max', 'mean'].map(k => [k, String(d[k][i])])) })); })()"""
HEATS = "[...diff.heats.values()].map(h => ({ ...h, name: diff.table.names[h.row], codes: [...h.codes] }))"


# ---- numbers ----

def parts(n):
    """Where the parts of an axis begin: as few parts as possible, of about equal size, the longer ones first."""
    size = -(-n // SIDE)
    count = -(-n // size)
    starts, at = [], 0
    for i in range(count):
        starts.append(at)
        at += n // count + (i < n % count)
    return starts


def picture(np, a, b):
    """The cells of a picture, as a matrix; NaN where a value that is not finite has changed."""
    a, b = (x.reshape(-1, x.shape[-1] if x.ndim else 1).astype("longdouble") for x in (a, b))
    moved, both = b - a, np.isfinite(a) & np.isfinite(b)
    lost = ~both & (a != b) & ~(np.isnan(a) & np.isnan(b))
    r, c = parts(a.shape[0]), parts(a.shape[1])

    def cut(x, f):
        return f.reduceat(f.reduceat(x, r, axis=0), c, axis=1)
    moved = np.where(both, moved, 0).astype("float64")
    high, low = cut(np.maximum(moved, 0), np.maximum), cut(np.minimum(moved, 0), np.minimum)
    return np.where(cut(lost, np.logical_or), np.nan, np.where(high >= -low, high, low))


def random_pair(np, rng):
    """Arrays of A and of B by name, with their types."""
    types = {"F32": "f4", "F64": "f8", "F16": "f2", "BF16": None, "I64": "i8", "U8": "u1", "BOOL": "?", "C64": "c8"}
    sides = ({}, {})
    for i in range(40):
        name = f"{random.choice(['model', 'optim.exp_avg', 'x'])}.{random.randrange(9)}.{random.choice('abc')}.{i}"
        dtype, shape = random.choice(list(types)), [random.choice([1, 2, 3, 63, 64, 65, 100, 200]) for _ in range(random.randrange(4))]
        if math.prod(shape) > 300000 or random.random() < 0.05:
            shape = [0, 3] if random.random() < 0.5 else [random.randrange(1, 3000), 130]
        a = np.asarray(rng.standard_normal(shape) * 20)
        b = a.copy()
        how = random.randrange(6)
        if how == 1:
            b += rng.standard_normal(shape)
        elif how >= 2 and a.size:
            for _ in range(how):
                index = tuple(rng.integers(0, n) for n in shape)
                b[index] = random.choice([np.nan, np.inf, -np.inf, 0, 5, -1e3])
                if random.random() < 0.2:
                    a[index] = random.choice([np.nan, np.inf])
        if random.random() < 0.1:
            a = a * 0
        raw = []
        other = random.choice(["F32", "BF16"]) if dtype in ("F32", "F64") and random.random() < 0.3 else dtype
        for x, t in ((a, dtype), (b, other)):
            with np.errstate(all="ignore"):
                if t == "BF16":
                    bits = (x.astype("f4").reshape(-1).view("u4") >> 16).astype("u2")
                    raw.append((t, shape, bits.tobytes(), (bits.astype("u4") << 16).view("f4").reshape(shape)))
                    continue
                x = np.abs(np.nan_to_num(x)) % 200 if t == "U8" else x > 1 if t == "BOOL" else np.nan_to_num(x) if t == "I64" else x
                x = x.astype(types[t])
                raw.append((t, shape, x.tobytes(), x))
        fate = random.random()
        if fate > 0.07:
            sides[0][name] = raw[0]
        if fate < 0.9:
            sides[1][name] = raw[1]
        elif fate < 0.95:
            sides[1][name] = (other, [1, *shape], raw[1][2], raw[1][3].reshape([1, *shape]))
    return sides


def near(text, wanted, by=1e-6):
    return float(text) == wanted or abs(float(text) - wanted) <= by * abs(wanted) or abs(wanted) > 3e38 and abs(float(text)) > 3e38


def check_pair(np, line, a, b):
    wide = "clongdouble" if a.dtype.kind == "c" else "longdouble"
    x, y = a.astype(wide), b.astype(wide)
    if a.dtype == b.dtype and line["dtype"] == line["dtype_a"]:
        changed = (np.frombuffer(a.tobytes(), f"V{a.itemsize}") != np.frombuffer(b.tobytes(), f"V{a.itemsize}")).sum()
    else:
        changed = ((x != y) & ~(np.isnan(x) & np.isnan(y))).sum()
    assert float(line["changed"]) == changed, (line, changed)
    assert (float(line["nanA"]), float(line["nanB"])) == (np.isnan(x).sum(), np.isnan(y).sum()), line
    both = np.isfinite(x) & np.isfinite(y)
    moved = abs(x[both] - y[both])
    assert near(line["l2"], np.sqrt((moved ** 2).sum())), (line, np.sqrt((moved ** 2).sum()))
    assert near(line["normA"], np.sqrt((abs(x[np.isfinite(x)]) ** 2).sum())), line
    assert near(line["max"], moved.max() if moved.size else 0), line
    assert near(line["mean"], moved.mean() if moved.size else 0), line


def check_heat(np, heat, a, b):
    cells = picture(np, a, b)
    assert (heat["rows"], heat["columns"]) == cells.shape, (heat["name"], cells.shape)
    largest = np.nanmax(abs(cells)) if not np.isnan(cells).all() else 0
    assert near(heat["largest"], largest), (heat["name"], heat["largest"], largest)
    codes = np.array(heat["codes"]).reshape(cells.shape)
    assert ((codes == -128) == np.isnan(cells)).all(), heat["name"]
    with np.errstate(all="ignore"):
        wanted = np.nan_to_num(np.sign(cells) * np.ceil(127 * np.sqrt(abs(cells) / largest)))
    good = codes != -128
    assert (abs(codes - wanted)[good] <= 1).all() and ((codes == 0) == (cells == 0))[good].all(), heat["name"]
    equal_ends = abs(cells) == largest
    assert (codes[good & ~equal_ends] * np.sign(cells)[good & ~equal_ends] >= 0).all(), heat["name"]


def numbers(seed):
    import numpy as np

    print("seed", seed)
    random.seed(int(seed))
    sides = random_pair(np, np.random.default_rng(int(seed)))
    for k, side in enumerate(sides):
        save(f"{'ab'[k]}/model.safetensors", {n: t[:3] for n, t in side.items()})
    said = json.loads(compare("--json", "--jobs=3", "a", "b"))
    listed = {x["fqn"]: x["result"] for x in said["tensors"]}
    alone = json.loads(subprocess.run([CKPTFS, "diff", "--quiet", "--json", "--values", "a", "b"], stdout=subprocess.PIPE, check=False).stdout)
    assert said == alone
    with Quiet(SHOTS) as b:
        page = b.open(URL + "page.html", height=1400)
        lines, heats = page.value(LINES), page.value(HEATS)
        found = cards(page)
        page.shot("diff-random", whole=True)
    assert {x["name"] for x in lines} == set(sides[0]) | set(sides[1])
    assert found["equal"] == str(said["summary"]["equal"]) and found["only in A"] == str(said["summary"]["only_a"]), (found, said["summary"])
    changed = {}
    for line in lines:
        name, result = line["name"], listed.get(line["name"], "equal")
        assert line["result"] == RESULTS.get(result, result), (line, result)
        if not line["known"]:
            assert result in ("only_a", "only_b", "shape", "dtype"), line
            continue
        (type_a, shape, _, x), (type_b, _, _, y) = sides[0][name], sides[1][name]
        assert (line["shape"], line["shape_a"]) == (shape, shape) and (type_a == type_b) == (line["dtype"] == line["dtype_a"]), line
        check_pair(np, line, x, y)
        if float(line["changed"]) and x.dtype.kind != "c":
            l2, norm = float(line["l2"]), float(line["normA"])
            changed[name] = (float(line["nanB"]) > float(line["nanA"]), l2 / norm if norm else math.inf if l2 else 0, line["role"] == "optimizer")
    for heat in heats:
        check_heat(np, heat, sides[0][heat["name"]][3], sides[1][heat["name"]][3])
    for optimizer, most in ((False, 12), (True, 4)):
        order = sorted((v[:2] for v in changed.values() if v[2] == optimizer), reverse=True)[:most]
        shown = [changed[h["name"]][:2] for h in heats if changed[h["name"]][2] == optimizer]
        assert len(shown) == len(order) and all(x[0] == y[0] and near(x[1], y[1], 1e-5) for x, y in zip(shown, order)), (shown, order)


# ---- using the page ----

def layers():
    """Two steps of a small model and its optimizer; B has several defects."""
    random.seed(1)
    sides = ({}, {})
    for i in range(6):
        for part, shape in (("self_attn.q_proj", [48, 64]), ("self_attn.o_proj", [64, 48]), ("mlp.up_proj", [200, 64]), ("norm", [64])):
            n = math.prod(shape)
            values = [random.gauss(0, 0.02) for _ in range(n)]
            moved = [v + random.gauss(0, 0.0002 * (20 if i == 3 else 1)) for v in values]
            for k, list_ in enumerate((values, moved)):
                sides[k][f"model.layers.{i}.{part}.weight"] = ("F32", shape, floats(*list_))
                sides[k][f"optim.exp_avg.model.layers.{i}.{part}.weight"] = ("F32", shape, floats(*[x * 0.1 for x in list_]))
    broken = list(struct.unpack("<3072f", sides[1]["model.layers.4.self_attn.q_proj.weight"][2]))
    broken[100:140] = [math.nan] * 40
    sides[1]["model.layers.4.self_attn.q_proj.weight"] = ("F32", [48, 64], floats(*broken))
    del sides[1]["model.layers.1.mlp.up_proj.weight"]
    sides[1]["model.layers.6.new.weight"] = ("F32", [3], floats(1, 2, 3))
    sides[1]["model.layers.2.norm.weight"] = ("F32", [8, 8], sides[1]["model.layers.2.norm.weight"][2])
    sides[1]["model.layers.5.norm.weight"] = sides[0]["model.layers.5.norm.weight"]
    for k, side in enumerate(sides):
        save(f"run/step-{k + 1}/model.safetensors", side)
    said = compare("run", "step-1", "run/step-2")
    assert said == "1 equal, 46 differ, 1 only in A, 1 only in B\n", said
    with Quiet(SHOTS) as b:
        page = b.open(URL + "page.html", height=1300)
        assert page.value("document.title") == "run/step-1 \N{RIGHTWARDS ARROW} run/step-2 - ckptfs report", page.value("document.title")
        found = cards(page)
        assert (found["differ"], found["equal"], found["only in A"], found["only in B"], found["NaN"]) == ("46", "1", "1", "1", "appeared"), found
        table = page.value("[...document.querySelectorAll('#run details')].map(d => [d.firstChild.textContent, d.open, d.querySelectorAll('tbody tr').length])")
        assert [x[:2] for x in table] == [["Model and optimizer", True], ["Changed the most", True], ["By layer", True],
                                          ["By role, the most changed first", False]], table
        assert table[0][2] == 2 and table[2][2] == 13, table
        layer = page.value("[...document.querySelectorAll('#run details')[2].querySelectorAll('tbody tr')].map(r => [...r.cells].map(c => c.textContent))")
        by = {x[0]: x for x in layer}
        assert by["model.layers.4"][6] == "1" and by["model.layers.1"][7] == "1" and by["model.layers.6"][8] == "1" and by["model.layers.2"][9] == "1", by
        assert float(by["model.layers.3"][4].split()[0]) > 10 * float(by["model.layers.0"][4].split()[0]), by
        charts = page.value("[...document.querySelectorAll('#run figcaption')].map(f => f.textContent)")
        assert charts == ["relative change of model.layers.*", "relative change of optim.exp_avg.model.layers.*"], charts
        page.shot("diff", whole=True)
        drive(page)
        # In the foreground, because pages behind another one are not told that the theme has changed.
        pixel = "document.querySelector('.tile .heat').toDataURL()"
        before = page.value(pixel)
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        page.wait(f"{pixel} != '{before}'")  # drawn again
        changed = page.value(pixel)
        dark = b.open(URL + "page.html", dark=True, height=1300)
        assert dark.value(pixel) == changed
        search(dark, "layers.3.mlp")
        dark.shot("diff-dark", whole=True)
        narrow = b.open(URL + "page.html", width=420, height=900)
        assert narrow.value("document.documentElement.scrollWidth") <= 420, narrow.value("document.documentElement.scrollWidth")
        narrow.shot("diff-narrow", whole=True)
        dark.value("dispatchEvent(new Event('beforeprint'))")
        assert dark.value("document.querySelectorAll('#printed tr').length") > 20
    assert json.loads(ckptfs("info", "--json", "run/step-1"))


def drive(page):
    """Keys and mouse."""
    for word, wanted in (("is:a", ["model.layers.1.mlp.up_proj.weight"]), ("is:b", ["model.layers.6.new.weight"]),
                         ("is:missing", ["model.layers.1.mlp.up_proj.weight", "model.layers.6.new.weight"]),
                         ("is:nan", ["model.layers.4.self_attn.q_proj.weight"]), ("is:equal role:model", ["model.layers.5.norm.weight"]),
                         ("is:unreadable", []), ("is:inf", []), ("rank:1", [])):
        search(page, word)
        assert rows(page) == wanted, (word, rows(page))
    texts = page.value("[0, 1e-7, 0.0000507, 0.00051, 0.027, 0.0271, 0.5, 0.99999, 1, 12.345].map(percent)")
    assert texts == ["0 %", "1.0e-5 %", "0.00507 %", "0.0510 %", "2.70 %", "2.71 %", "50.0 %", "> 99.9 %", "100 %", "1230 %"], texts
    search(page, "is:changed")
    assert "46 matches" in page.value("document.getElementById('status').textContent")
    search(page, "layers.4.self_attn.q model")
    about = detail(page)
    assert about["name"] == "model.layers.4.self_attn.q_proj.weight" and about["NaN"] == "0 in A, 40 in B", about
    assert about["elements changed"].startswith("3,072 of 3,072 (100 %)"), about
    assert about["commands"][0] == "ckptfs diff --values run/step-1 run/step-2 model.layers.4.self_attn.q_proj.weight", about
    where = """(() => { const c = document.querySelector('#detail .heat'), b = c.getBoundingClientRect();
        c.dispatchEvent(new MouseEvent('mousemove', { clientX: b.x + b.width * 0.99, clientY: b.y + b.height * %s / 48 }));
        return document.querySelector('#detail [role=status]').textContent; })()"""
    assert page.value(where % 1.5) == "row 1, column 63: not finite, and changed", page.value(where % 1.5)
    assert re.fullmatch(r"row 0, column 63: [+-]0\.0\d+", page.value(where % 0.5)), page.value(where % 0.5)
    search(page, "is:missing")
    assert detail(page)["result"] == "only in A" and len(detail(page)["commands"]) == 1, detail(page)
    search(page, "layers.2.norm model")
    about = detail(page)
    assert (about["result"], about["in A"], about["in B"]) == ("the shapes differ", "float32  64", "float32  8 \N{MULTIPLICATION SIGN} 8"), about
    # A click on a picture leads to its tensor and leaves the search, so that the neighbours are shown, too.
    page.click(".tile:nth-child(2)")
    about = detail(page)
    assert about["name"].startswith("model.layers.3.") and about["result"] == "differs", about
    assert not page.value("document.getElementById('search').value")
    heads = page.value("[...document.querySelectorAll('#detail h3')].map(f => f.textContent)")
    assert "Where" in heads and any(h.startswith("Across ") for h in heads), heads
    page.key("]")
    assert not detail(page)["name"].startswith("model.layers.3."), detail(page)
    page.click("#fold")
    assert rows(page) == ["model", "optim.exp_avg"] or len(rows(page)) == 2, rows(page)
    page.value("document.getElementById('tree').focus()")
    page.key("Home")
    about = detail(page)
    assert about["only in A"] == "1" and about["NaN appeared in"] == "1 tensor" and about["tensors"] == "25", about
    flags = page.value("[...document.querySelectorAll('.row.selected .flag')].map(f => f.textContent)")
    assert flags == ["only in A", "only in B", "of another shape or dtype", "NaN"], flags
    page.click("#run details:last-child summary")
    page.wait("document.querySelectorAll('#run details:last-child tbody tr').length == 9")
    roles = page.value("[...document.querySelectorAll('#run details:last-child tbody tr')].map(r => [...r.cells].map(c => c.textContent))")
    assert {"model.layers.*.norm.weight", "model.layers.*.new.weight"} < {r[0] for r in roles}, roles
    changes = [float((r[4] or "0 %").split()[0]) for r in roles]
    assert changes == sorted(changes, reverse=True) and changes[0] > 1, roles
    page.value("document.getElementById('tree').focus()")
    page.key("ArrowRight")
    page.key("s")
    assert page.value("document.getElementById('order').textContent") == "by change"
    page.key("c")
    assert page.value("document.getElementById('colour-dtype').getAttribute('aria-checked')") == "true"
    page.key("c")
    page.key("c")
    legend = page.value("[...document.querySelectorAll('#legend li')].map(l => l.firstChild.nextSibling.textContent)")
    assert {"only in A", "only in B", "NaN", "equal", "of another shape or dtype"} <= set(legend), legend


def extremes():
    """Norms that are too large or too small for the page's floats."""
    sizes = {"tiny": 1e-50, "least": 1e-300, "huge": 1e300, "one": 1.0}
    for k, side in enumerate("ab"):
        save(f"{side}/model.safetensors", {name: ("F64", [4], struct.pack("<4d", *[x * (1 + 0.25 * k)] * 4)) for name, x in sizes.items()})
    compare("a", "b")
    with Quiet(SHOTS) as b:
        page = b.open(URL + "page.html")
        for name in sizes:
            row = f"diff.table.names.indexOf('{name}')"
            for what in (f"diff.relative({row})", f"diff.sum([{row}]).relative"):
                assert near(str(page.value(what)), 0.25, 1e-5), (name, what, page.value(what))
        heats = page.value(HEATS)
        assert len(heats) == 4 and all(h["codes"] == [127] * 4 and h["largest"] > 0 for h in heats), heats


def hostile():
    for k, path in enumerate(("<b>&'a.safetensors", "-b.safetensors")):
        save(path if "/" in path else "./" + path, {name: ("F32", [2, 3], floats(*[k + i for i in range(6)])) for name in HOSTILE[k:]})
    compare("--", "<b>&'a.safetensors", "./-b.safetensors")
    text = open("page.html", "rb").read()
    assert text.count(b"<script") == text.count(b"</script>") and b"touch" not in text and b"owned" not in text
    with Quiet(SHOTS) as b:
        page = b.open(URL + "page.html")
        assert page.value("document.title") == "<b>&'a.safetensors \N{RIGHTWARDS ARROW} ./-b.safetensors - ckptfs report"
        names = page.value("diff.table.names")
        assert sorted(names) == sorted(HOSTILE)
        page.shot("diff-hostile", whole=True)
        assert page.value("document.querySelectorAll('img, iframe, object, a').length") == 0
        search(page, "*")
        for at, name in enumerate(names):
            if at:
                page.key("ArrowDown")
            commands = detail(page)["commands"]
            shell = [c for c in commands if c.startswith("ckptfs ")]
            for line in shell:
                assert "\n" not in line and line.isprintable(), repr(line)
                out = subprocess.run(["bash", "-c", f'ckptfs() {{ "$0" "$@"; }}; {line}', CKPTFS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
                assert out.returncode == (1 if line.startswith("ckptfs diff") else 0), (line, out)
                if line.startswith("ckptfs diff"):
                    assert out.stdout.endswith(b"0 equal, 1 differ, 0 only in A, 0 only in B\n"), (line, out)
            if name == HOSTILE[0]:
                assert len(commands) == 1 and shell[0].startswith("ckptfs head"), commands
                continue
            assert len(shell) == 3, commands
            assert ast.literal_eval(re.search(r"x, y = a\[(.*)\], b\[", commands[-1])[1]) == name, commands
    assert not os.path.exists("owned")


def equal(file):
    with Quiet(SHOTS) as b:
        page = b.open(URL + file)
        found = cards(page)
        assert found["differ"] == "0" and found["relative change"] == "0 %" and found["NaN"] == "none new", found
        assert page.value("document.querySelectorAll('.tile').length") == 0
        page.shot("diff-equal", whole=True)


def objects(file):
    with Quiet(SHOTS) as b:
        page = b.open(URL + file)
        found = {x["name"]: x["result"] for x in page.value(LINES) if x["role"] == "object"}
        assert found.pop("name") == "differs" and set(found.values()) == {"equal"}, found
        search(page, "is:changed")
        assert rows(page) == ["name"] and detail(page)["result"] == "differs", detail(page)
        assert 'a.objects["name"].value' in detail(page)["commands"][-1], detail(page)
        page.shot("diff-objects", whole=True)


def unreadable(file):
    with Quiet(SHOTS) as b:
        page = b.open(URL + file)
        lines = page.value(LINES)
        bad = {x["name"] for x in lines if x["result"] == "unreadable"}
        assert bad and all(x["fault"].startswith("in B: ") and "__1_0.distcp" in x["fault"] for x in lines if x["name"] in bad), lines
        assert cards(page)["unreadable"] == str(len(bad)), cards(page)
        search(page, "is:unreadable")
        assert set(rows(page)) == bad
        assert page.value("document.querySelector('#detail .notice').textContent").startswith("in B: ")
        page.shot("diff-unreadable", whole=True)


def model(file):
    with Quiet(SHOTS) as b:
        page = b.open(URL + file)
        lines = page.value(LINES)
        assert lines and all(x["role"] == "model" for x in lines), lines
        search(page, "q.weight")
        commands = detail(page)["commands"]
        assert commands[0].startswith("ckptfs diff --model --values --dtype=bf16 ") and ".model[" in commands[-1], commands
        assert 'dtype="bf16"' in commands[-1], commands


def many(file):
    with Quiet(SHOTS) as b:
        page = b.open(URL + file)
        assert page.value("diff.table.n") == 100000 and len(rows(page)) < 200
        search(page, "is:equal")
        assert "100,000 matches" in page.value("document.getElementById('status').textContent")
        page.shot("diff-many")


if __name__ == "__main__":
    globals()[sys.argv[3]](*sys.argv[4:])
