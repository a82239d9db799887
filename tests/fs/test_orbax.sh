#!/bin/bash
# JAX's checkpoints on mounts: Orbax with OCDBT and without, zarr, Flax.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
long="every_array_is_what_was_written"

# orbax NAME: the path of a checkpoint in tests/data/orbax; orbax_copy NAME TO: a copy of it, which may be changed
orbax() { realpath "$DATA/orbax/$1"; }
orbax_copy() {
  if [[ -d $(orbax "$1")/ckpt ]]; then
    cp -r "$(orbax "$1")/ckpt" "$2"
  else
    mkdir "$2"
    tar -C "$2" -xf "$(orbax "$1")/ckpt.nemo"
  fi
  chmod -R u+w "$2"
  aged "$2"
}

# same_as_expected FIXTURE MOUNT: compares what expected.json says of each array with the files of a mount
same_as_expected() {
  python3 - "$@" <<'PY'
import hashlib, json, os, sys
fixture, mount = sys.argv[1:]
want = json.load(open(fixture + "/expected.json"))
names = {n.replace("%", "%25").replace("/", "%2F"): w for n, w in want["tensors"].items()}
missing = {n for n, w in names.items() if "missing" in w}
found = set(os.listdir(os.fsencode(mount + "/tensors")))
assert {n.decode() for n in found} >= set(names), sorted(set(names) - {n.decode() for n in found})
assert len(found) <= len(names) + len(want.get("unsupported", ()))
for name, w in names.items():
    try:
        got = open(f"{mount}/tensors/{name}", "rb").read()
    except OSError:
        assert name in missing, name
        continue
    assert len(got) == w["nbytes"] and hashlib.sha256(got).hexdigest() == w["sha256"], name
for name, text in want.get("strings", {}).items():
    assert json.load(open(f"{mount}/objects/{name}.json")) == text
PY
}

cases_every_array_is_what_was_written() {
  printf '%s\n' v2_two_processes v3_sharded v3_codecs v2_files dtypes deep_tree uncompressed_nodes subtree_references \
    versions numbered_manifest split_prefixes msgpack_aggregate names data_files empty_store unsupported_parts
}
test_every_array_is_what_was_written() {
  orbax_copy "$1" c
  mount_at m c -o allow_missing
  same_as_expected "$(orbax "$1")" m
}

test_what_is_damaged_is_refused_with_file_and_reason() {
  local c
  refused "'manifest.ocdbt': OCDBT manifest: the CRC-32C of its bytes is" ckptfs info "$(orbax bad_manifest_crc)/ckpt"
  refused "'d/[0-9a-f]*' at byte 0: B.tree node: the CRC-32C of its bytes is" ckptfs info "$(orbax bad_node_crc)/ckpt"
  refused "'d/[0-9a-f]*' at byte 0: open .*No such file" ckptfs info "$(orbax data_file_missing)/ckpt"
  refused "'../../../../tmp/d/[0-9a-f]*' is outside the checkpoint" ckptfs info "$(orbax path_escapes)/ckpt"
  refused "it says that it has 1048576 entries" ckptfs info "$(orbax entry_count_lies)/ckpt"
  refused "\('w9/1.0'\): its keys do not increase" ckptfs info "$(orbax keys_out_of_order)/ckpt"
  refused "'manifest.ocdbt' is missing, but what each process wrote is there" ckptfs ls "$(orbax root_manifest_missing)/ckpt"
  mkdir m
  refused "data file 'ocdbt.process_0/d/[0-9a-f]*' has 500 bytes" ckptfs mount "$(orbax data_truncated)/ckpt" m
  for c in bad_shard_index chunk_wrong_length; do
    ckptfs ls "$(orbax $c)/ckpt" >names
    refused "tensor '$(cat names)'" ckptfs cat "$(orbax $c)/ckpt" "tensors/$(cat names)"
  done
}

# A step, its item, and a run of steps, one of which is being written.
test_steps_are_a_run() {
  mkdir run
  orbax_copy v2_two_processes run/300
  orbax_copy v3_sharded run/2000
  cp -r run/300 run/3000.orbax-checkpoint-tmp-1
  aged run
  mount_at m run -o allow_missing
  is ".ckptfs 2000 300 latest" "$(entries m | tr ' ' '\n' | sorted)"
  is 300 "$(readlink m/latest)" # an array of the other one lacks chunks
  same_as_expected "$(orbax v2_two_processes)" m/300
  same_as_expected "$(orbax v3_sharded)" m/2000
  mount_at item run/300/default
  diff -r m/300/tensors item/tensors
  refused "its name is that of an Orbax save that has not finished" ckptfs info run/3000.orbax-checkpoint-tmp-1
}

# The arrays below params are the model; opt_state does not belong to it.
test_the_model_is_apart_from_the_state_of_its_optimizer() {
  mount_at m "$(orbax v2_two_processes)/ckpt"
  ls m/tensors >all
  grep -q '^opt_state.0.mu.w$' all
  sed -n 's/^params\.//p' all | grep . >params
  ckptfs info "$(orbax v2_two_processes)/ckpt" --json | python3 -c '
import json, sys
print(json.load(sys.stdin)["model"]["tensors"])' >count
  is "$(wc -l <params)" "$(cat count)"
}

# The second time, the index answers; and after a change it is built again.
test_the_index_is_used_until_something_changes() {
  orbax_copy deep_tree c
  ckptfs info --index=i.sqlite c | grep 'built just now' >/dev/null
  ckptfs info --index=i.sqlite c >again
  grep -q '^index' again
  ! grep -q 'built just now' again || fail "$(cat again)"
  touch c/d/*
  ckptfs info --index=i.sqlite c | grep 'built just now' >/dev/null
}

# Arrays that are directories, and an index among them.
test_an_index_beside_arrays_stays_valid() {
  orbax_copy v2_files c
  ckptfs info --index=c/.ckptfs-index.sqlite c | grep 'built just now' >/dev/null
  ckptfs info --index=c/.ckptfs-index.sqlite c >again
  ! grep -q 'built just now' again || fail "$(cat again)"
  cp -r c/target.none c/target.new
  ckptfs ls --index=c/.ckptfs-index.sqlite c | grep '^target.new$' >/dev/null
  touch c/target.edge/9.9
  ckptfs info --index=c/.ckptfs-index.sqlite c | grep 'built just now' >/dev/null
}

run_suite "$@"
