#!/usr/bin/env python3
"""python.py TEST [ARG...] - the Python package, compared with what the commands print. For test_python.sh."""
import array
import copy
import ctypes
import errno
import functools
import io
import json
import math
import mmap
import os
import pathlib
import pickle
import random
import resource
import signal
import subprocess
import warnings
import sys
import threading
import types

import ckptfs
import numpy as np

CKPTFS = os.environ["CKPTFS"]


def run(*words):
    return subprocess.run([CKPTFS, *words], capture_output=True, check=False)


def out(*words):
    done = run(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fails(error, words, function, *args, **named):
    try:
        function(*args, **named)
    except error as e:
        assert words in str(e), e
        return e
    raise AssertionError(f"no {error.__name__}")


def random_index(r, shape):
    """A NumPy index that omits some dimensions or has an ellipsis."""
    items = []
    for size in shape:
        kind = r.randrange(4)
        if kind == 0 and size:
            items.append(r.randrange(-size, size))
        elif kind == 1:
            items.append(slice(None, None, r.choice([None, -1, 2, -3])))
        else:
            ends = [None] + list(range(-size - 2, size + 3))
            items.append(slice(r.choice(ends), r.choice(ends), r.choice([None, 1, 2, 5, -1, -2])))
    cut = r.randrange(len(items) + 1)
    if r.random() < 0.5:
        items[cut:r.randrange(cut, len(items) + 1)] = [...]
    else:
        del items[cut:]
    return items[0] if len(items) == 1 and r.random() < 0.5 else tuple(items)


def check_tensor(r, t, data):
    """data: the tensor's bytes."""
    if t.itemsize > 8:
        whole = np.frombuffer(data, f"<u{t.itemsize // 2}").reshape(t.shape + (2,))
    else:
        whole = np.frombuffer(data, f"<u{t.itemsize}").reshape(t.shape)
    assert len(data) == t.nbytes and t.ndim == len(t.shape)
    for _ in range(6):
        index = random_index(r, t.shape)
        # Pairs have an additional last dimension.
        full = index if isinstance(index, tuple) else (index,)
        of = full + (slice(None),) if t.itemsize > 8 and ... in full else full
        got, want = t.bits(index), whole[of]
        assert got.shape == want.shape and (got == want).all(), (t, index)
    try:
        dtype = t.numpy_dtype()
    except TypeError:
        fails(TypeError, ".bits()", lambda: t[...])
        return
    assert t[...].dtype == dtype and t[...].tobytes() == data
    # Into memory with gaps, transposed and backwards.
    room = np.zeros([2 * n + 1 for n in reversed(t.shape)], dtype)
    view = room[(..., *[slice(1, None, 2)] * t.ndim)].T[(..., *[slice(None, None, -1)] * t.ndim)]
    t.read_into(view)
    assert view.tobytes() == data
    view[...] = np.zeros((), dtype)
    assert not any(room.tobytes())  # the gaps have not been touched


def open_fixture(path, shown):
    """The opened fixture; with allow_missing=True if it has holes; None if it is damaged, as the command has said."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the commands print them
            return ckptfs.open(path)
    except ckptfs.Error as e:
        if shown.returncode:
            assert shown.stderr.decode().splitlines()[-1] == f"ckptfs: {e}", (shown.stderr, str(e))
            return None
    ck = ckptfs.open(path, allow_missing=True)
    assert any(ck.tensor(name).fault for name in ck)
    return ck


def check_objects(ck, path):
    good, files = [], []
    for name, file in zip(ck.objects, ck.listdir("objects") if ck.objects else []):
        try:
            good.append(ck.objects[name])
            assert good[-1].name == name and repr(good[-1].value) == repr(
                json.loads(ck.read(f"objects/{file}.json"), object_hook=ckptfs._checkpoint._decoded))
            files.append(f"objects/{file}")
        except ckptfs.Error as e:
            assert e.errno == 5 and run("cat", path, f"objects/{file}").returncode == 2, e
    assert len(ck.objects) == len(list(ck.objects))
    assert not files or out("cat", path, *files) == b"".join(good)


def check_values(ck, path):
    """Compared with the commands' output, in which NaN is null."""
    shown = json.loads(run("stat", path, "--json", "--hist=8").stdout)
    found = ck.stat(bins=8)
    assert list(found) == [t["fqn"] for t in shown["tensors"]]
    for t in shown["tensors"]:
        v = found[t["fqn"]]
        assert (v.dtype, list(v.shape), v.fault) == (t["dtype"], t["shape"], t["fault"]), t
        for key in set(t) & set(v._fields) - {"dtype", "shape", "fault", "linear", "logarithmic"}:
            value = getattr(v, key)
            if isinstance(value, complex):
                value = [value.real, value.imag]
            if isinstance(value, float) and math.isinf(value):
                value = None
            wanted = None if t[key] == [None, None] else t[key]
            assert value == wanted, (key, t, v)
        for key in "linear", "logarithmic":
            h = getattr(v, key)
            assert t.get(key) == (h and h._asdict()), (t, h)
    groups = json.loads(run("stat", path, "--json", "--by=role").stdout)["groups"]
    assert {g["group"]: g["elements"] for g in groups if not g["fault"]} == {
        name: v.elements for name, v in ck.stat(by="role").items() if not v.fault}
    faults = [(f["fqn"], f["rule"], f["what"]) for f in json.loads(run("check", path, "--json", "--max-abs=2").stdout)["faults"]
              if f["rule"] and f["rule"] != "unreadable"]
    assert faults == [f for f in ck.check_values(max_abs=2) if f.rule != "unreadable"]
    allowed = ck.check_values(allow_nan="*", allow_inf=["*"], allow_zero=["x", "*"], allow_constant=("*",))
    assert {f.rule for f in allowed} <= {"unreadable"}, allowed
    fails(ValueError, "is not one of tensor, layer, role, rank", ck.stat, by="x")
    fails(ckptfs.Error, "histograms of 2 bins", ck.stat, bins=2)
    fails(ckptfs.Error, "65 jobs are too many", ck.stat, jobs=65)
    fails(ValueError, "jobs=-1 is negative", ck.stat, jobs=-1)
    fails(ValueError, "jobs=4294967297 is too large", ck.check_values, jobs=(1 << 32) + 1)
    fails(ValueError, "bins=-4294967292 is negative", ck.stat, bins=4 - (1 << 32))


def test_series(path, *globs):
    """Compared with `stat`, for the stored tensors and for the model's."""
    for model in False, True:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = ckptfs.series(path, *globs, model=model, dtype="fp32", jobs=2, index=":memory:")
        words = ["--dtype=fp32", "--json", *(["--model"] if model else []), path, *globs]
        shown = run("stat", *words)
        assert [str(w.message).split(": ", 1)[1] for w in said] == [
            line.removeprefix("ckptfs: warning: ")
            for line in shown.stderr.decode().splitlines() if "warning" in line], (said, shown.stderr)
        rows = json.loads(shown.stdout)["rows"]
        assert list(found) == list(dict.fromkeys(r["fqn"] for r in rows)) and rows, found
        assert [(s.checkpoint, s.dtype, s.shape and list(s.shape), s.fault) for steps in found.values() for s in steps] == [
            (r["checkpoint"], r["dtype"], r.get("shape"), r["fault"]) for r in rows]
        for s, r in zip((s for steps in found.values() for s in steps), rows):
            for key in set(r) & set(s._fields) - {"checkpoint", "dtype", "shape", "fault"}:
                value = getattr(s, key)
                assert r[key] == (None if value == math.inf else value), (key, r, s)
            assert "changed" in r or s.changed is s.changed_share is s.relative is None, (r, s)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not ckptfs.series(path, "nothing")
    with ckptfs.open(path, runs=True, exclude="no such*", index=":memory:") as ck:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            ck.listdir("step-9")  # opened only now
        assert len(said) == 1 and "'no such*'" in str(said[0].message) and said[0].filename == __file__, said
    fails(ckptfs.Error, "it is a checkpoint, not a run", ckptfs.series, os.path.join(path, "step-9"))
    fails(FileNotFoundError, "open '/no/where'", ckptfs.series, "/no/where")


def test_exceptions(path, run_path):
    """An exception in a callback comes out of the call, whatever has been found by then."""
    class Own(BaseException):
        pass

    def raising(*_, **__):
        raise Own("in a callback")

    def interrupted(kind):
        def make(*args, **named):
            if not made:
                signal.raise_signal(signal.SIGINT)
            made.append(1)
            return kind(*args, **named)
        made = []
        return make

    with warnings.catch_warnings(), ckptfs.open(path) as ck:
        warnings.simplefilter("ignore")
        assert ck.check_values() and ck.stat() and ck.verdicts() and ckptfs.series(run_path)
        handler = signal.default_int_handler
        signal.signal(signal.SIGINT, handler)  # a background job of a shell may ignore it
        of_values = ckptfs._checkpoint._values
        for module, what, function in ((of_values, "Finding", ck.check_values), (of_values, "values_of", ck.stat),
                                       (ckptfs._checkpoint, "Verdict", ck.verdicts),
                                       (of_values, "step_of", lambda: ckptfs.series(run_path))):
            kind = getattr(module, what)
            setattr(module, what, raising)
            fails(Own, "in a callback", function)
            setattr(module, what, interrupted(kind))
            fails(KeyboardInterrupt, "", function)
            setattr(module, what, kind)
            assert function() and signal.getsignal(signal.SIGINT) is handler
            # While the library works, outside of a callback.
            timer = threading.Thread(target=lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT))
            try:
                timer.start()
                while True:
                    function()
            except KeyboardInterrupt:
                pass
            timer.join()
            other = []
            thread = threading.Thread(target=lambda f=function, o=other: o.append(f()))
            thread.start()
            thread.join()
            assert other[0], other


def test_fixture(path):
    r = random.Random(path)
    shown = run("cat", path, ".ckptfs/info.json")
    ck = open_fixture(path, shown)
    if not ck:
        return
    with ck:
        assert ck.info() == json.loads(shown.stdout)
        assert [{"face": face, "serves": v.serves, "verdict": v.text}
                for face, v in ck.verdicts().items()] == ck.info()["verdicts"]
        check_values(ck, path)
        names = list(ck)
        assert len(names) == len(ck) == len(set(names)) and set(names) == set(ck.keys())
        tensors = [ck.tensor(name) for name in names]
        for t in [t for t in tensors if t.fault]:
            assert fails(ckptfs.Error, t.fault, t.bits).errno == 5
        files = [f"tensors/{f}" for f, t in zip(ck.listdir("tensors"), tensors) if not t.fault]
        tensors = [t for t in tensors if not t.fault]
        data = io.BytesIO(out("cat", path, *files) if files else b"")
        for t in tensors:
            assert t.name in ck
            check_tensor(r, t, data.read(t.nbytes))
        assert not data.read()
        assert "no such name" not in ck
        check_objects(ck, path)
        for t in map(ck.model.tensor, ck.model):
            if not t.fault:
                check_tensor(r, t, t.bits().tobytes())


def test_listing(path):
    """Compared with what ls says of each tensor and object."""
    listed = [x for x in json.loads(out("ls", "--json", path)) if "dtype" in x]
    with ckptfs.open(path) as ck:
        have = [(t.name, t.dtype, list(t.shape), t.nbytes) for t in map(ck.tensor, ck)]
    want = [(t["fqn"], t["dtype"], t["shape"], t["bytes"]) for t in listed]
    assert have == want and want, (have, want)


def test_options(path):
    with ckptfs.open(path, include=["model.*"], exclude="*.wide", dtype="bf16") as ck:
        assert "model.n" in ck and "optim.step" not in ck and "model.layers.10.wide" not in ck
        assert ck.tensor("model.layers.2.half").dtype == "bfloat16"
        assert sorted(ck.model) == sorted(n[len("model."):] for n in ck)
        assert ck.model["n"].tobytes() == ck["model.n"].tobytes()
    with ckptfs.open(path, rename="rules") as ck:
        assert "trunk.q" in ck
    with ckptfs.open(path, layout="mesh") as ck:
        whole = ck.model.tensor("layers.0.q.weight").bits()
        parts = [ck.rank(n).tensor("layers.0.q.weight").bits() for n in range(2)]
        assert (np.concatenate(parts) == whole).all()
        t = ck.rank(1).tensor("layers.0.q.weight")
        assert t.shape == (6, 24) and (t.bits(np.s_[::-2, 3:5]) == whole[7:][::-2, 3:5]).all()
        assert ck.rank(1)["ids"].shape == (11,)
        assert t[...].tobytes() == ck.read("ranks/00001/tensors/layers.0.q.weight")
        assert list(ck.rank(0)) == list(ck.model)
        assert repr(ck.rank(1)) == f"<ckptfs.Tensors {str(path)!r}: {len(ck.model)} tensors of rank 1>"
        fails(ckptfs.NotFoundError, "the layout has 2 ranks", ck.rank, 2)
        fails(ckptfs.NotFoundError, "the layout has 2 ranks", ck.rank, 1 << 70)
        fails(ValueError, "rank -1 is negative", ck.rank, -1)
        for number in "1", 1.0, None:
            fails(TypeError, f"'{type(number).__name__}' object cannot be interpreted as an integer", ck.rank, number)
        assert list(ck.rank(np.int8(1))) == list(ck.rank(1))
    with ckptfs.open(path, include="model.n") as ck:
        fails(ckptfs.NotFoundError, "there is no layout=", ck.rank, 0)
        assert repr(ck) == f"<ckptfs.Checkpoint {str(path)!r}: 1 tensor>"
        assert repr(ck.objects) == f"<ckptfs.Objects {str(path)!r}: 0 objects>"
        objects = ck.objects
    assert repr(objects) == f"<ckptfs.Objects {str(path)!r}: closed>"
    fails(ckptfs.Error, "option 'dtype'", ckptfs.open, path, dtype="int4")
    fails(ckptfs.Error, "unknown option 'frob'", ckptfs.open, path, frob=1)
    fails(ckptfs.Error, "option 'cache': 'much' is not a size", ckptfs.open, path, cache="much")
    fails(ckptfs.Error, "option 'allow_missing' takes no value", ckptfs.open, path, allow_missing=1)
    with ckptfs.open(path, include=[], allow_missing=True, cache=1 << 20, weights=None,
                     index=pathlib.Path("one.index"), map_files=False, shard_size=0) as ck:
        assert "optim.step" in ck and os.path.exists("one.index")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        ckptfs.open(path, rename="useless").close()
    assert len(said) == 1 and "matches no FQN" in str(said[0].message), said


def test_errors(path):
    e = fails(ckptfs.Error, "open '/no/where'", ckptfs.open, "/no/where")
    assert e.errno == 2 and e.filename == "/no/where" and isinstance(e, FileNotFoundError)
    again = pickle.loads(pickle.dumps(e))  # it may be passed to another process
    assert type(again) is type(e) and str(again) == str(e) and again.filename == e.filename
    assert str(ckptfs.Error("text")) == "text"
    for code, builtin in ((errno.EACCES, PermissionError), (errno.EPERM, PermissionError),
                          (errno.EIO, OSError)):
        e = fails(ckptfs.Error, "why", ckptfs._libckpt._check, -1, ckptfs._libckpt._Err(code, b"why"), "what")
        assert isinstance(e, builtin) and e.errno == code and e.filename == "what", e
        assert isinstance(e, FileNotFoundError) is False
    ck = ckptfs.open(path)
    fails(KeyError, "no tensor 'x'", lambda: ck["x"])
    fails(KeyError, "no object 'x'", lambda: ck.objects["x"])
    for group in ck, ck.model, ck.objects:
        for name in (5, None, b"model.n"):
            fails(TypeError, "a name is a str", group.get, name)
            assert name not in group
    # A text for C ends at a null byte.
    for function, words in ((ckptfs.open, {"path": path + "\0x"}), (ckptfs.open, {"path": path, "include": "*.n\0x"}),
                            (ckptfs.series, {"run": path + "\0x"}), (ck.read, {"path": "tensors/model.n\0x"}),
                            (ck.listdir, {"path": "tensors\0x"})):
        fails(ValueError, "null byte", function, **words)
    fails(ValueError, "null byte", ck.stat, "model.n\0x")
    with ckptfs.open(path) as other:  # equal to none but itself; their arrays are not compared
        assert ck == ck and ck != other and ck.model != ck and len({ck, ck.model, other, ck}) == 3
    for name in ck.model:  # the model's names find stored tensors, too
        assert name in ck and ck.tensor(name).shape == ck.model.tensor(name).shape, name
    for error, code, words, function, name in (
            (FileNotFoundError, 2, "tensors/x", ck.read, "tensors/x"),
            (FileNotFoundError, 2, "tensors/x", ck.listdir, "tensors/x"),
            (IsADirectoryError, 21, "'tensors': it is a directory", ck.read, "tensors"),
            (NotADirectoryError, 20, "", ck.listdir, "tensors/model.n")):
        e = fails(ckptfs.Error, words, function, name)
        assert isinstance(e, error) and e.errno == code and e.filename == name, e
    t = ck.tensor("model.n")
    assert repr(t) == "<ckptfs.Tensor 'model.n': int32 [3, 2]>" and len(t) == 3 and t.size == 6
    for index in (3, -4, (0, 0, 0), (..., ...)):
        fails(IndexError, "", lambda: t[index])
    for index in (True, np.True_, 1.5, None, [0, 1], "x"):
        fails(TypeError, "", lambda: t[index])
    whole = t[...]
    for index in (slice(None, None, 1 << 64), slice(None, None, -(1 << 70)), slice(1 << 70), (..., slice(0, 1, 1 << 65))):
        assert (t[index] == whole[index]).all() and t[index].shape == whole[index].shape, index
    fails(ValueError, "room for [2, 3]", t.read_into, np.zeros((2, 3), "i4"))
    fails(ValueError, "of 8 bytes", t.read_into, np.zeros((3, 2), "i8"))
    fails(TypeError, "big-endian", t.read_into, np.zeros((3, 2), ">i4"))
    fixed = np.zeros((3, 2), "i4")
    fixed.flags.writeable = False
    fails(ValueError, "read-only", t.read_into, fixed)
    with ckptfs.open(os.path.join(os.environ["DATA"], "dtypes/ckpt")) as wide:
        of_8 = next(wide.tensor(name) for name in wide if wide.tensor(name).itemsize == 8)
        fails(TypeError, "of Python objects", of_8.read_into, np.zeros(of_8.shape, object))
    assert (t.__array__() == t[...]).all() and (t.__array__("f8", copy=True) == t[...]).all()
    fails(ValueError, "a copy", t.__array__, copy=False)
    fails(TypeError, "is bfloat16, which NumPy does not have without ml_dtypes: take .torch() or "
          ".bits(), or open the checkpoint with dtype='fp32'", lambda: ck["model.layers.0.norm"])
    with ckptfs.open(os.path.join(os.environ["DATA"], "dtypes/ckpt"), dtype="fp32") as types_:
        e = fails(TypeError, "is float8_e4m3fn, which NumPy does not have without ml_dtypes: take "
                  ".torch() or .bits()", lambda: types_["float8_e4m3fn"])
        assert "fp32" not in str(e) and types_["bfloat16"].dtype == np.float32
    ck.close()
    ck.close()
    fails(ValueError, "closed", lambda: t[...])
    fails(ValueError, "closed", lambda: list(ck))
    fails(ValueError, "closed", ck.__enter__)
    with ckptfs.safe_open(path, framework="np") as f:
        pass
    fails(ValueError, "closed", f.__enter__)


def test_items(_):
    """A tensor of one element is a Python value, as in NumPy."""
    with ckptfs.open(os.path.join(os.environ["DATA"], "dtypes/ckpt")) as ck:
        tried = 0
        for name in ck:
            t = ck.tensor(name)
            if t.size != 1:
                for function in t.item, t.__bool__, t.__float__:
                    fails(ValueError, f"'{name}' has {t.size} elements; only one alone is a Python value", function)
            elif t.dtype in ckptfs._tensor._NUMPY:
                whole = t[...]
                assert repr(t.item()) == repr(whole.item()) and bool(t) is bool(whole) and complex(t) == complex(whole), name
                if whole.dtype.kind != "c":
                    assert float(t) == float(whole) and int(t) == int(whole), name
                tried += 1
            else:
                fails(TypeError, "which NumPy does not have", t.item)
        assert tried > 10, tried
        t = ck.tensor("float32.scalar")
        assert isinstance(t[()], np.ndarray) and isinstance(ck.tensor("float32")[(0,) * ck.tensor("float32").ndim], np.ndarray)
    with ckptfs.open(os.path.join(os.environ["DATA"], "shapes/ckpt")) as ck:
        t = ck.tensor("s_1x1x1")
        assert t.item() == t[0, 0, 0].item() == float(t)


def test_buffers(path):
    """Buffers that are neither arrays nor tensors get bytes; anything else is refused with a sentence."""
    with ckptfs.open(path) as ck:
        t = ck.tensor("model.n")
        for index in (..., 1, np.s_[::-2, 1:], np.s_[0, 0], np.s_[3:]):
            want = t[index].tobytes()
            rooms = [bytearray(len(want)), memoryview(bytearray(2 * len(want)))[len(want):], array.array("i", want),
                     memoryview(np.zeros((len(want) // 4, 1), ">f4")), (ctypes.c_uint16 * (len(want) // 2))()]
            if want:
                rooms.append(mmap.mmap(-1, len(want)))
            for room in rooms:
                t.read_into(room, index)
                assert memoryview(room).tobytes() == want, (index, room)
        room = bytearray(24)
        t.read_into(room)
        room += b"x"  # it may be resized again
        fails(ValueError, "room for 25 bytes, but there are 24: [3, 2] elements of 4", t.read_into, room)
        fails(ValueError, "room for 0 bytes, but there are 24", t.read_into, bytearray())
        fails(ValueError, "(bytes) is read-only", t.read_into, bytes(24))
        fails(ValueError, "(float32) is read-only", t.read_into, np.float32(1))
        fails(ValueError, "(memoryview) is not contiguous", t.read_into, memoryview(bytearray(48))[::2])
        for other in [0] * 6, None, "x" * 24, 5:
            fails(TypeError, f"can be read into, and not {type(other).__name__}", t.read_into, other)
    with ckptfs.open(os.path.join(os.environ["DATA"], "dtypes/ckpt")) as ck:
        for t in map(ck.tensor, ck):
            room = bytearray(t.nbytes)
            t.read_into(room)
            assert room == t.bits().tobytes(), t


def shares_memory(shape, strides, itemsize):
    """Whether elements share a byte, by looking at each."""
    at = sum((n * s for n, s in zip(np.indices(shape), strides)), np.zeros(shape, int)).ravel()
    return len(np.unique(at[:, None] + np.arange(itemsize))) < at.size * itemsize


def test_overlaps(path):
    """Memory that several elements share is refused, whatever its strides, and no other."""
    with ckptfs.open(path) as ck:
        t = ck.tensor("model.n")
        whole, room = t[...], np.zeros(64, "i4")
        for strides in (0, 4), (4, 0), (4, 4), (8, 3), (0, 0), (8, 12), (8, 4), (4, 12), (20, 4), (-8, -4), (-8, 12), (4, -4):
            view = np.lib.stride_tricks.as_strided(room[32:], t.shape, strides)
            room[...] = -1
            if shares_memory(t.shape, strides, 4):
                fails(ValueError, "share memory", t.read_into, view)
                assert (room == -1).all()
            else:
                t.read_into(view)
                assert (view == whole).all() and np.sum(room != -1) == whole.size
        # Large tensors are read in parts, which alone do not overlap.
        big = types.SimpleNamespace(shape=(4, 1 << 20), itemsize=4, name="big", _room=functools.partial(ckptfs.Tensor._room, t),
                                    read_into=lambda out, index: None)
        ckptfs._load.PIECE = 1 << 20
        box = tuple(slice(0, n) for n in big.shape)
        shared = np.lib.stride_tricks.as_strided(np.zeros(big.shape[1:], "i4"), big.shape, (0, 4))
        fails(ValueError, "share memory", ckptfs._load.read_boxes, [(big, shared, box)])
        ckptfs._load.read_boxes([(big, np.zeros(big.shape, "i4"), box)])
    seen, r = set(), random.Random(path)
    for _ in range(4000):
        shape = [r.randrange(5) if r.random() < 0.1 else r.randrange(1, 5) for _ in range(r.randrange(5))]
        itemsize = r.choice([1, 2, 4, 8, 16])
        strides = [r.choice([-1, 1]) * r.choice([itemsize * r.randrange(20), r.randrange(40)]) for _ in shape]
        want = shares_memory(shape, strides, itemsize)
        assert ckptfs._tensor._overlap(shape, strides, itemsize) is want, (shape, strides, itemsize)
        seen.add((len(shape), want))
    assert len(seen) == 9, seen  # a single element overlaps with nothing
    # Neither has as many steps as elements.
    n = 1 << 10
    assert not ckptfs._tensor._overlap((n,) * 4, (n ** 3, 1, n, n * n), 1)
    assert not ckptfs._tensor._overlap((n, n, 2), (2 * n + 2, 2 * n, 1), 1)


def test_values(path):
    """The values of objects, without unpickling; path is not used."""
    del path
    with ckptfs.open(os.path.join(os.environ["DATA"], "plain/ckpt")) as ck:
        o = ck.objects["betas"]
        assert o.value == [0.9, 0.95] and ck.objects["name"].value == "run-a" and ck.objects["lr"].value == 0.0003
        assert isinstance(o, bytes) and o[:2] == b"PK" and o.name == "betas"
    assert math.isnan(o_of('{"__class__": "builtins.float", "value": "nan"}'))
    assert o_of('[{"__class__": "builtins.float", "value": "-inf"}]') == [-math.inf]
    assert o_of('{"a": {"__class__": "builtins.bytes", "hex": "00ff"}}') == {"a": b"\0\xff"}
    assert o_of('{"__class__": "builtins.set", "__items__": [1, [2, [3]]]}') == {1, (2, (3,))}
    assert o_of('{"__class__": "builtins.frozenset", "__items__": []}') == frozenset()
    assert o_of('{"__class__": "builtins.dict", "__items__": [["1", 2], [1, 3], [[4], 5]]}') == {
        "1": 2, 1: 3, (4,): 5}
    for same in ('{"__class__": "builtins.set", "__items__": [{}]}', '{"__class__": "m.C", "x": 1}',
                 '{"__class__": "builtins.dict", "__error__": "why"}', '{"__class__": "builtins.float"}'):
        assert o_of(same) == json.loads(same)


def o_of(text):
    return json.loads(text, object_hook=ckptfs._checkpoint._decoded)


def test_ml_dtypes(path):
    """If ml_dtypes is installed, its types are used; here a fake module stands for it."""
    fake = types.ModuleType("ml_dtypes")
    fake.bfloat16 = np.dtype("V2")
    sys.modules["ml_dtypes"] = fake
    with ckptfs.open(path) as ck:
        t = ck.tensor("model.layers.0.norm")
        assert t[...].dtype == np.dtype("V2") and t[...].tobytes() == t.bits().tobytes()


def test_files(path):
    with ckptfs.open(path) as ck:
        want = out("cat", path, "safetensors/model.safetensors")
        f = ck.open_file("safetensors/model.safetensors")
        assert f.size == len(want) and f.read(8) == want[:8] and f.tell() == 8
        assert f.seek(-5, os.SEEK_END) == len(want) - 5 and f.read(100) == want[-5:]
        assert f.read(1) == b"" and f.seek(1000, os.SEEK_END) and f.read() == b""
        assert f.seek(3) == 3 and io.BufferedReader(f).read() == want[3:]
        for call in (f.tell, lambda: f.seek(0), f.read, lambda: f.pread_into(bytearray(1), 0),
                     lambda: f.write(b"")):  # the BufferedReader has closed it
            fails(ValueError, "closed", call)
        whole = ck.read("npy/model.n.npy")
        assert (np.load(io.BytesIO(whole)) == ck["model.n"]).all()
        assert {"tensors", "npy", "objects", "safetensors"} <= set(ck.listdir())
        with ck.open_file("tensors/model.n") as f:
            # No offset leads back to the beginning, nor to the end.
            for at in (1 << 63, 1 << 64, (1 << 64) + 4):
                assert f.pread_into(bytearray(4), at) == 0 and f.seek(at) == at and f.read(4) == b"" and f.tell() == at
            for at in (-1, -(1 << 64)):
                fails(ValueError, f"read at {at}", f.pread_into, bytearray(4), at)
                fails(ValueError, f"seek to {at}", f.seek, at)
            fails(ValueError, "whence=3", f.seek, 0, 3)
            fails(TypeError, "", f.seek, 0.5)
            assert f.seek(0) == 0 and f.readinto(np.empty((0, 2), "f4")) == 0
            for call in (f.fileno, f.truncate, lambda: f.write(b"x"), lambda: f.writelines([b"x"])):
                fails(io.UnsupportedOperation, "", call)
        g = ck.open_file("tensors/model.n")
    assert g.read() == out("cat", path, "tensors/model.n")  # an open file keeps the checkpoint open
    g.close()


def header_of(data):
    """The names, types, shapes and bytes in a safetensors file."""
    size = int.from_bytes(data[:8], "little")
    about = json.loads(data[8:8 + size])
    metadata = about.pop("__metadata__", None)
    return metadata, {name: (t["dtype"], t["shape"], data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]])
                      for name, t in about.items()}


def check_loading(path):
    """safe_open(), load_file() and state_dict() against the safetensors file of the tree."""
    r = random.Random(path)
    with ckptfs.open(path) as ck:
        if not len(ck.model):
            return
        with ckptfs.open(path, assets=".") as with_config:
            metadata, want = header_of(with_config.read("hf/model.safetensors"))
        numpy_has = all(t.dtype in ckptfs._tensor._NUMPY for t in map(ck.model.tensor, ck.model))
        order = ck.in_file_order()
        assert sorted(order) == sorted(ck) and len(order) == len(ck)
        places = []
        for name in order if len(order) < 10 else []:
            shown = json.loads(out("info", "--json", path, name))["chunks"]
            places += [(shown[0]["file"], shown[0]["offset"])] if shown else []
        assert places == sorted(places), places
    with ckptfs.safe_open(path, framework="np") as f:
        assert f.metadata() == metadata and set(f.keys()) == set(f.offset_keys())
        assert set(want) <= set(f.keys()) and not any(
            f.get_slice(name)._tensor.dtype in ckptfs._load._SAFETENSORS for name in set(f.keys()) - set(want))
        for name, (dtype, shape, data) in want.items():
            part = f.get_slice(name)
            assert (part.get_dtype(), part.get_shape()) == (dtype, shape), name
            if part._tensor.dtype not in ckptfs._tensor._NUMPY:
                fails(TypeError, "which NumPy does not have", f.get_tensor, name)
                continue
            whole = f.get_tensor(name)
            assert whole.tobytes() == data and list(whole.shape) == shape
            for _ in range(3):
                index = random_index(r, whole.shape)
                assert np.array_equal(part[index], whole[index], equal_nan=whole.dtype.kind in "fc"), (name, index)
        fails(KeyError, "no tensor 'no such name'", f.get_tensor, "no such name")
    if numpy_has:
        for threads in 0, 1, 5:
            loaded = ckptfs.load_file(path, framework="np", threads=threads)
            assert {n: a.tobytes() for n, a in loaded.items() if n in want} == {n: data for n, (_, _, data) in want.items()}


def test_loading(path):
    pathlib.Path("config.json").write_text("{}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check_loading(path)
    except ckptfs.Error as e:
        assert e.errno and run("check", path).returncode, e  # test_fixture compares the message


def test_mapped(path):
    """A tensor that lies whole in a file is mapped; writing to either side does not change the other."""
    import ctypes

    def mapped(array):
        while isinstance(array, np.ndarray):
            array = array.base
        return isinstance(getattr(array, "obj", array), ctypes.Array)

    with ckptfs.open(path) as ck:
        numbers = [n for n in ck.model if ck.model.tensor(n).dtype in ckptfs._tensor._NUMPY]
        whole = {name: ck.model[name] for name in numbers}
        assert not any(mapped(a) for a in ck.model.state_dict(framework="np").values())
        got = ck.model.state_dict(framework="np", mmap=True)
    assert not any(mapped(a) for a in ckptfs.load_file(path, framework="np", mmap=False).values())
    for have in got, ckptfs.load_file(path, framework="np"):  # mappings survive the checkpoint's close()
        assert all(mapped(have[n]) for n in numbers if have[n].size), numbers
        assert all(np.array_equal(have[n], whole[n], equal_nan=whole[n].dtype.kind in "fc") for n in numbers)
    with ckptfs.safe_open(path, framework="np") as f:
        again = {n: f.get_tensor(n) for n in numbers}
        assert all(mapped(again[n]) for n in numbers if again[n].size) and not mapped(f.get_slice(numbers[0])[...])
    with ckptfs.safe_open(path, framework="np", mmap=False) as f:
        assert not mapped(f.get_tensor(numbers[0]))
    for n in numbers:
        got[n].view(np.uint8)[...] = 0xa5
    assert all(again[n].tobytes() == whole[n].tobytes() == ckptfs.load_file(path, framework="np")[n].tobytes()
               for n in numbers)
    # Converted tensors and parts of ranks are read.
    assert not any(mapped(a) for a in ckptfs.load_file(path, framework="np", dtype="fp16").values()
                   if a.dtype == np.float16)
    # A file that has changed since it was opened is an error, not wrong bytes.
    with ckptfs.open(path) as ck:
        for name in os.listdir(path):
            if name.endswith(".safetensors"):
                with open(f"{path}/{name}", "r+b") as f:
                    f.seek(-1, 2)
                    f.write(b"x")
        fails(ckptfs.Error, "changed", ck.model.state_dict, framework="np", mmap=True)


def test_many_mapped(path, n):
    """Tensors in more files than may be open, or than are mapped; a file is unmapped with its last tensor."""
    n = int(n)

    def maps():
        return pathlib.Path("/proc/self/maps").read_text().count(".safetensors\n")

    resource.setrlimit(resource.RLIMIT_NOFILE, (n // 2, n // 2))
    for ckptfs._load.MAPS in n // 4, 4 * n:
        got = ckptfs.load_file(path, framework="np")
        assert maps() == min(n, ckptfs._load.MAPS), maps()
        assert len(os.listdir("/proc/self/fd")) < 20
        assert {name: list(a) for name, a in got.items()} == {f"t{i}": [i, -i] for i in range(n)}
        del got
        assert maps() == 0, maps()


def test_state_dict(path):
    """Large tensors are read in parts."""
    with ckptfs.open(path) as ck:
        whole = {name: ck.tensor(name).bits() for name in ck}
        for ckptfs._load.PIECE in 1 << 10, 32 << 20:
            got = ck.state_dict(framework="np", threads=3)
            assert list(got) == list(ck), got
            assert all(got[name].tobytes() == whole[name].tobytes() for name in whole)
        first = next(iter(ck))
        assert list(ck.state_dict(first[:1], framework="np")) == [n[1:] for n in ck if n[0] == first[0]]
        fails(KeyError, "no tensor's name begins with 'no.'", ck.state_dict, "no.")
        fails(ValueError, "framework='tf' is neither", ck.state_dict, framework="tf")
        fails(ValueError, "cannot be on 'cuda'", ck.state_dict, device="cuda", framework="np")
        t = ck.tensor(first)
        fails(BufferError, "is not in memory", t.__dlpack__, copy=False)
        fails(BufferError, "that of the CPU only", t.__dlpack__, dl_device=(2, 0))
        assert np.from_dlpack(t).tobytes() == whole[first].tobytes() == t.__buffer__(0).tobytes()

        def failing(*_):
            raise MemoryError("of a thread")
        tensors = list(map(ck.tensor, ck))
        ckptfs._load.PIECE = 1 << 10
        tensors[-1].read_into = failing
        rooms = [np.empty(t.shape, t.numpy_dtype()) for t in tensors]
        fails(MemoryError, "of a thread", ckptfs._load.fill, zip(tensors, rooms), 2)


def test_pickled(path):
    """Pickled, as for the workers of a DataLoader, a checkpoint is opened again with the same options."""
    with ckptfs.open(path, include="w", index=":memory:") as ck:
        want = ck.tensor("w").bits()
        for again in pickle.loads(pickle.dumps(ck)), pickle.loads(pickle.dumps(ck.model)):
            assert list(again) == ["w"] and np.array_equal(again.tensor("w").bits(), want)
        tensors = pickle.loads(pickle.dumps([ck.tensor("w"), ck.model.tensor("w")]))
        assert [np.array_equal(t.bits(), want) for t in tensors] == [True, True]
        assert tensors[0]._group._checkpoint is tensors[1]._group._checkpoint
        code = "import pickle, sys; t = pickle.load(sys.stdin.buffer); print(t.bits().sum())"
        said = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(ck.tensor("w")), stdout=subprocess.PIPE, check=True)
        assert int(said.stdout) == want.sum()
        with ck.open_file("tensors/w") as f:
            for function in pickle.dumps, copy.copy, copy.deepcopy:
                fails(TypeError, "a File cannot be pickled or copied: open 'tensors/w' again", function, f)
    fails(ValueError, "is closed", pickle.dumps, ck)


def test_threads(path):
    """Many threads read while the checkpoint is closed."""
    with ckptfs.open(path) as ck:
        whole = ck.tensor("w").bits()
    for closing in (False, True):
        ck = ckptfs.open(path)
        t, bad, done = ck.tensor("w"), [], []

        def work(seed):
            r = random.Random(seed)
            try:
                for _ in range(30):
                    index = random_index(r, t.shape)
                    if not np.array_equal(t.bits(index), whole[index]):
                        bad.append(index)
            except ValueError as e:
                done.append(str(e))
        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for x in threads:
            x.start()
        if closing:
            ck.close()
        for x in threads:
            x.join()
        assert not bad, bad
        assert closing or not done, done
        ck.close()
    check_closing(path)


class Slow:
    """The library, whose reads of files wait until they may go on."""

    def __init__(self, lib):
        self._lib = lib
        self.reading, self.go_on = threading.Event(), threading.Event()
        self.closed = 0

    def __getattr__(self, name):
        return getattr(self._lib, name)

    def ckpt_file_read(self, *args):
        self.reading.set()
        self.go_on.wait()
        return self._lib.ckpt_file_read(*args)

    def ckpt_file_close(self, f):
        self.closed += 1
        self._lib.ckpt_file_close(f)


def check_closing(path):
    """A file that several threads close while another reads it is closed once, after that read."""
    ck, buf, got = ckptfs.open(path), bytearray(100), []
    want = ck.read("tensors/w")[:100]
    ck._lib = lib = Slow(ck._lib)
    f = ck.open_file("tensors/w")
    reader = threading.Thread(target=lambda: got.append(f.pread_into(buf, 0)), daemon=True)
    reader.start()
    lib.reading.wait()
    closers = [threading.Thread(target=f.close) for _ in range(4)]
    for x in closers:
        x.start()
    for x in closers:
        x.join()
    fails(ValueError, "closed", f.pread_into, bytearray(1), 0)
    ck.close()
    assert f.closed and not lib.closed and ck._handle
    lib.go_on.set()
    reader.join()
    assert got == [100] and buf == want and lib.closed == 1 and not ck._handle, (got, lib.closed)
    f.close()
    assert lib.closed == 1


def test_structures():
    """Sizes and offsets of members, compared with those that a C program has printed."""
    from ckptfs import _storage

    have, lib = {}, ckptfs._libckpt
    for name, members in (("ckpt_err", lib._Err), ("ckpt_hooks", lib._Hooks),
                          ("ckpt_totals", lib._Totals), ("ckpt_tensor", lib._Tensor),
                          ("ckpt_object", lib._Object), ("ckpt_chunk", lib._Chunk),
                          ("ckpt_step", lib._Step), ("ckpt_stat", lib._Stat),
                          ("ckpt_slice", lib._Slice), ("ckpt_verdict", lib._Verdict),
                          ("ckpt_run_entry", lib._RunEntry),
                          ("ckpt_hist", lib._Hist), ("ckpt_values", lib._Numbers),
                          ("ckpt_values_item", lib._ValuesItem), ("ckpt_values_scan", lib._ValuesScan),
                          ("ckpt_series_item", lib._SeriesItem), ("ckpt_series", lib._Series),
                          ("ckpt_fault", lib._Fault), ("ckpt_values_check", lib._ValuesCheck),
                          ("ckpt_meta_index", _storage._Index), ("ckpt_chunk_meta", _storage._ChunkMeta),
                          ("ckpt_tensor_props", _storage._Props), ("ckpt_tensor_meta", _storage._TensorMeta),
                          ("ckpt_meta_entry", _storage._MetaEntry), ("ckpt_path_step", _storage._PathStep),
                          ("ckpt_fqn_path", _storage._FqnPath), ("ckpt_storage_info", _storage._StorageInfo),
                          ("ckpt_write_result", _storage._WriteResult), ("ckpt_metadata", _storage._Metadata),
                          ("ckpt_write_item", _storage._WriteItem), ("ckpt_save_plan", _storage._SavePlan),
                          ("ckpt_storage_ranks", _storage._StorageRanks),
                          ("ckpt_write_results", _storage._WriteResults),
                          ("ckpt_storage_writer", _storage._StorageWriter), ("ckpt_data", _storage._Data),
                          ("ckpt_save_planner_ops", _storage._SavePlannerOps),
                          ("ckpt_save_planner", _storage._SavePlanner), ("ckpt_save_opts", _storage._SaveOpts)):
        have[name] = {"": ctypes.sizeof(members)}
        for field, kind in members._fields_:
            have[name][field] = getattr(members, field).offset
    if sys.argv[2:]:
        assert have == json.loads(sys.stdin.read()), have
        return
    print("#include <ckptfs/ckpt_save.h>\n#include <ckptfs/ckpt_values.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void)\n{")
    lines = []
    for name, fields in have.items():
        one = [f'\\"{f}\\": %zu' for f in fields]
        values = [f"offsetof(struct {name}, {f})" if f else f"sizeof(struct {name})" for f in fields]
        lines.append(f'printf("\\"{name}\\": {{{", ".join(one)}}}", {", ".join(values)});')
    print('puts("{");' + 'puts(",");'.join(lines) + 'puts("}");\nreturn 0;\n}')


globals()[f"test_{sys.argv[1]}"](*([] if sys.argv[1] == "structures" else sys.argv[2:]))
