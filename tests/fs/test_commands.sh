#!/bin/bash
# The commands that need no mount.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

test_version_and_help() {
  status_of 0 ckptfs --version
  grep -qE '^ckptfs [0-9]+\.[0-9]+' out
  status_of 0 ckptfs help
  grep -q 'mount CKPT MNT' out
  cp out overview
  status_of 0 ckptfs --help
  cmp out overview
}

cases_every_command_has_help() { printf '%s\n' mount umount ls info cat export check diff index; }
test_every_command_has_help() {
  status_of 0 ckptfs help "$1"
  grep -q "^usage: ckptfs $1 " out
  cp out help
  status_of 0 ckptfs "$1" --help
  cmp out help
  [[ ! -s err ]]
}

test_manual_and_help_name_the_same_options() {
  local c
  for c in mount umount ls info cat export check diff index; do
    ckptfs help $c
  done | grep -oE '^ +(-., )?--[a-z_]+' | sed -E 's/.*--//' | sort -u >in_help
  # .It Cm word, .It Fl f , -word
  grep -E '^\.(It|Op|Pq) |^allow_other|^subtype' "$HERE/../../fs/ckptfs.1" | tr ' ' '\n' | sed 's/^-//' | sort -u >in_manual
  [[ -z $(comm -23 in_help in_manual) ]] || fail "not in the manual: $(comm -23 in_help in_manual | xargs)"
}

test_help_has_the_recipes() {
  status_of 0 ckptfs help recipes
  grep -q '^  megatron-llama ' out
  status_of 0 ckptfs help recipes megatron-llama
  cmp out "$HERE/../../core/view/recipes/megatron-llama.recipe"
  refused "unknown recipe 'megatron-gpt'.*ckptfs help recipes" ckptfs help recipes megatron-gpt
}

test_unknown_commands_are_errors() {
  refused "unknown command 'frob'.*ckptfs help" ckptfs frob
  refused "unknown command 'frob'" ckptfs help frob
  refused "unknown option '--frob'" ckptfs --frob
  refused "ckptfs help" ckptfs
  refused "unknown option '--frob'.*ckptfs help ls" ckptfs ls --frob "$(big)/ckpt"
  refused "unknown option '--threads'" ckptfs ls --threads=3 "$(big)/ckpt"
  refused "unknown option '-x'" ckptfs ls -lx "$(big)/ckpt"
  refused "needs CKPT" ckptfs ls
}

test_ls_lists_in_natural_order() {
  need_fixture plain
  status_of 0 ckptfs ls "$(fixture plain)/ckpt"
  diff - out <<'END'
betas
empty_list
lr
model.layers.0.w
model.layers.1.w
model.norm
model.tok.weight
name
step
tuple
END
}

test_ls_long_has_columns() {
  status_of 0 ckptfs ls -l "$(big)/ckpt"
  diff - out <<'END'
float32  [1023,777]    3179484  6  v
float32  [2048,4096]  33554432  8  w
END
}

test_ls_takes_globs() {
  need_fixture plain
  status_of 0 ckptfs ls "$(fixture plain)/ckpt" '*.w' st?p
  [[ $(xargs <out) == "model.layers.0.w model.layers.1.w step" ]]
  status_of 1 ckptfs ls "$(fixture plain)/ckpt" 'nothing.*'
  [[ ! -s out && ! -s err ]]
  status_of 1 ckptfs ls --json "$(fixture plain)/ckpt" 'nothing.*'
  [[ $(cat out) == "[]" ]]
}

test_ls_shows_no_control_bytes() {
  need_fixture weird_fqns
  status_of 0 ckptfs ls "$(fixture weird_fqns)/ckpt"
  tr -d '\n' <out >flat
  ! LC_ALL=C grep -q '[[:cntrl:]]' flat || fail "control bytes"
  grep -q '^new%0Aline$' out
}

test_include_and_exclude_hold_everywhere() {
  need_fixture plain
  local c
  c=$(fixture plain)/ckpt
  [[ $(ckptfs ls "$c" --include='model.*' --exclude '*.w' | xargs) == "model.norm model.tok.weight" ]]
  [[ $(ckptfs ls "$c" -o 'include=model.*,exclude=*.w' | xargs) == "model.norm model.tok.weight" ]]
  refused "no such|not found|absent|step" ckptfs cat "$c" tensors/step --exclude=step
}

test_info_describes_the_checkpoint() {
  status_of 0 ckptfs info "$(big)/ckpt"
  grep -qE '^format  *dcp$' out || fail "$(cat out)"
  grep -qE '^tensors  *2, .*\(36733916 bytes\)$' out || fail "$(cat out)"
  grep -qE '^chunks  *14$' out || fail "$(cat out)"
  grep -qE '^complete  *yes$' out || fail "$(cat out)"
  status_of 0 ckptfs info --json "$(big)/ckpt"
  python3 -m json.tool <out >/dev/null
}

test_info_describes_a_tensor() {
  status_of 0 ckptfs info "$(big)/ckpt" v
  grep -qE '^chunks  *6 in 3 files$' out || fail "$(cat out)"
  [[ $(grep -c '__v_[012]\.distcp' out) == 6 ]]
  status_of 0 ckptfs info --json "$(big)/ckpt" v
  python3 - out <<'END'
import json, sys
t = json.load(open(sys.argv[1]))
assert (t["dtype"], t["shape"], t["bytes"], t["files"]) == ("float32", [1023, 777], 1023 * 777 * 4, 3)
boxes = {(*c["offsets"], *c["sizes"]) for c in t["chunks"]}
assert boxes == {(r, c, 341, n) for r in (0, 341, 682) for c, n in ((0, 389), (389, 388))}, boxes
assert all(c["length"] > 4 * c["sizes"][0] * c["sizes"][1] for c in t["chunks"])
END
  refused "'absent'" ckptfs info "$(big)/ckpt" absent
}

test_info_describes_an_object() {
  need_fixture plain
  status_of 0 ckptfs info "$(fixture plain)/ckpt" lr
  grep -q '^object  *lr$' out
  status_of 0 ckptfs info --json "$(fixture plain)/ckpt" lr
  python3 -m json.tool <out >/dev/null
}

test_cat_concatenates() {
  ckptfs cat "$(big)/ckpt" tensors/v tensors/w tensors/v | cmp - <(cat "$(big)"/{v,w,v}.bin)
}

test_cat_of_npy_has_a_header() {
  ckptfs cat "$(big)/ckpt" npy/v.npy >v.npy
  [[ $(head -c 6 v.npy | od -An -tx1 | xargs) == "93 4e 55 4d 50 59" ]]
  tail -c "$(stat -c %s "$(big)/v.bin")" v.npy | cmp - "$(big)/v.bin"
}

test_cat_accepts_objects_by_fqn() {
  need_fixture plain
  ckptfs cat "$(fixture plain)/ckpt" --fqn lr >a
  ckptfs cat "$(fixture plain)/ckpt" objects/lr | cmp - a
  [[ $(sha256sum <a) == "a81ffd5d28e666290f1e014c3fc3e6f1bd0b6ad1013f2b53387ffbcbc9fc8550  -" ]]
}

test_cat_errors() {
  refused 'directory' ckptfs cat "$(big)/ckpt" tensors
  refused 'directory' ckptfs cat "$(big)/ckpt" .ckptfs
  refused "tensors/absent" ckptfs cat "$(big)/ckpt" tensors/absent
  refused "absent" ckptfs cat "$(big)/ckpt" absent/v
  refused "'absent'" ckptfs cat "$(big)/ckpt" --fqn absent
  refused "needs CKPT PATH" ckptfs cat "$(big)/ckpt"
}

test_cat_of_info_json() {
  ckptfs cat "$(big)/ckpt" .ckptfs/info.json | python3 -m json.tool >/dev/null
}

# Commands with much and with little to say.
cases_write_errors_are_trouble() { printf '%s\n' 'cat CKPT tensors/w' 'ls CKPT' 'info CKPT' 'check CKPT' 'index CKPT' \
  'ls --json CKPT' 'info CKPT v'; }
test_write_errors_are_trouble() {
  local rc=0
  ckptfs "${@/CKPT/$(big)/ckpt}" >/dev/full 2>err || rc=$?
  ((rc == 2)) || fail "status $rc"
  grep -q '^ckptfs: write to standard output: No space left' err || fail "$(cat err)"
}

test_broken_pipe_ends_quietly_or_with_status_2() {
  local rc
  set +e
  (
    trap '' PIPE
    ckptfs cat "$(big)/ckpt" tensors/w 2>err
    echo $? >rc
  ) | head -c 10 >/dev/null
  set -e
  [[ $(cat rc) == 2 ]]
  grep -q 'Broken pipe' err
  ckptfs cat "$(big)/ckpt" tensors/w 2>err | head -c 10 >/dev/null || rc=$?
  [[ ! -s err ]]
}

test_check_of_a_good_checkpoint() {
  status_of 0 ckptfs check "$(big)/ckpt"
  [[ $(cat out) == "ok: 2 tensors"* && $(wc -l <out) == 1 ]] || fail "$(cat out)"
  status_of 0 ckptfs check --data "$(big)/ckpt"
  grep -qE '[1-9][0-9]* CRCs verified' out || fail "$(cat out)"
  status_of 0 ckptfs check --json --data "$(big)/ckpt"
  python3 - out <<'END'
import json, sys
r = json.load(open(sys.argv[1]))
assert r["faults"] == [] and r["fault_count"] == 0 and r["crcs"] >= 14 and r["bytes"] > 36733916, r
END
}

test_check_finds_a_flipped_bit() {
  big_copy c
  printf '\001' | dd of=c/__v_1.distcp bs=1 seek=200000 conv=notrunc status=none
  status_of 0 ckptfs check c
  status_of 1 ckptfs check --data c
  grep -q '^fault: v: .*__v_1\.distcp' out || fail "$(cat out)"
  grep '^fault: w' out && fail "w is whole"
  status_of 1 ckptfs check --data --json c
  python3 - out <<'END'
import json, sys
r = json.load(open(sys.argv[1]))
faults = [f for f in r["faults"] if not f["warning"]]
assert r["fault_count"] == len(faults) == 1 and faults[0]["fqn"] == "v", r
END
}

test_check_finds_holes_and_missing_files() {
  need_fixture hole
  status_of 1 ckptfs check "$(fixture hole)/ckpt"
  [[ $(grep -c '^fault: ' out) -ge 3 ]] || fail "$(cat out)"
  big_copy c
  rm c/__v_0.distcp
  status_of 1 ckptfs check c
  grep -q '^fault: .*__v_0\.distcp' out || fail "$(cat out)"
}

test_index_builds_once() {
  cp -r "$(big)/ckpt" c
  status_of 0 ckptfs index c
  grep -q ': built, 2 tensors, 14 chunks$' out || fail "$(cat out)"
  status_of 0 ckptfs index c
  grep -q ': up to date' out || fail "$(cat out)"
  status_of 0 ckptfs index --rebuild c
  grep -q ': built' out || fail "$(cat out)"
  status_of 0 ckptfs index --print c
  [[ $(cat out) == "$XDG_CACHE_HOME"/ckptfs/* && -s $(cat out) ]] || fail "$(cat out)"
  [[ -z $(find c -newer out) ]]
}

test_index_goes_where_it_is_told() {
  status_of 0 ckptfs index --print --index="$T/here.idx" "$(big)/ckpt"
  [[ $(cat out) == "$T/here.idx" && -s here.idx ]]
  sqlite3 here.idx 'select count(*) from sqlite_master' >/dev/null
  status_of 0 ckptfs index --print --index=:memory: "$(big)/ckpt"
  [[ $(cat out) == ":memory:" ]]
  refused . ckptfs index --index=/proc/no/such/place "$(big)/ckpt"
}

test_without_a_cache_the_index_is_in_memory() {
  cp -r "$(big)/ckpt" c
  # shellcheck disable=SC2016
  XDG_CACHE_HOME=/proc/no/cache ckptfs ls c | cmp - <(printf 'v\nw\n')
}

test_quiet_and_no_terminal_mean_no_bar() {
  cp -r "$(big)/ckpt" c
  status_of 0 ckptfs index -q --rebuild c
  [[ ! -s err ]]
  status_of 0 ckptfs check --data c
  [[ ! -s err ]]
}

run_suite "$@"
