#!/bin/bash
# check --values: whether training can continue with these values.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"

# pack FORMAT VALUES: the bytes that struct.pack makes of values, a Python expression.
pack() { python3 -c "import struct, sys
nan, inf = float('nan'), float('inf')
v = list($2)
sys.stdout.buffer.write(struct.pack(f'<{len(v)}$1', *v))"; }

bad() {
  pack f '[1, 2, nan, 4, 5, nan, 7, 8]' >nan
  pack f '[1, 2, 3, 4, 5, 6, -inf, 8]' >inf
  pack f '[0] * 8' >zero
  pack f '[1.5] * 8' >same
  pack f '[1, -2e6, 3, 4, 5, 6, 7, 8]' >large
  pack q '[7] * 8' >same_int
  make_dcp ck a.nan 2x4 1x2:nan a.nan2 8 2:nan a.inf 2x4 2x1:inf a.zero 2x4 1x1:zero a.same 4x2 1x1:same \
    a.large 2x4 1x1:large bias 8 1:zero norm 8 2:same ids 2x4:int64 1x1:same_int one 1x1 1x1:"$PWD/first"
}

test_findings() {
  pack f '[0]' >first
  bad
  status_of 1 ckptfs check --values --max-abs=1e6 ck
  diff - out <<'END'
fault: a.inf: infinity in 1 of 8 elements, first at [1, 2]
fault: a.large: the largest magnitude is 2000000, above the limit of 1000000
fault: a.nan: NaN in 2 of 8 elements, first at [0, 2]; similarly a.nan2
fault: a.same: all 8 elements are 1.5
fault: a.zero: all 8 elements are zero
FAULTY: 10 tensors, 0 objects, 14 items, values of 10 tensors examined, 6 faults of 5 kinds, 0 warnings (-v shows each)
END
  status_of 1 ckptfs check --values -v ck
  grep -qx 'fault: a.nan2: NaN in 2 of 8 elements, first at \[2\]' out
  # Without --values the values are not examined.
  status_of 0 ckptfs check ck
  pack f '[1, 2, 3, -4]' >fine
  make_dcp good w 2x2 1x1:fine
  status_of 0 ckptfs check --values good
  is "ok: 1 tensor, 0 objects, 1 item, values of 1 tensor examined, 0 faults, 0 warnings" "$(cat out)"
}

test_rules_have_exceptions() {
  pack f '[0]' >first
  bad
  status_of 0 ckptfs check --allow-nan 'a.n*' --allow-inf=a.inf --allow-zero=a.zero --allow_constant=a.same ck
  grep -q 'values of 10 tensors examined' out
  status_of 1 ckptfs check --allow-nan=a.nan --allow-nan=nothing --exclude='a.[!n]*' ck
  is 'fault: a.nan2: NaN in 2 of 8 elements, first at [2]' "$(head -n 1 out)"
  status_of 0 ckptfs check --allow-nan=a.nan --allow-nan=a.nan2 --exclude='a.[!n]*' ck
  refused "option 'max_abs': 'x' is not a number greater than 0" ckptfs check --max-abs=x ck
  refused "option 'max_abs': 'nan' is not a number greater than 0" ckptfs check --max-abs=nan ck
}

test_json() {
  pack f '[0]' >first
  bad
  status_of 1 ckptfs check --json --max-abs=1e6 --jobs=3 ck
  python3 -c 'import json
r = json.load(open("out"))
rules = {(f["fqn"], f["rule"]) for f in r["faults"]}
assert rules == {("a.inf", "inf"), ("a.large", "max_abs"), ("a.nan", "nan"), ("a.nan2", "nan"), ("a.same", "constant"),
                 ("a.zero", "zero")}, rules
assert r["fault_count"] == 6 and r["values_tensors"] == 10 and r["values_bytes"] == 324, r'
}

# A tensor that is known to be unreadable is reported once, and does not count as examined.
test_what_cannot_be_read() {
  local file
  big_copy ck
  file=$(find ck -name '*.distcp' -printf '%f\n' | sort | tail -n 1)
  rm "ck/$file"
  status_of 1 ckptfs check --values --json ck
  python3 -c 'import json
r = json.load(open("out"))
names = [f["fqn"] for f in r["faults"] if f["fqn"]]
assert names and len(names) == len(set(names)), names
unreadable = [f for f in r["faults"] if f["fqn"] and f["rule"] in (None, "unreadable")]
assert r["values_tensors"] == r["tensors"] - len(unreadable), r'
}

run_suite "$@"
