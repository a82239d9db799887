"""Checks of the page of `ckptfs report`: report.py CKPTFS SHOTS FUNCTION ARGUMENT..."""

import ast
import json
import math
import os
import random
import re
import struct
import subprocess
import sys

from browser import Browser

CKPTFS, SHOTS = sys.argv[1:3]
URL = "file://" + os.getcwd() + "/"


def ckptfs(*words):
    return subprocess.run([CKPTFS, *words], check=True, stdout=subprocess.PIPE).stdout


def rows(page):
    """The names in the rows of the list that exist at the moment."""
    return page.value("[...document.querySelectorAll('.row')].map(r => r.querySelector('bdi').textContent)")


def detail(page):
    """The names and texts that are shown for the selected tensor."""
    return page.value("""(() => { const all = {};
        for (const dt of document.querySelectorAll('#detail dt'))
            all[dt.textContent] = dt.nextElementSibling.textContent;
        return { ...all, name: document.querySelector('#detail h2').textContent,
            commands: [...document.querySelectorAll('#detail code')].map(c => c.textContent) }; })()""")


def search(page, text):
    page.key("Escape")
    page.key("/")
    page.type(text)
    page.key("ArrowDown")


class Quiet(Browser):
    """A browser whose pages must neither complain nor request anything but themselves."""

    def __exit__(self, *what):
        super().__exit__(*what)
        if what[0] is None:
            assert not self.complaints, self.complaints
            other = [r for r in self.requests if not r.startswith((URL, "about:blank"))]
            assert self.requests and not other, other


def cards(page):
    return dict(page.value("[...document.querySelectorAll('.card')].map(c => [...c.children].slice(0, 2).map(x => x.textContent))"))


def checkpoint(file, path):
    info = json.loads(ckptfs("info", "--json", path))
    with Quiet(SHOTS) as b:
        page = b.open(URL + file, height=1200)
        assert page.value("document.querySelector('h1').textContent") == path
        assert page.value("document.title") == path + " - ckptfs report"
        found = cards(page)
        assert found["tensors"] == "14" and found["complete"] == "yes" and found["parameters"] == "1,931", found
        assert found["files"] == str(info["files"]) if "files" in info else True
        dtypes = re.search(r"^dtypes +(.*)$", ckptfs("info", path).decode(), re.M)[1].split(", ")
        small = page.value("[...document.querySelectorAll('.card')].find(c => c.firstChild.textContent === 'dtypes of the model').lastChild.textContent")
        assert small == ", ".join(dtypes[:4]) + ", \u2026" * (len(dtypes) > 4), (small, dtypes)
        # Sizes as the program prints them: text_size.
        sizes = [0, 1023, 1024, 1075, 1280, 1331, 1434, 3200, 102348, 103000, 103936, 1 << 20, 5 << 28, 7 * 2**40]
        for n, text in zip(sizes, page.value(f"{sizes}.map(sizeText)")):
            k = max(0, n.bit_length() - 1) // 10
            v = n / 1024**k
            assert text == f"{v:.{int(k > 0 and v < 100)}f} {'B KiB MiB GiB TiB'.split()[k]}", (n, text)
        served = page.value("[...document.querySelectorAll('#verdicts li')].map(l => l.textContent)")
        assert any(s.startswith("\N{CHECK MARK}pt/ complete: 11 tensors") for s in served), served
        assert any(s.startswith("\N{BALLOT X}hf/ not loadable: no config.json") for s in served), served
        page.shot("light")
        # Search: words, globs, conditions.
        search(page, "lay q")
        assert rows(page) == ["model.layers.0.q.weight"], rows(page)
        assert page.value("[...document.querySelectorAll('mark')].map(m => m.textContent).join()") == "lay,q"
        assert page.value("document.activeElement.id") == "tree"
        about = detail(page)
        assert about["dtype"] == "float32" and about["shape"] == "13 \u00d7 24" and about["elements"] == "312", about
        assert about["stored as"] == "model.layers.0.q.weight" and about["in hf/"] == "layers.0.q.weight", about
        assert about["commands"][0] == f"ckptfs head {path} model.layers.0.q.weight", about
        page.shot("search")
        search(page, "is:zero")
        assert all(json.loads(ckptfs("stat", "--json", path, n))["all"]["zero"] for n in rows(page)), rows(page)
        search(page, "is:else")
        assert not rows(page)
        search(page, "*.weight dtype:float32 role:model")
        assert len(rows(page)) == 2, rows(page)
        search(page, "nothing at all")
        assert rows(page) == [] and "0 matches" in page.value("document.getElementById('status').textContent")
        search(page, "role:optim")
        assert sorted(rows(page)) == ["optim.state.exp_avg", "optim.step"], rows(page)
        # Everything can be done with keys.
        page.key("Escape")
        page.click("#fold")
        assert rows(page) == ["lr_scheduler.x", "model", "optim"], rows(page)
        page.value("document.getElementById('tree').focus()")
        page.key("Home")
        page.key("ArrowDown")
        page.key("ArrowRight")
        assert page.value("document.querySelector('.row.selected').getAttribute('aria-expanded')") == "true"
        assert len(rows(page)) > 8, rows(page)
        page.key("ArrowRight")
        page.key("ArrowLeft")
        page.key("ArrowLeft")
        assert len(rows(page)) == 3, rows(page)
        page.key("End")
        assert page.value("document.querySelector('.row.selected bdi').textContent") == "optim"
        page.key("s")
        assert rows(page)[0] == "model", rows(page)
        page.key("c")
        assert page.value("document.getElementById('colour-role').getAttribute('aria-checked')") == "true"
        page.key("?")
        assert page.value("document.getElementById('help').open")
        page.click("#helpclose")
        assert not page.value("document.getElementById('help').open")
        # The map leads to the tensor that is there.
        x, y = page.value("(() => { const b = document.getElementById('map').getBoundingClientRect(); return [b.x + 40, b.y + 150]; })()")
        page.click_at(x, y)
        assert detail(page)["name"] == "model.lm_head.weight", detail(page)
        # A tensor of more than two dimensions is shown slice by slice.
        search(page, "wide")
        assert page.value("document.querySelectorAll('.slice input').length") == 1
        page.shot("slices", whole=True)
        dark = b.open(URL + file, dark=True, height=1200)
        assert dark.value("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
        dark.shot("dark")
        narrow = b.open(URL + file, width=420, height=900)
        assert narrow.value("document.documentElement.scrollWidth") <= 420
        narrow.shot("narrow", whole=True)
        page.value("dispatchEvent(new Event('beforeprint'))")
        assert page.value("document.querySelectorAll('#printed tr').length") > 14
        page.call("Emulation.setEmulatedMedia", media="print")
        page.shot("print", whole=True)


def opens(file):
    with Quiet(SHOTS) as b:
        page = b.open(URL + file)
        assert rows(page)
        assert page.value("document.getElementById('problem').hidden")


def chunks(file, path):
    """Compares chunks through the page's own objects, because the page shows only one tensor at a time."""
    with Quiet(SHOTS) as b:
        page = b.open(URL + file)
        table = page.value("""(() => { const t = chunks.table; return t.names.slice(0, t.stored).map((name, i) => ({ name,
            dtype: t.dtypeName(i), shape: t.shapeOf(i), bytes: t.bytes[i], fault: t.fault[i] > 0,
            chunks: (chunks.of(i) || []).map(c => [c.off, c.len, c.path]).sort() })); })()""")
        assert table
        ranks = page.value("chunks.ranks")
        cases = [table[0], *random.sample(table, min(len(table), 15))]
        for t in cases:
            info = json.loads(ckptfs("info", "--json", path, t["name"]))
            assert (t["dtype"], t["shape"], t["bytes"], t["fault"]) == (info["dtype"], info["shape"], info["bytes"], bool(info["fault"])), (t, info)
            wanted = sorted([c["offsets"], c["sizes"], c["file"]] for c in info["chunks"])
            assert sorted(t["chunks"]) == wanted, (t, wanted)
        wrote = json.loads(ckptfs("info", "--json", path)).get("ranks")
        if wrote:
            assert len({r for r in ranks if r >= 0}) == wrote, (ranks, wrote)
            page.click("#colour-rank")
            page.shot("rank")


def values(file, path):
    stat = {t["fqn"]: t for t in json.loads(ckptfs("stat", "--hist=24", "--json", path))["tensors"]}
    with Quiet(SHOTS) as b:
        page = b.open(URL + file)
        found = page.value("""(() => { const t = chunks.table; return t.names.slice(0, t.stored).map((name, i) => ({ name,
            known: values.known[i], nan: values.nan[i], inf: values.inf[i], zero: values.zero[i],
            ...Object.fromEntries(['min', 'max', 'mean', 'std', 'norm'].map(k => [k, String(values[k][i])])) })); })()""")
        assert {t["name"] for t in found} == set(stat)
        for t in found:
            wanted = stat[t["name"]]
            if not wanted.get("elements"):
                continue
            assert (t["nan"], t["inf"], t["zero"]) == (wanted["nan"], wanted["inf"], wanted["zero"]), (t, wanted)
            for key in ("min", "max", "mean", "std", "norm"):
                if wanted[key] is not None:
                    as_float = struct.unpack("f", struct.pack("f", wanted[key]))[0] if abs(wanted[key]) < 3e38 else wanted[key]
                    assert abs(as_float) > 3e38 or abs(float(t[key]) - as_float) <= 1e-6 * abs(as_float), (key, t, wanted)
        hists = page.value("""chunks.table.names.slice(0, chunks.table.stored).map((name, i) => [name,
            values.histOf(i).map(h => h && { edges: h.edges.map(String), heights: [...h.heights] })])""")
        compared = 0
        for name, pair in hists:
            for kind, found_hist in zip(("linear", "logarithmic"), pair):
                wanted = stat[name].get(kind)
                if not wanted or not wanted["counts"]:
                    assert not found_hist, (name, found_hist)
                    continue
                most = max(wanted["counts"])
                assert [float(x) for x in found_hist["edges"]] == wanted["edges"], (name, kind, found_hist, wanted)
                assert found_hist["heights"] == [math.ceil(255 * c / most) for c in wanted["counts"]], (name, kind, found_hist, wanted)
                compared += 1
        assert compared > 10, hists
        bad = sorted(n for n, t in stat.items() if t.get("nan"))
        search(page, "is:nan")
        assert sorted(rows(page)) == bad, (rows(page), bad)
        page.click("#colour-nan")
        page.shot("nan")


def write_safetensors(path, shapes):
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 4
        for n in shape:
            size *= n
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + bytes(random.randrange(60) for _ in range(at)))


HOSTILE = ["</script><script>document.title = 'owned'</script>", "<!--<script>", "\"><img src=x onerror=\"document.title = 'owned'\">",
           "it's $(touch owned) `touch owned`; touch owned #", "new\nline\ttab\rreturn", "\x1b[31mred\x07", "\u202etxt.exe", "\u2066isolate",
           "zero\u200bwidth\ufeff", "a" * 3000, ".", "...", ".".join("d" * 300), "\N{GRINNING FACE}.\u05d0\u05d1.weight", "&amp;&#60;b&gt;",
           "__proto__", "constructor.prototype", "toString", "%00%2e", "a\\b'c\"d", "\x7f\x80\x9f", "{{x}}${y}", "javascript:alert(1)",
           "0.weight", "00.weight", "000.weight", "-x", "*", "(objects, not tensors).x"]


def hostile():
    write_safetensors("<b>&'name.safetensors", {name: [2, 3] for name in HOSTILE})
    ckptfs("report", "--quiet", "--stat", "<b>&'name.safetensors")
    text = open("report.html", "rb").read()
    assert text.count(b"<script") == text.count(b"</script>") and b"touch" not in text and b"owned" not in text
    path = "<b>&'name.safetensors"
    with Quiet(SHOTS) as b:
        page = b.open(URL + "report.html")
        assert page.value("document.title") == path + " - ckptfs report", page.value("document.title")
        names = page.value("chunks.table.names")
        assert sorted(names) == sorted(HOSTILE), set(HOSTILE) ^ set(names)
        page.shot("hostile")
        # Open everything that can be opened.
        for _ in range(40):
            if not page.value("(() => { const c = document.querySelector('[aria-expanded=false]'); c?.querySelector('.twist').click(); return c; })()"):
                break
        page.value("document.querySelector('#tree').scrollTop = 1e6")
        page.shot("hostile-open")
        assert page.value("document.querySelectorAll('img, iframe, object, a').length") == 0
        search(page, "*")
        for at, name in enumerate(names):
            if at:
                page.key("ArrowDown")
            commands = detail(page)["commands"]
            line = commands[0]
            assert "\n" not in line and line.isprintable(), repr(line)
            out = subprocess.run(["bash", "-c", f'ckptfs() {{ "$0" "$@"; }}; {line}', CKPTFS], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            assert out.returncode == 0 and out.stdout == ckptfs("head", "--", path, name), (line, out)
            assert ast.literal_eval(re.search(r"ck\[(.*)\]$", commands[-1])[1]) == name, commands
            assert ast.literal_eval(re.search(r"open\((.*?)\); x = ", commands[-1])[1]) == path, commands
        assert page.value("document.title") == path + " - ckptfs report"
    assert not os.path.exists("owned")


def layers():
    shapes = {}
    for i in range(12):
        for part in ("q", "k"):
            shapes[f"model.layers.{i}.attn.{part}.weight"] = [4, 3]
        for e in range(4):
            shapes[f"model.layers.{i}.experts.{e}.up.weight"] = [3, 2] if i != 5 else [2, 3]
    shapes["model.embed.weight"] = [20, 3]
    write_safetensors("model.safetensors", shapes)
    ckptfs("report", "--quiet", "--stat", "model.safetensors")
    with Quiet(SHOTS) as b:
        page = b.open(URL + "report.html", height=1300)
        shown = rows(page)
        assert "{0..4,6..11}" in shown and "5" in shown, shown
        search(page, "layers.7.experts.2.up")
        page.key("Enter")  # shows it in the tree
        about = detail(page)
        assert about["name"] == "model.layers.7.experts.2.up.weight", about
        assert page.value("[...document.querySelectorAll('.picker select')].map(s => s.selectedOptions[0].text).join()") == "7,2"
        page.key("]")
        assert detail(page)["name"] == "model.layers.7.experts.3.up.weight", detail(page)
        page.key("[")
        page.key("[")
        assert detail(page)["name"] == "model.layers.7.experts.1.up.weight", detail(page)
        page.click(".picker button")  # of the outer group: the layer before
        assert detail(page)["name"] == "model.layers.6.experts.1.up.weight", detail(page)
        page.click(".picker button")
        assert detail(page)["name"] == "model.layers.4.experts.1.up.weight", detail(page)
        charts = page.value("[...document.querySelectorAll('figcaption')].map(f => f.textContent).join()")
        assert charts == "linear,by powers of two,std,max,min", charts
        page.shot("layers", whole=True)


def alike():
    write_safetensors("alike.safetensors", {f"p.{i}": [] for i in range(150000)})
    ckptfs("report", "--quiet", "--stat", "alike.safetensors")
    subprocess.run([sys.executable, os.path.dirname(__file__) + "/make_dcp.py", "cut", "w", "40x30", "40x30"], check=True)
    ckptfs("report", "--quiet", "--output=cut.html", "cut")
    with Quiet(SHOTS) as b:
        page = b.open(URL + "report.html")
        page.value("document.getElementById('tree').focus()")
        page.key("End")
        about = detail(page)
        assert about["name"] == "p.0" and about["elements"] == "1", about
        assert page.value("document.querySelector('.row.selected .times').textContent") == "\N{MULTIPLICATION SIGN}150000"
        page.key("]")
        assert detail(page)["name"] == "p.1", detail(page)
        page.shot("alike")
        page = b.open(URL + "cut.html")
        assert page.value("document.querySelectorAll('.chunks tbody tr').length") == 40
        page.click(".chunks + button")
        assert page.value("document.querySelectorAll('.chunks tbody tr').length") == 1040
        page.shot("cut", whole=True)


def recipe(file):
    with Quiet(SHOTS) as b:
        page = b.open(URL + file)
        search(page, "role:made")
        assert any("q_proj" in r for r in rows(page)), rows(page)
        about = detail(page)
        assert about["stored as"] == "pieces of other tensors" and 'ck.model["' in about["commands"][-1], about
        assert 'recipe="megatron"' in about["commands"][-1], about
        page.shot("recipe")


def many(file):
    with Quiet(SHOTS) as b:
        page = b.open(URL + file)
        assert cards(page)["tensors"] == "100,000"
        assert len(rows(page)) < 200  # only visible rows exist
        page.shot("many")
        search(page, "model.layers.77")
        n = page.value("document.getElementById('status').textContent")
        assert re.match(r"[0-9,]+ matches of 100,000", n), n
        page.key("End")
        assert page.value("document.querySelector('.row.selected bdi').textContent").startswith("model.layers.77")
        page.key("Enter")
        assert detail(page)["shape"] in ("scalar", "1"), detail(page)
        page.click("#colour-role")


def random_file(path, n):
    shapes = {f"m.{random.randrange(40)}.{random.randrange(100)}.{random.randbytes(8).hex()}": [random.randint(1, 9), random.randint(1, 9)]
              for _ in range(int(n))}
    write_safetensors(path, shapes)


def run(file):
    with Quiet(SHOTS) as b:
        page = b.open(URL + file, height=1300)
        table = page.value("[...document.querySelectorAll('#run tbody tr')].map(r => [...r.cells].map(c => c.textContent))")
        assert [r[0] for r in table] == ["step-1", "step-2", "step-10latest"], table
        assert table[0][2] == "yes" and table[1][2].startswith("no") and table[2][3] == "1,931", table
        assert cards(page)["tensors"] == "14"
        search(page, "lm_head")
        assert "run/step-10 " in detail(page)["commands"][0], detail(page)
        page.shot("run", whole=True)


SERIES = """(() => { const t = chunks.table; return { all: series.all, names: series.names, rows: Object.fromEntries(
    t.names.slice(0, t.stored).map((name, i) => [name, series.of(i)?.map(list => [...list].map(String))])) }; })()"""


def near(text, wanted):
    if wanted is None:
        return text == "NaN"
    return float(text) == wanted == 0 or abs(float(text) / wanted - 1) < 1e-3


def the_series(file, path):
    """Every k-th checkpoint, the last one included."""
    stat = {}
    for r in json.loads(ckptfs("stat", "--quiet", "--json", path))["rows"]:
        stat.setdefault(r["fqn"], []).append(r)
    with Quiet(SHOTS) as b:
        page = b.open(URL + file, height=1300)
        found = page.value(SERIES)
        step = -(-found["all"] // len(found["names"]))
        assert (step > 1) == (path == "long"), found
        for name, columns in found["rows"].items():
            wanted = stat[name]
            assert found["all"] == len(wanted) and found["names"] == [r["checkpoint"] for r in wanted[::-1][::step][::-1]], found["names"]
            for column, key in zip(columns, ("rms", "max_abs", "relative", "changed_share", "nan")):
                numbers = [r.get(key, 0 if key == "nan" else None) for r in wanted[::-1][::step][::-1]]
                assert all(map(near, column, numbers)), (name, key, column, numbers)
        assert len(found["rows"]) > 1
        search(page, "w")
        charts = page.value("[...document.querySelectorAll('figcaption')].map(f => f.textContent)")
        assert "root mean square" in charts and "share of elements changed since then" in charts, charts
        heads = page.value("[...document.querySelectorAll('#detail h3')].map(f => f.textContent)")
        n, of = len(found["names"]), found["all"]
        assert (f"Through {n} of {of} checkpoints" if n < of else f"Through {n} checkpoints") in heads, heads
        assert ("NaN" in charts) == any(r.get("nan") for r in stat[detail(page)["name"]]), charts
        page.shot("series-" + path, whole=True)


def long_run(tensors, steps):
    names = [f"w.{random.randbytes(4).hex()}" for _ in range(int(tensors))]
    for step in range(int(steps)):
        os.makedirs(f"long/step-{step}")
        write_safetensors(f"long/step-{step}/model.safetensors", dict.fromkeys(names, [2, 3]))


def not_read(file, big, small, table=""):
    with Quiet(SHOTS) as b:
        page = b.open(URL + file, height=1300)
        card = "[...document.querySelectorAll('.card')].at(-1)"
        assert page.value(f"[...{card}.children].map(x => x.textContent)") == ["values", big, small], page.value(f"{card}.textContent")
        assert page.value(f"{card}.classList.contains('bad')")
        # NaN, Inf and the tensors that could not be read, of each checkpoint of a run
        assert page.value("[...document.querySelectorAll('#run tbody tr')].map(r => [...r.cells].slice(-3).map(c => c.textContent).join()).join(' ')") == table
        page.shot("not-read" + "-run" * bool(table), whole=True)


def magnitudes(file):
    with Quiet(SHOTS) as b:
        page = b.open(URL + file, height=1300)
        column = "[...document.querySelectorAll('#run th')].findIndex(h => h.textContent === 'max abs')"
        assert page.value(f"[...document.querySelectorAll('#run tbody tr')].map(r => r.cells[{column}].textContent)") == ["9", "11"]
        charts = page.value("[...document.querySelectorAll('#run svg')].map(c => c.getAttribute('aria-label'))")
        assert charts[-1] == "max abs of the model: from 9 to 11", charts
        page.shot("magnitudes", whole=True)


AXES = """[...document.querySelectorAll('svg.chart')].filter(c => c.querySelector('.line')).map(c =>
    [c.getAttribute('aria-label'), +c.querySelector('.point').getAttribute('cy'),
     [...c.querySelectorAll('text')].slice(0, -2).map(t => [t.textContent, +t.getAttribute('y')])])"""


def axes(file):
    """The ends of an axis have enough digits; a line that is level has its value beside it."""
    with Quiet(SHOTS) as b:
        page = b.open(URL + file, height=1300)
        search(page, "w")
        charts = page.value(AXES)
        assert {len(ticks) for _, _, ticks in charts} == {1, 2}, charts
        for label, at, ticks in charts:
            low, high = map(float, label.rsplit(": from ", 1)[1].split(" to "))
            if low == high:
                assert abs(ticks[0][1] - at) < 8 and float(ticks[0][0]) == low, (label, at, ticks)
            else:
                shown = float(ticks[0][0]) - float(ticks[1][0])
                assert 0.85 < shown / (high - low) < 1.15, (label, ticks)
        page.shot("axes", whole=True)


def run_of_nothing(file):
    with Quiet(SHOTS) as b:
        page = b.open(URL + file)
        assert "None is complete" in page.value("document.querySelector('#run .notice').textContent")
        assert page.value("document.querySelectorAll('#run tbody tr').length") == 1


def incomplete(file):
    with Quiet(SHOTS) as b:
        page = b.open(URL + file)
        assert cards(page)["complete"] == "no"
        search(page, "is:incomplete")
        assert rows(page)
        assert "Incomplete: " in page.value("document.querySelector('#detail .notice').textContent")
        page.shot("incomplete")


def script(file):
    text = open(file, encoding="utf-8").read()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert re.fullmatch(r"default-src 'none'; script-src 'sha256-[A-Za-z0-9+/=]{44}'; style-src 'sha256-[A-Za-z0-9+/=]{44}'; "
                        "base-uri 'none'; form-action 'none'", policy), policy
    code = re.findall(r"<script>(.*?)</script>", text, re.S)
    assert len(code) == 1 and code[0].startswith("'use strict';")
    assert not re.search(r"\b(eval|innerHTML|outerHTML|insertAdjacentHTML|document\.write|fetch|XMLHttpRequest|new Function|import\()", code[0])
    assert "http://" not in code[0].replace("http://www.w3.org/2000/svg", "") and "https://" not in text


if __name__ == "__main__":
    globals()[{"random": "random_file"}.get(sys.argv[3], sys.argv[3])](*sys.argv[4:])
