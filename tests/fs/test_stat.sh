#!/bin/bash
# The stat command: which values tensors have.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
long="threads_and_cuts_do_not_matter histograms_do_not_depend_on_threads resume runs_as_numpy_says"

# Compares the numbers of `stat --json` with exact sums (fractions) that Python makes of the files of the mount.
compare_json() {
  python3 - "$@" <<'END'
import json, math, struct, sys
from fractions import Fraction
near = lambda a, b: abs(a - b) <= abs(b) / 2**50
out, mnt = sys.argv[1:3]
r = json.load(open(out))
codes = {"float32": "f", "float64": "d", "float16": "e", "int64": "q", "int32": "i", "uint8": "B", "bool": "?"}
n = 0
for t in r["tensors"]:
    if t["dtype"] not in codes:
        continue
    raw = open(f"{mnt}/tensors/{t['fqn']}", "rb").read()
    code = codes[t["dtype"]]
    v = [float(x) if code in "fde" else int(x) for x in struct.unpack(f"<{len(raw) // struct.calcsize(code)}{code}", raw)]
    good = [x for x in v if math.isfinite(x)]
    assert (t["elements"], t["finite"], t["zero"]) == (len(v), len(good), sum(x == 0 for x in v)), t
    assert t["nan"] == sum(math.isnan(x) for x in v) and t["inf"] == sum(math.isinf(x) for x in v), t
    where = [i for i, x in enumerate(v) if math.isnan(x)]
    assert t["first_nan"] == (where[0] if where else None), t
    where = [i for i, x in enumerate(v) if x == 0]
    assert t["first_zero"] == (where[0] if where else None), t
    if not good:
        assert t["min"] is t["mean"] is t["norm"] is None, t
        continue
    assert (t["min"], t["max"]) == (min(good), max(good)), t
    exact = [Fraction(x) for x in good]
    total, squares = sum(exact), sum(x * x for x in exact)
    assert near(Fraction(t["sum"]), total) and near(Fraction(t["mean"]), total / len(good)), t
    assert near(Fraction(t["norm"]) ** 2, squares), t
    assert near(Fraction(t["std"]) ** 2, squares / len(good) - (total / len(good)) ** 2), t
    n += 1
assert n == int(sys.argv[3]), n
assert r["all"]["elements"] == sum(t.get("elements", 0) for t in r["tensors"]), r["all"]
assert r["all"]["unreadable"] == 0
END
}

test_numbers_are_those_of_the_files() {
  mount_at m "$(zoo)"
  ckptfs stat --json "$(zoo)" >out
  compare_json out m 12
}

test_special_values() {
  python3 -c 'import struct, sys
sys.stdout.buffer.write(struct.pack("<8f", 1, float("nan"), -2, 0, float("inf"), -0.0, 1e-44, 3))' >v
  make_dcp ck v 2x4 2x2:v b 3x5 1x1
  mount_at m ck
  ckptfs stat --json ck >out
  compare_json out m 2
  ckptfs stat ck v >out
  diff - out <<'END'
dtype          elements          min          max         mean          std         norm      zeros    NaN    Inf  tensor
float32               8           -2            3     0.333333      1.49071      3.74166          2      1      1  v
END
}

# The output is the same for any number of threads, and however the checkpoint is cut.
test_threads_and_cuts_do_not_matter() {
  local jobs
  ckptfs stat --jobs=1 --json "$(big)/ckpt" >one
  for jobs in 2 3 7; do
    ckptfs stat --jobs=$jobs --json "$(big)/ckpt" | cmp - one
  done
  ckptfs reshard "$(big)/ckpt" other --ranks=5 -q
  ckptfs stat other >b
  ckptfs stat "$(big)/ckpt" | cmp - b
}

test_as_numpy_says() { /usr/bin/python3 "$HERE/stat_numbers.py" "$CKPTFS" "$T" "${TEST_SEED:-$RANDOM}"; }

# This holds for histograms, too; and the histogram of a group is the sum of its tensors'.
test_histograms_do_not_depend_on_threads() {
  local jobs
  ckptfs stat --jobs=1 --json --hist "$(big)/ckpt" >one
  for jobs in 2 5; do
    ckptfs stat --jobs=$jobs --json --hist "$(big)/ckpt" | cmp - one
  done
  ckptfs stat --json --hist=256 --by=layer "$(zoo)" >groups
  python3 -c 'import json
for g in json.load(open("groups"))["groups"]:
    small = sum(g["linear"]["counts"])
    assert small == sum(g["logarithmic"]["counts"]) <= g["finite"] and (small or not g["finite"]), g'
  refused "histograms of 2 bins: they can have 3 to 256" ckptfs stat --hist=2 "$(zoo)"
  refused "options 'hist' and 'csv' cannot be combined" ckptfs stat --csv --hist "$(zoo)"
}

# Plots use block characters if the locale has them, and are not written to files.
test_plots() {
  python3 -c 'import struct, sys
sys.stdout.buffer.write(struct.pack("<8f", -2, -1, -1, 0, 0, 0, 0, 1))' >v
  python3 -c 'import struct, sys
sys.stdout.buffer.write(struct.pack("<2f", 3 / 4, 0))' >w
  make_dcp ck a.0.v 2x4 1x1:v a.1.v 2 1:w
  ckptfs stat ck a.0.v >plain
  is 2 "$(wc -l <plain)"
  LC_ALL=C.UTF-8 on_terminal "$CKPTFS" stat --quiet ck a.0.v
  is '  ▂   ▄   █   ▂     a.0.v' "  $(sed -nE 's/.*  0      0  (.*)/\1/p' out)"
  LC_ALL=C on_terminal "$CKPTFS" stat --quiet ck a.0.v
  is '  :   =   @   :     a.0.v' "  $(sed -nE 's/.*  0      0  (.*)/\1/p' out)"
  LC_ALL=C on_terminal "$CKPTFS" stat --quiet --plot=never ck a.0.v
  cmp plain out
  LC_ALL=C ckptfs stat --plot=always --by=layer ck >out
  grep -q '  ################  a.0$' out
  grep -q '  #####             a.1$' out
  LC_ALL=C ckptfs stat --plot=always --hist=3 ck a.0.v >out
  tail -n +3 out | diff - /dev/fd/3 3<<'END'
  linear
              -2               3  ########################
               0               5  ########################################
               2
  powers of two
              -2               1  #######
              -1               6  ########################################
               1               1  #######
               2
END
}

# Tensors that were read before it was stopped are not read again: although changed since, they keep the old values.
test_resume() {
  local file
  make_dcp --many 3000 ck
  ckptfs stat --json --ignore-ctime ck >before
  set +o pipefail
  ckptfs stat --json --hist --ignore-ctime --resume=state ck 2>/dev/null | head -n 4 >/dev/null
  set -o pipefail
  [[ -s state ]] || fail "no state"
  truncate -s -3 state
  cp state other
  file=$(echo ck/*.distcp)
  cp -p "$file" old
  python3 -c 'import json, struct, sys
value = struct.pack("<f", json.load(open("before"))["tensors"][0]["min"])
raw = open(sys.argv[1], "rb").read()
assert raw.count(value) == 1
open(sys.argv[1], "r+b").write(raw.replace(value, struct.pack("<f", 3)))' "$file"
  touch -r old "$file"
  refused "'state' belongs to another checkpoint, other options" ckptfs stat --ignore-ctime --resume=state ck
  ckptfs stat --json --hist --ignore-ctime --resume=state ck >after
  [[ ! -e state ]] || fail "a state is left"
  is "$(grep -m 1 -o '"min": [^,]*' before)" "$(grep -m 1 -o '"min": [^,]*' after)"
  is '"min": 3' "$(grep fqn after | tail -n 1 | grep -o '"min": [^,]*')"
  is 3000 "$(grep -c '"fqn"' after)"
  # Another file is neither used as a state nor removed.
  date >precious
  cp precious copy
  refused "'precious' was not written by an interrupted stat" ckptfs stat --resume=precious ck
  cmp precious copy
  ln -s copy link
  refused "create 'link'" ckptfs stat --resume=link ck
}

test_groups() {
  ckptfs stat --by=layer "$(zoo)" 'model.*' | awk 'NR > 1 { print $1, $NF }' >out
  grep -qx '2 model.layers.0' out
  grep -qx '2 model.layers.10' out
  ckptfs stat --by=role --csv "$(zoo)" 'model.layers.*' >out
  grep -q '^"model.layers.\*.q.weight",,1,' out
  ckptfs stat --json "$(zoo)" >each
  ckptfs stat --json --by=layer "$(zoo)" >groups
  python3 -c 'import json
a, b = json.load(open("each")), json.load(open("groups"))
assert a["all"] == b["all"]
assert sum(g["tensors"] for g in b["groups"]) == len(a["tensors"]) == b["all"]["tensors"]
assert sum(g["elements"] for g in b["groups"]) == b["all"]["elements"]'
}

# Each element belongs to the rank whose file has it.
test_by_rank() {
  python3 -c 'import struct
open("v", "wb").write(struct.pack("<12f", *range(12)))
open("u", "wb").write(struct.pack("<4f", 50, 60, 70, float("nan")))'
  make_dcp ck 0 4x3 2x3:v 1 2x2 1x2:u # in __0_0, __0_1 and __1_0
  ckptfs stat --by=rank ck | tr -s ' ' >out
  diff - out <<'END'
chunks elements min max mean std norm zeros NaN Inf rank
6 12 0 11 5.5 3.45205 22.4944 1 0 0 rank 0
2 4 50 70 60 8.16497 104.881 0 1 0 rank 1
8 16 0 70 16.4 22.3183 107.266 1 1 0 all
END
  # However they are grouped and wherever they are, all elements are counted.
  ckptfs reshard "$(zoo)" three --ranks=3 -q
  ckptfs stat --json "$(zoo)" | grep '"all"' | sed 's/"tensors": [0-9]*, //' >a
  ckptfs stat --json --by=rank three >b
  grep '"all"' b | sed 's/"tensors": [0-9]*, //' | diff a -
  ckptfs stat --json --by=rank --jobs=1 three | cmp - b
  python3 -c 'import json
r = json.load(open("b"))
assert [g["group"] for g in r["groups"]] == ["rank 0", "rank 1", "rank 2"], r
assert sum(g["elements"] for g in r["groups"]) == r["all"]["elements"], r'
  ckptfs stat --by=rank --hist --plot=always -q three >/dev/null
  refused 'not for those of the model' ckptfs stat --by=rank --model three
  refused 'do not tell which rank' ckptfs stat --by=rank "$(zoo)"
}

test_sorted() {
  ckptfs stat --sort=norm --csv "$(zoo)" | python3 -c 'import csv, sys
rows = list(csv.DictReader(sys.stdin))
norms = [float(r["norm"] or 0) for r in rows]
assert norms == sorted(norms, reverse=True) and len(rows) > 10, norms'
}

test_views_are_what_is_read() {
  ckptfs stat --model --dtype=bf16 "$(zoo)" >out
  grep -q '^bfloat16 .* layers.0.q.weight$' out
  refused "'x' is not one of tensor, layer, role" ckptfs stat --by=x "$(zoo)"
  refused "'x' is not one of elements, " ckptfs stat --sort=x "$(zoo)"
  refused 'cannot be combined' ckptfs stat --csv --json "$(zoo)"
  refused "no tensor matches 'nothing'" ckptfs stat "$(zoo)" nothing
}

test_what_cannot_be_read_is_named() {
  local file
  big_copy ck
  file=$(find ck -name '*.distcp' -printf '%f\n' | sort | tail -n 1)
  rm "ck/$file"
  status_of 2 ckptfs stat ck
  grep -q "unreadable: .*$file" out
  grep -q '^ckptfs: stat: [12] of 2 tensors cannot be read$' err
}

# ---- of a run ----

test_runs_as_numpy_says() { /usr/bin/python3 "$HERE/series.py" "$CKPTFS" "$T" "${TEST_SEED:-$RANDOM}"; }

small_run() {
  python3 -c 'import struct
for i, v in enumerate([(1, 2, 2), (1, 2, 4), (1, float("nan"), 4)]):
    open(f"v{i}", "wb").write(struct.pack("<3f", *v))'
  mkdir run
  make_dcp run/step-9 w 3 1:v0 gone 3 1:v0
  make_dcp run/step-10 w 3 3:v1
  make_dcp run/step-11 w 3x1 1x1:v1
  make_dcp run/step-12 w 3x1 1x1:v2
}

test_a_run() {
  small_run
  ckptfs stat run w >out
  diff - out <<'END'
checkpoint                    rms         norm      max abs    NaN    Inf      changed     relative  tensor
step-9                    1.73205            3            2      0      0            -            -  w
step-10                   2.64575      4.58258            4      0      0     0.333333     0.666667  w
step-11                   2.64575      4.58258            4      0      0  other shape            -  w
step-12                   2.91548      4.12311            4      1      0     0.333333            0  w
END
  is 4 "$(ckptfs stat run gone | grep -c 'it has no such tensor  gone$\|^step-9 ')"
  ckptfs stat --csv run w | python3 -c 'import csv, sys
rows = list(csv.DictReader(sys.stdin))
assert [r["checkpoint"] for r in rows] == ["step-9", "step-10", "step-11", "step-12"]
assert [r["changed"] for r in rows] == ["", "1", "", "1"] and rows[3]["nan"] == "1", rows'
  refused "no tensor of the run's checkpoints matches" ckptfs stat -q run nothing
  refused "option 'by' is for a checkpoint, not for a run" ckptfs stat --by=layer run
  # A single checkpoint of a run is treated like any other.
  is 2 "$(ckptfs stat run latest | wc -l)"
}

test_a_run_with_gaps() {
  small_run
  mkdir run/step-13
  cp run/step-12/*.distcp run/step-13
  truncate -s 1 run/step-10/*.distcp
  status_of 2 ckptfs stat run w
  grep -q '^step-10  .* unreadable: ' out
  grep -q '^step-12 ' out
  grep -qx 'ckptfs: stat: 1 row is of a tensor that cannot be read' err
  is "ckptfs: warning: left out: step-13: .metadata is missing although data files are there: the save was interrupted" \
    "$(grep warning err)"
  # A warning is no bar.
  status_of 2 ckptfs stat -q run w
  grep -q '^ckptfs: warning: left out: step-13: ' err
}

run_suite "$@"
