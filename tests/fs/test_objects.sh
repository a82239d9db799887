#!/bin/bash
# Values of objects: NAME.json, info, Python.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"

cases_values_are_what_python_finds() {
  local name
  for name in plain bytes_items mp4_fsdp2_adamw hp_a_collective mcore_gpt_dense mcore_zarr torchsave_zip; do
    [[ ! -e $DATA/$name/ckpt ]] || echo "$name"
  done
}
test_values_are_what_python_finds() {
  local c
  c=$DATA/$1/ckpt
  [[ $1 != torchsave_zip ]] || c=$c/model.pt
  mount_at m "$c"
  python3 "$HERE/objects.py" m/objects
}

test_every_way_shows_the_same_value() {
  local c name
  need_fixture plain
  c=$(fixture plain)/ckpt
  mount_at m "$c"
  for name in betas name step lr empty_list; do
    [[ ! -e m/objects/$name ]] || {
      ckptfs cat "$c" "objects/$name.json" | cmp - "m/objects/$name.json"
      ckptfs info --json "$c" "$name" >told
      python3 -c 'import json, sys
assert json.load(open("told"))["value"] == json.load(open(sys.argv[1]))' "m/objects/$name.json"
      grep -qxF "value     $(cat "m/objects/$name.json")" <(ckptfs info "$c" "$name")
    }
  done
  is '[0.9, 0.95]' "$(cat m/objects/betas.json)"
  is betas "$(getfattr --only-values -n user.ckptfs.fqn m/objects/betas.json)"
  grep -rl 0.95 m/objects >found
  is m/objects/betas.json "$(cat found)"
  cp -r m/objects copy
  diff -r m/objects copy
  ckptfs export "$c" objects out
  diff -r m/objects out
}

test_an_object_goes_before_a_value_of_its_name() {
  local c
  need_fixture plain
  c=$(fixture plain)/ckpt
  echo 's/^lr$/betas.json/' >rules
  mount_at m "$c" -o rename="$PWD/rules"
  ckptfs cat "$c" objects/lr | cmp - m/objects/betas.json
  is 0.0003 "$(cat m/objects/betas.json.json)"
  grep -qxF 'value     [0.9, 0.95]' <(ckptfs info -o rename="$PWD/rules" "$c" betas)
  ! ckptfs cat "$c" objects/lr.json.json 2>err
}

test_a_long_value_is_cut_by_info_alone() {
  need_fixture bytes_items
  local c
  c=$(fixture bytes_items)/ckpt
  ckptfs info "$c" bytesio >out
  (($(wc -c <out) < 3000))
  grep -q "^          ([0-9]* bytes in all, as 'ckptfs cat CKPT objects/bytesio.json' writes them)$" out || fail "$(cat out)"
}

test_info_names_the_file_of_a_long_value() {
  local command
  "$PYTHON" - <<'END'
import io, pickle, zipfile
with zipfile.ZipFile("x.pt", "w", zipfile.ZIP_STORED) as z:
    z.writestr("x/data.pkl", pickle.dumps({"rng/state": list(range(1000)), "rng": {"a": 1}}, 2))
    z.writestr("x/version", b"3\n")
END
  ckptfs info x.pt rng/state >out
  command=$(sed -n "s/^          ([0-9]* bytes in all, as '\(.*\)' writes them)$/\1/p" out)
  # shellcheck disable=SC2086 # words
  set -- ${command/CKPT/x.pt}
  is "ckptfs cat x.pt" "$1 $2 $3"
  "$@" | grep 999 >/dev/null
}

# If an object's bytes cannot be read, both of its files give an error.
test_what_cannot_be_read_is_no_value() {
  copy_of plain c
  mount_at m c -o index=:memory:
  truncate -s 100 c/__0_0.distcp
  try_eio cat m/objects/betas.json
  try_eio cat m/objects/betas
}

run_suite "$@"
