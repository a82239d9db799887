#!/bin/bash
# Comparing checkpoints.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
long="memory_does_not_grow_with_tensors other_cuts_of_the_same_tensors_are_equal \
  objects_are_compared_by_value_where_their_bytes_differ"

# elements FORMAT NUMBER...: their bytes, by struct.pack
elements() { python3 -c 'import struct, sys
v = [float(x) if sys.argv[1] in "efd" else int(x, 0) for x in sys.argv[2:]]
sys.stdout.buffer.write(struct.pack("<%d%s" % (len(v), sys.argv[1]), *v))' "$@"; }

# Two checkpoints, a and b, that differ in every way.
every_way() {
  elements f 1 2 3 4 5 6 7 8 >u
  elements f 1 2 3 4.25 5 nan 7 9 >v
  elements H 0x3f80 0x4000 0x4040 0x4080 0x40a0 0x40c0 0x40e0 0x4110 >w
  make_dcp a layers.2.same 2x4 1x2:u layers.10.same 2x4 2x1:u x 2x4 2x2:u gone 2x4 1x1:u \
    flat 2x4 1x1:u narrow 2x4 1x1:u
  make_dcp b layers.2.same 2x4 2x4:u layers.10.same 2x4 1x1:u x 2x4 1x4:v new 2x4 1x1:u \
    flat 4x2 1x1:u narrow 2x4:bfloat16 2x1:w
}

test_columns_are_counted_as_a_terminal_does() {
  make_dcp a plain 2 1 é.weight 2 1 日本語.重み 2 1
  make_dcp b plain 3 1 é.weight 3 1 日本語.重み 3 1
  status_of 1 ckptfs diff a b
  diff - out <<'END'
shape       plain        float32 [2] | float32 [3]
shape       é.weight     float32 [2] | float32 [3]
shape       日本語.重み  float32 [2] | float32 [3]
0 equal, 3 differ, 0 only in A, 0 only in B
END
}

test_every_kind_of_difference_has_its_line() {
  every_way
  status_of 1 ckptfs diff a b
  diff - out <<'END'
shape       flat            float32 [2,4] | float32 [4,2]
only in A   gone            float32 [2,4]
dtype       narrow          float32 [2,4] | bfloat16 [2,4]
only in B   new             float32 [2,4]
differs     x               float32 [2,4]  first at [0,3]
2 equal, 3 differ, 1 only in A, 1 only in B
END
  [[ ! -s err ]]
  status_of 1 ckptfs diff --values a b
  diff - out <<'END'
shape       flat            float32 [2,4] | float32 [4,2]
only in A   gone            float32 [2,4]
dtype       narrow          float32 [2,4] | bfloat16 [2,4]  1 of 8 elements (12.5 %), max 1, mean 0.125
only in B   new             float32 [2,4]
differs     x               float32 [2,4]  3 of 8 elements (37.5 %), max 1, mean 0.178571, NaN 0 | 1, first at [0,3]
2 equal, 3 differ, 1 only in A, 1 only in B
END
}

test_json_says_the_same() {
  every_way
  status_of 1 ckptfs diff --values --json a b
  python3 - out <<'END'
import json, sys
r = json.load(open(sys.argv[1]))
assert (r["a"], r["b"]) == ("a", "b")
t = {x["fqn"]: x for x in r["tensors"]}
assert [x["fqn"] for x in r["tensors"]] == ["flat", "gone", "narrow", "new", "x"]
assert {k: v["result"] for k, v in t.items()} == {
    "flat": "shape", "gone": "only_a", "narrow": "dtype", "new": "only_b", "x": "differs"}
side = {"type": "tensor", "dtype": "float32", "shape": [2, 4], "bytes": 32}
assert t["gone"]["a"] == side and "b" not in t["gone"]
assert t["new"]["b"] == side and "a" not in t["new"]
assert t["narrow"]["b"] == {"type": "tensor", "dtype": "bfloat16", "shape": [2, 4], "bytes": 16}
assert "values" not in t["flat"] and t["narrow"]["values"]["changed"] == 1
assert t["x"]["first"] == 3 and t["x"]["values"] == {
    "elements": 8, "changed": 3, "nan_a": 0, "nan_b": 1, "infinite": 0, "finite": 7,
    "max_abs": 1.0, "mean_abs": 1.25 / 7}
assert r["summary"] == {"equal": 2, "only_a": 1, "only_b": 1, "kind": 0, "shape": 1, "dtype": 1,
                        "differs": 1, "unreadable": 0}
END
  status_of 1 ckptfs diff --json a b
  python3 -c 'import json; assert "values" not in json.load(open("out"))["tensors"][4]'
  status_of 0 ckptfs diff --json a a
  python3 -c 'import json; r = json.load(open("out")); assert r["tensors"] == [] and r["summary"]["equal"] == 6'
}

test_other_cuts_of_the_same_tensors_are_equal() {
  make_dcp c w 2048x4096 3x1:"$(big)/w.bin" v 1023x777 1x5:"$(big)/v.bin"
  status_of 0 ckptfs diff "$(big)/ckpt" c
  diff out - <<<'2 equal, 0 differ, 0 only in A, 0 only in B'
  status_of 0 ckptfs diff --values --jobs=3 c "$(big)/ckpt"
  diff out - <<<'2 equal, 0 differ, 0 only in A, 0 only in B'
}

# Checkpoints from torch, with and without compression, in one file or many.
cases_fixtures_are_equal_to_themselves() {
  local d
  for d in "$DATA"/*/expected.json; do
    grep -qE '"format": *"(dcp(-ranklocal)?|hf)"' "$d" && basename "$(dirname "$d")"
  done
}
test_fixtures_are_equal_to_themselves() {
  local rc=0
  ckptfs diff --values "$(fixture "$1")/ckpt" "$(fixture "$1")/ckpt" >out 2>err || rc=$?
  if grep -q unreadable out; then
    ((rc == 2)) || fail "status $rc: $(cat out err)"
    grep -q ' 0 differ, 0 only in A, 0 only in B, ' out
    status_of 1 ckptfs check "$(fixture "$1")/ckpt"
  else
    ((rc == 0)) || fail "status $rc: $(cat out err)"
    grep -q '^[0-9]* equal, 0 differ, 0 only in A, 0 only in B$' out
  fi
}

# The same state as other versions of torch, other item orders and other ranks wrote it.
cases_other_saves_of_the_same_state_are_equal() {
  printf '%s\n' 'mp4_fsdp2_adamw old_23 68' 'mp4_lowest_rank mp4_replicated 22' 'items_26 layouts 35' \
    'mp4_dtensor py311_dtensor 26' 'plain proto2 10'
}
test_other_saves_of_the_same_state_are_equal() {
  need_fixture "$1"
  need_fixture "$2"
  status_of 0 ckptfs diff --values "$(fixture "$1")/ckpt" "$(fixture "$2")/ckpt"
  diff out - <<<"$3 equal, 0 differ, 0 only in A, 0 only in B"
}

test_objects_are_compared_by_their_bytes() {
  local at
  need_fixture plain
  copy_of plain c
  at=$(grep -obUaF run-a c/__0_0.distcp) # the string in the object `name`
  printf Z | dd of=c/__0_0.distcp bs=1 seek="${at%%:*}" conv=notrunc status=none
  at=$(ckptfs cat c objects/name | grep -obUaF Zun-a)
  status_of 1 ckptfs diff "$(fixture plain)/ckpt" c
  grep -qE "^differs     name +object  first at byte ${at%%:*}$" out || fail "$(cat out)"
  status_of 1 ckptfs diff "$(fixture plain)/ckpt" c name step
  grep -q '^1 equal, 1 differ' out || fail "$(cat out)"
  status_of 1 ckptfs diff --json "$(fixture plain)/ckpt" c name
  python3 - out <<'END'
import json, sys
t, = json.load(open(sys.argv[1]))["tensors"]
assert t["a"]["type"] == t["b"]["type"] == "object" and t["a"]["dtype"] is None, t
END
}

# Objects that reshard has put into another form: a bare pickle instead of an archive with one, JSON text as a value.
cases_objects_in_another_form_are_equal() { printf '%s\n' bytes_items plain mp4_fsdp2_adamw torchsave_zip/ckpt/model.pt; }
test_objects_in_another_form_are_equal() {
  local from=$DATA/$1
  need_fixture "${1%%/*}"
  [[ -f $from ]] || from=$from/ckpt
  ckptfs reshard -q --format=hyperparallel --index=:memory: "$from" hp
  status_of 0 ckptfs diff --index=:memory: "$from" hp
  grep -qE '^[1-9][0-9]* equal, 0 differ, 0 only in A, 0 only in B$' out || fail "$(cat out)"
  ckptfs reshard -q --format=dcp --index=:memory: hp back
  status_of 0 ckptfs diff --index=:memory: hp back
  status_of 0 ckptfs diff --index=:memory: "$from" back
}

# with_object DIR PROTOCOL EXPRESSION: a HyperParallel checkpoint in which the object `given` is its pickle
with_object() {
  python3 -c 'import pickle, sys
sys.stdout.buffer.write(pickle.dumps(eval(sys.argv[2]), int(sys.argv[1])))' "$2" "$3" >object
  rm -rf "$1" wanted
  python3 "$HERE/make_hp.py" "$1" wanted 7 A collective object
}

test_objects_are_compared_by_value_where_their_bytes_differ() {
  local p
  with_object a 2 '{"lr": 0.5, "betas": (0.9, 0.95), "raw": b"\xff\0", "big": 2**70, "n": [1, None, True]}'
  for p in 2 3 4 5; do
    with_object b $p '{"n": [1, None, True], "lr": 0.5, "betas": (0.9, 0.95), "raw": b"\xff\0", "big": 2**70}'
    cmp -s <(ckptfs cat a objects/given) <(ckptfs cat b objects/given) && fail "the same bytes"
    status_of 0 ckptfs diff a b given
    is '1 equal, 0 differ, 0 only in A, 0 only in B' "$(cat out)"
  done
  with_object b 4 '{"lr": 0.5, "betas": (0.9, 0.95), "raw": b"\xff\1", "big": 2**70, "n": [1, None, True]}'
  status_of 1 ckptfs diff a b given
  grep -qE '^differs     given +object  first at byte 1$' out || fail "$(cat out)"
  with_object a 2 '{1, 2}' # a set, which has no order
  with_object b 4 '{1, 2}'
  status_of 1 ckptfs diff a b given
  grep -qE '^differs     given +object  first at byte 1, but their values may be the same: sets ' out || fail "$(cat out)"
  status_of 1 ckptfs diff --json a b given
  python3 -c 'import json; assert json.load(open("out"))["tensors"][0]["unknown"].startswith("sets ")'
  with_object b 4 'bytes(17 << 20)' # more than diff takes into memory
  status_of 1 ckptfs diff a b given
  grep -q 'may be the same: more than 16 MiB are compared by bytes$' out || fail "$(cat out)"
}

test_odd_names_are_shown_and_parsed() {
  need_fixture weird_fqns
  status_of 1 ckptfs diff "$(fixture weird_fqns)/ckpt" "$(fixture plain)/ckpt"
  LC_ALL=C grep -qP '[\x00-\x09\x0b-\x1f\x7f]' out && fail "control bytes"
  cp out text
  status_of 1 ckptfs diff --json "$(fixture weird_fqns)/ckpt" "$(fixture plain)/ckpt"
  python3 - out text "$(fixture weird_fqns)/expected.json" <<'END'
import json, sys
r, want = json.load(open(sys.argv[1])), json.load(open(sys.argv[3]))
names = {t["fqn"] for t in r["tensors"] if t["result"] == "only_a"}
assert names == set(want["tensors"]) | set(want["bytes"]), names
assert open(sys.argv[2], "rb").read().count(b"\n") == len(r["tensors"]) + 1
END
}

test_globs_and_words_choose() {
  every_way
  status_of 0 ckptfs diff a b '*.same'
  diff out - <<<'2 equal, 0 differ, 0 only in A, 0 only in B'
  status_of 0 ckptfs diff a b --include='*.same'
  status_of 1 ckptfs diff a b 'new' 'x'
  [[ $(wc -l <out) == 3 ]]
  status_of 1 ckptfs diff a b -o exclude=x,index=:memory:
  grep -q '^x' out && fail "x is excluded"
  status_of 2 ckptfs diff a b 'typo*' 'other'
  grep -q "^ckptfs: diff: no FQN on either side matches 'typo\*' or another glob$" err || fail "$(cat err)"
}

test_bad_usage_is_refused() {
  every_way
  refused 'usage: ckptfs diff A B' ckptfs diff a
  refused "index.*:memory:" ckptfs diff a b --index=i.sqlite
  [[ ! -e i.sqlite ]]
  refused "at most 64" ckptfs diff a b --jobs=1000
  refused "not a whole number" ckptfs diff a b --jobs=many
  refused "nowhere" ckptfs diff a nowhere
}

test_incomplete_ones_are_told_and_the_rest_compared() {
  big_copy c
  rm c/__v_1.distcp
  status_of 2 ckptfs diff "$(big)/ckpt" c
  grep -qE "^unreadable  v +float32 \[1023,777\]  in B: .*__v_1\.distcp" out || fail "$(cat out)"
  grep -q '^1 equal, 0 differ, 0 only in A, 0 only in B, 1 unreadable$' out || fail "$(cat out)"
  diff err - <<<'ckptfs: diff: 1 of 2 names cannot be compared'
  status_of 2 ckptfs diff c "$(big)/ckpt" --json
  python3 - out <<'END'
import json, sys
t, = json.load(open(sys.argv[1]))["tensors"]
assert t["fqn"] == "v" and t["result"] == "unreadable" and t["fault_in"] == "a" and "__v_1" in t["fault"]
END
  need_fixture hole
  status_of 2 ckptfs diff "$(fixture hole)/ckpt" "$(fixture hole)/ckpt"
  [[ $(grep -c '^unreadable .* in A: no chunk holds' out) == 3 ]] || fail "$(cat out)"
}

# Random elements of every dtype, a few of them changed, against Python's struct and math.
cases_numbers_are_what_python_computes() {
  printf '%s\n' float64 float32 float16 bfloat16 int64 int32 uint8 bool complex64
}
test_numbers_are_what_python_computes() {
  cat >numbers.py <<'END'
import json, math, os, random, struct, sys

CODE = {"float64": "d", "float32": "f", "float16": "e", "int64": "q", "int32": "i", "uint8": "B", "bool": "?"}

def values(dtype, data):
    if dtype == "bfloat16":
        return [struct.unpack("<f", b"\0\0" + data[i : i + 2])[0] for i in range(0, len(data), 2)]
    if dtype == "complex64":
        v = struct.unpack("<%df" % (len(data) // 4), data)
        return [complex(*v[i : i + 2]) for i in range(0, len(v), 2)]
    code = CODE[dtype]
    return struct.unpack("<%d%s" % (len(data) // struct.calcsize(code), code), data)

def parts(x):
    return (x.real, x.imag) if isinstance(x, complex) else (x,)

def make(dtype, size, n, seed):
    r = random.Random(seed)
    a = bytearray(r.randbytes(n * size) if dtype != "bool" else bytes(r.choices((0, 1), k=n)))
    if dtype == "int64":
        a[: n * 4] = b"".join(struct.pack("<q", r.choice((1, 1 << 60)) + i) for i in range(n // 2))
    b = bytearray(a)
    for i in range(0, n * size, size):
        if r.random() < 0.1:
            b[i] ^= 1 if dtype == "bool" else r.randrange(1, 256)
    open("a.bin", "wb").write(a)
    open("b.bin", "wb").write(b)

def check(dtype, size):
    a, b = open("a.bin", "rb").read(), open("b.bin", "rb").read()
    x, y = values(dtype, a), values(dtype, b)
    want = {"elements": len(x), "changed": 0, "nan_a": 0, "nan_b": 0, "infinite": 0, "finite": 0}
    far = []
    for i, (p, q) in enumerate(zip(x, y)):
        changed = a[i * size : (i + 1) * size] != b[i * size : (i + 1) * size]
        nan = [any(math.isnan(v) for v in parts(z)) for z in (p, q)]
        finite = all(math.isfinite(v) for z in (p, q) for v in parts(z))
        want["changed"] += changed
        want["nan_a"] += nan[0]
        want["nan_b"] += nan[1]
        want["infinite"] += changed and not any(nan) and not finite
        want["finite"] += finite
        if finite:
            try:
                far.append(float(abs(p - q)))
            except OverflowError: # raised for complex numbers
                far.append(math.inf)
    t, = json.load(open("out"))["tensors"]
    got = t["values"]
    for k, v in want.items():
        assert got[k] == v, (k, got[k], v)
    first = next(i for i in range(len(a)) if a[i] != b[i]) // size
    assert t["first"] == first, (t["first"], first)
    for k, v in ("max_abs", max(far)), ("mean_abs", math.fsum(far) / len(far) if max(far) < 1e300 else None):
        if v is not None:
            assert math.isclose(got[k], v, rel_tol=1e-9), (k, got[k], v)

command, dtype, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
make(dtype, size, int(sys.argv[4]), int(sys.argv[5])) if command == "make" else check(dtype, size)
END
  local dtype=$1 size seed=${SEED:-$RANDOM}
  case $dtype in
    float64 | int64 | complex64) size=8 ;;
    float32 | int32) size=4 ;;
    uint8 | bool) size=1 ;;
    *) size=2 ;;
  esac
  echo "SEED=$seed"
  python3 numbers.py make "$dtype" $size 40000 "$seed"
  make_dcp a t "200x200:$dtype" 3x2:a.bin
  make_dcp b t "200x200:$dtype" 1x7:b.bin
  status_of 1 ckptfs diff --values --json a b
  python3 numbers.py check "$dtype" $size
}

# 96 MiB on each side, which is more memory than the command may use.
test_memory_does_not_grow_with_tensors() {
  make_dcp a w 4096x6144 4x1
  make_dcp b w 4096x6144 1x3:a.w.bin
  # No limit with sanitizers, which need memory of their own.
  python3 - "$CKPTFS" "$([[ ${VARIANT:-release} == release ]] && echo 40)" <<'END'
import resource, subprocess, sys
for words in [], ["--values"]:
    r = subprocess.run([sys.argv[1], "diff", "--jobs=4", "a", "b", *words], stdout=subprocess.PIPE)
    assert r.returncode == 0 and r.stdout.startswith(b"1 equal"), r
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
assert not sys.argv[2] or peak < int(sys.argv[2]), f"{peak} MiB"
print(peak)
END
}

test_write_errors_are_trouble_here_too() {
  local rc=0
  every_way
  ckptfs diff a b >/dev/full 2>err || rc=$?
  ((rc == 2)) || fail "status $rc"
  grep -q '^ckptfs: write to standard output: No space left' err || fail "$(cat err)"
}

run_suite "$@"
