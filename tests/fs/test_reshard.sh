#!/bin/bash
# reshard: every fixture there and back, with the same bytes every time; whatever happens, DST has the old checkpoint or
# the new one.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
long="memory_does_not_grow_with_tensors the_parts_are_those_of_the_layout two_at_once a_full_disk \
  killed_at_any_moment_the_old_or_the_new a_model_has_its_configuration_and_tokenizer_beside_it \
  it_is_for_as_many_ranks_as_the_source"

# Warnings are shown only if it fails.
reshard() { ckptfs reshard -q --index=:memory: "$@" 2>>"$T/said" || { cat "$T/said" && false; }; }

nothing_left_over() { [[ -z $(find "${1:-.}" -name '*.partial*') ]] || fail "$(find "${1:-.}" -name '*.partial*')"; }

# checkpoint NAME: the path of a fixture's checkpoint, a directory or a file
checkpoint() { python3 -c '
import json, os, sys
try:
    with open(sys.argv[1] + "/expected.json") as f:
        print(sys.argv[1] + "/" + json.load(f).get("ckpt", "ckpt"))
except FileNotFoundError:
    print(sys.argv[1] + "/ckpt")' "$(realpath "$DATA/$1")"; }

helper() { python3 "$HERE/reshard.py" "$@"; }

# same A B [WHAT [incomplete]]: what can be read of A is in B, byte for byte. WHAT is all: and B has nothing else;
# tensors: those that safetensors files can hold; megatron: all, and B may have other objects; megatron-tensors: both.
same() {
  ckptfs diff --json --index=:memory: "$1" "$2" >"$T/same" 2>"$T/err" || (($? == 1)) || cat "$T/err"
  ckptfs ls --json --index=:memory: "$1" >"$T/listed"
  helper same "$T/same" "$T/listed" "${3:-all}"
}

# digest DIR: the names and hashes of its files
digest() { (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum); }

# ---- there and back ----

# archives CKPT: every object is an archive, as torch.save writes it
archives() {
  local name
  ckptfs export -q --index=:memory: "$1" objects "$1.objects"
  while IFS= read -r -d '' name; do
    is PK "$(head -c 2 "$name")"
  done < <(find "$1.objects" -type f ! -name '*.json' -print0)
}

# Only a full run of a release build takes all fixtures; others take every fourth.
cases_every_fixture_there_and_back() {
  local step=4
  [[ -z ${CHECK_FULL:-} || $VARIANT != release ]] || step=1
  every_fixture | awk -v step=$step 'NR % step == 0'
}
test_every_fixture_there_and_back() {
  local src format some=() types=() complete=() mega=megatron
  src=$(checkpoint "$1")
  if ! ckptfs reshard -q --index=:memory: "$src" dcp --ranks=$((${#1} % 5 + 1)) 2>err; then
    is 1 "$(grep -vc warning: err)"
    [[ ! -e dcp ]]
    nothing_left_over
    # Incomplete tensors can be left out.
    ckptfs ls --index=:memory: "$src" >/dev/null 2>&1 || return 0
    some=(--allow-missing) complete=(all incomplete)
    if grep -q 'archive cannot hold qu\?int' err; then # so leave out types that only some formats can hold
      mapfile -t some < <(ckptfs ls --json --index=:memory: "$src" | helper excludes)
      complete=(tensors incomplete) mega=megatron-tensors
    fi
    if ! reshard "$src" dcp --ranks=3 "${some[@]}"; then
      grep -q '^ckptfs: reshard: there is nothing to write: no tensor and no object is left$' said
      [[ ! -e dcp ]]
      nothing_left_over
      return
    fi
  fi
  format=$(ckptfs info --json --index=:memory: "$src" | python3 -c 'import json, sys; print(json.load(sys.stdin)["format"])')
  digest "$(dirname "$src")" >before
  mapfile -t types < <(ckptfs ls --json --index=:memory: "$src" | helper excludes)
  reshard "$src" hp --format=hyperparallel --ranks=3 "${some[@]}" "${types[@]}"
  reshard hp dcp2 --zstd --file-per-item --ranks=2
  reshard dcp2 hp2 --format=hyperparallel
  reshard hp2 dcp3 --threads=3
  reshard dcp2 st --format=safetensors --ranks=2
  reshard "$src" mega --format=megatron --ranks=3 "${some[@]}"
  # Each format stores objects in its own form; those of torch.save files and of HyperParallel change their form in DCP.
  case $format in
    hyperparallel) same "$src" hp "${complete[@]}" ;;
    torch.save)
      same "$src" dcp tensors "${complete[1]:-}"
      archives dcp
      ;;
    *) same "$src" dcp "${complete[@]}" ;;
  esac
  same "$src" hp tensors "${complete[1]:-}"
  same "$src" dcp tensors "${complete[1]:-}"
  same "$src" mega "$mega" "${complete[1]:-}"
  is megatron "$(ckptfs info --json --index=:memory: mega | jq -r .format)"
  same dcp2 dcp3
  same hp hp2 tensors
  same hp st tensors
  ckptfs check --data --index=:memory: dcp >/dev/null
  ckptfs check --data --index=:memory: hp >/dev/null
  ckptfs check --data --index=:memory: mega >/dev/null
  digest "$(dirname "$src")" | cmp - before
  nothing_left_over
}

cases_a_mount_of_it_is_the_same() { printf '%s\n' zoo mp4_mesh2d mp4_zstd weird_fqns shapes dtypes; }
test_a_mount_of_it_is_the_same() {
  local src=$ZOO_CKPT
  [[ $1 == zoo ]] || src=$(checkpoint "$1")
  reshard "$src" x --ranks=4 --threads=2
  mount_at a "$src"
  mount_at b x
  # All but .ckptfs, where info.json says how it is cut.
  diff -r --exclude=.ckptfs a b
  diff <(cd a && find . -printf '%p %y %s\n' | grep -v ckptfs/ | sort) \
    <(cd b && find . -printf '%p %y %s\n' | grep -v ckptfs/ | sort)
}

cases_twice_the_same_files() {
  printf '%s\n' "--ranks=5" "--ranks=3 --zstd --threads=3" "--ranks=2 --file-per-item --jobs=7" \
    "--format=megatron --ranks=4 --threads=2" "--format=hyperparallel --ranks=4" "--format=safetensors --ranks=3 --shard-size=2000" \
    "--format=safetensors --layout=mesh" "--layout=mesh --save-to-lowest-rank --dtype=bf16"
}
test_twice_the_same_files() {
  mesh_of_six
  reshard "$ZOO_CKPT" x "$@"
  reshard "$ZOO_CKPT" y "$@" --jobs=1
  reshard x z --format=dcp --ranks=9
  reshard "$ZOO_CKPT" x "$@" --overwrite
  diff -r x y
  same y z tensors
}

mesh_of_six() {
  cat >mesh <<'END'
mesh dp=2 tp=3
*.q.weight tp:1 dp:0
*.wide tp:-1
*lm_head.weight tp:0 dp:0
END
}

# Each rank writes the box that ranks/ shows for it.
test_the_parts_are_those_of_the_layout() {
  local i
  mesh_of_six
  reshard "$ZOO_CKPT" x --layout=mesh --model --format=safetensors
  mount_at m "$ZOO_CKPT" -o layout=mesh
  [[ $(entries x) ]]
  for ((i = 0; i < 6; i++)); do
    readers digest "m/ranks/0000$i/model.safetensors" | sort >shown
    python3 - x "$((i + 1))" <<'END' >written
import glob, hashlib, json, sys
for path in glob.glob(f"{sys.argv[1]}/shard-{int(sys.argv[2]):05}-*.safetensors"):
    data = open(path, "rb").read()
    start = 8 + int.from_bytes(data[:8], "little")
    for name, t in json.loads(data[8:start]).items():
        if name != "__metadata__":
            begin, end = (start + n for n in t["data_offsets"])
            print(hashlib.sha256(data[begin:end]).hexdigest() + "  " + name)
END
    # It need not write everything: of the ranks that hold the same, only one does.
    sort written | comm -13 shown - >too_much
    [[ ! -s too_much ]] || fail "rank $i wrote $(cat too_much)"
    cat written >>all
  done
  is "$(cut -c67- <(for ((i = 0; i < 6; i++)); do readers digest "m/ranks/0000$i/model.safetensors"; done) | sort -u | xargs)" \
    "$(cut -c67- all | sort -u | xargs)"
}

test_the_model_alone() {
  reshard "$ZOO_CKPT" x --model
  mount_at m "$ZOO_CKPT"
  readers digest m/hf/model.safetensors | sort >want
  ckptfs ls --index=:memory: x | while IFS= read -r name; do
    printf '%s  %s\n' "$(ckptfs cat x "tensors/$name" | sha256sum | cut -c1-64)" "$name"
  done | sort | diff - want
  reshard "$ZOO_CKPT" st --model --format=safetensors
  readers digest st/model.safetensors | sort | diff - want
}

test_names_and_types_are_those_of_the_tree() {
  local o=(--include='model.*' --exclude='*.ids' --dtype=bf16)
  echo 's/^model\./m./' >rules
  reshard "$ZOO_CKPT" x "${o[@]}" --rename=rules --ranks=2
  mount_at a "$ZOO_CKPT" -o include='model.*',exclude='*.ids',dtype=bf16,rename=rules
  mount_at b x
  diff -r a/tensors b/tensors
  [[ $(ls b/tensors) && ! -e b/tensors/model.ids ]]
}

# ---- Megatron-core ----

listed_objects() { ckptfs ls --json --index=:memory: "$1" | jq -r '.[] | select(.type == "object") | .fqn'; }

# Objects of a DCP checkpoint become objects of one part, which are lists of one value.
test_a_megatron_checkpoint_of_a_dcp() {
  local src
  src=$(checkpoint mp4_fsdp2_adamw)
  reshard "$src" x --format=megatron --ranks=2
  is ".metadata __0_0.distcp __1_0.distcp common.pt metadata.json" "$(find x -type f -printf '%f\n' | sort | xargs)"
  is '"torch_dist" 1' "$(jq -c '.sharded_backend, .sharded_backend_version' x/metadata.json | xargs -d '\n')"
  is true "$(ckptfs cat --index=:memory: x objects/common.pt.json | jq '. == {checkpoint_version: 3, iteration: 0}')"
  listed_objects "$src" | sed 's,$,/shard_0_1,' | sort >want
  listed_objects x | grep -v '^common.pt$' | sort | diff want -
  is "$(ckptfs cat --index=:memory: "$src" objects/lr_scheduler.base_lrs.json | jq -c '[.]')" \
    "$(ckptfs cat --index=:memory: x objects/lr_scheduler.base_lrs%2Fshard_0_1.json | jq -c .)"
  # Saved as Megatron-core's again, it stays the same.
  reshard x y --format=megatron
  diff <(listed_objects x) <(listed_objects y)
  same x y
  reshard x z --format=hyperparallel
  reshard z w --format=megatron --threads=2 --file-per-item
  same x w
}

# Checkpoints of Megatron-core keep their names and their common state, as common.pt or as an object.
cases_a_megatron_checkpoint_again() { printf '%s\n' mcore_manual mcore_gpt_dense mcore_zarr mcore_flat mcore_flat_08; }
test_a_megatron_checkpoint_again() {
  local src
  src=$(echo "$(fixture "$1")"/ckpt/iter_*)
  [[ -d $src ]] || src=$(checkpoint "$1")
  reshard "$src" x --format=megatron --ranks=3
  same "$src" x "$([[ $1 == mcore_zarr ]] && echo tensors || echo all)"
  diff <(listed_objects "$src") <(listed_objects x)
  [[ ! -e $src/common.pt ]] || cmp "$src/common.pt" x/common.pt
  [[ -e x/common.pt ]] || listed_objects x | grep '^common_state/shard_0_1$' >/dev/null
  # An object whose parts have files of their own becomes a list.
  [[ $1 != mcore_zarr ]] ||
    is '[[{"rank":0}]]' "$(ckptfs cat --index=:memory: x objects/rng_state%2Fshard_0.0_2.2.json | jq -c .)"
  # Flattened tensors keep the shape in which they are shown, and in which Megatron-core loads them.
  shapes() { ckptfs ls --json --index=:memory: "$1" | jq -c 'map([.fqn, .shape, .logical])'; }
  diff <(shapes "$src") <(shapes x)
}

test_names_that_megatron_objects_cannot_have() {
  python3 - <<'END'
import pickle
# A legacy file of torch.save: pickles of a magic number, a protocol, the writer's machine, the value and its storages.
with open("x.pt", "wb") as f:
    for v in 0x1950a86a20f9469cfc6c, 1001, {"little_endian": True}, {"a/b": 1, "c": 2}, []:
        pickle.dump(v, f, 2)
END
  ckptfs reshard x.pt x --format=megatron 2>err
  grep -q "warning: 'a/b' is left out: names of Megatron-core's objects have no '/'$" err || fail "$(cat err)"
  is "c/shard_0_1 common.pt" "$(listed_objects x | xargs)"
}

# A checkpoint of Megatron-core becomes a Hugging Face model, and by the same recipe Megatron-core's again: with the
# original bytes, but without the rows of padding.
test_a_recipe_backwards() {
  local src
  src=$(checkpoint mcore_gpt_dense)
  cat >rules.recipe <<'END'
param layers = args.num_layers | config.num_hidden_layers
prefix embedding.word_embeddings.weight none
ignore optimizer.*
embed = embedding.word_embeddings.weight [0..60 of any, any]
norm = decoder.final_layernorm.weight [any]
head = output_layer.weight [0..60 of any, any] | embedding.word_embeddings.weight [0..60 of any, any]
for i in layers
  l.{i}.qkv = decoder.layers.[i].self_attention.linear_qkv.weight [any, any] order 1 0
  l.{i}.fc2 = decoder.layers.[i].mlp.linear_fc2.weight [any, any]
end
END
  echo '{"num_hidden_layers": 4}' >config.json
  reshard "$src" hf --format=safetensors --recipe=rules.recipe --assets=.
  rm hf/config.json
  reshard hf x --format=megatron --recipe=rules.recipe --assets=. --ranks=3
  is megatron "$(ckptfs info --json --index=:memory: x | jq -r .format)"
  ckptfs diff --json --index=:memory: x "$src" >differ || (($? == 1))
  is '[]' "$(jq -c '[.tensors[] | select(.b.type != "object" and .a.type != "object") | select(.result | IN("only_b", "shape") | not)]' differ)"
  reshard x again --format=safetensors --recipe=rules.recipe --assets=.
  same hf again
  # A tensor that no rule makes would be lost.
  sed -i /final/d rules.recipe
  refused "rules.recipe: no rule makes 'norm', which would be lost: exclude what is not needed" \
    ckptfs reshard hf y --format=megatron --recipe=rules.recipe --assets=.
  reshard hf y --format=megatron --recipe=rules.recipe --assets=. --exclude=norm
  nothing_left_over
}

test_a_megatron_checkpoint_is_replaced() {
  reshard "$ZOO_CKPT" x --format=megatron
  reshard "$ZOO_CKPT" x --format=megatron --overwrite --ranks=2
  ckptfs check --data x >/dev/null
  reshard "$ZOO_CKPT" x --overwrite
  [[ ! -e x/metadata.json && ! -e x/common.pt ]]
  same "$ZOO_CKPT" x
  nothing_left_over
}

# ---- zarr ----

test_tensors_become_zarr_arrays() {
  local size
  for size in 1 100 1G; do
    reshard "$ZOO_CKPT" "z$size" --format=zarr --shard-size=$size --ranks=3
    same "$ZOO_CKPT" "z$size" tensors
  done
  (($(find z1G -name 'c*' -type f | wc -l) <= 14)) # empty ones have none
  (($(find z1 -name 'c*' -type f | wc -l) > $(find z100 -name 'c*' -type f | wc -l)))
  reshard z100 dcp --ranks=2
  same z100 dcp
  nothing_left_over
}

# Whatever the other dimensions, an array without elements can be read again.
test_zarr_arrays_without_elements() {
  mkdir empty
  python3 - <<'END'
import json, struct
head = json.dumps({name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name, shape in (
    ("a", [1 << 62, 0]), ("b", [0, 1 << 62]), ("c", [0]), ("d", [2, 0, 1 << 40]))}).encode()
open("empty/model.safetensors", "wb").write(struct.pack("<Q", len(head)) + head)
END
  reshard empty z --format=zarr
  same empty z tensors
  is '[]' "$(ckptfs head z b)"
  is '[]' "$(ckptfs head z a)"
  nothing_left_over
}

test_zarr_arrays_are_replaced_and_nothing_else() {
  reshard "$ZOO_CKPT" x --format=zarr
  reshard "$ZOO_CKPT" y --format=zarr --shard-size=64
  reshard "$ZOO_CKPT" x --format=zarr --shard-size=64 --overwrite
  diff -r x y
  mkdir x/notes
  refused "'.*/x' holds 'notes', which is not part of a checkpoint and would be lost$" ckptfs reshard "$ZOO_CKPT" x --overwrite
  rmdir x/notes
  mkdir x/more
  echo '{}' >x/more/zarr.json
  echo hello >x/more/notes
  refused "'.*/x' holds 'more', which is not part" ckptfs reshard "$ZOO_CKPT" x --overwrite
  rm -r x/more
  reshard "$ZOO_CKPT" x --overwrite
  same "$ZOO_CKPT" x
  [[ ! -e x/zarr.json ]]
  nothing_left_over
}

# A safetensors file with one tensor.
tensor_of_name() {
  python3 -c 'import json, struct, sys
head = json.dumps({sys.argv[1]: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
sys.stdout.buffer.write(struct.pack("<Q", len(head)) + head + b"abcdefgh")' "$1"
}

test_what_zarr_arrays_cannot_be() {
  local name
  mesh_of_six
  refused "layout 'mesh': zarr arrays are written as a whole, without a layout$" ckptfs reshard "$ZOO_CKPT" x --format=zarr --layout=mesh
  echo 's|^model.|model/|' >slashes
  echo 's|^model|__model|' >reserved
  refused "cannot be the name of a directory" ckptfs reshard "$ZOO_CKPT" x --format=zarr --rename=slashes
  refused "a name that zarr reserves" ckptfs reshard "$ZOO_CKPT" x --format=zarr --rename=reserved
  for name in $'tab\tx' $'line\nx' $'\x7f' .zarray .metadata w.safetensors 0.metadata; do
    tensor_of_name "$name" >named.safetensors
    refused "rename it" ckptfs reshard named.safetensors x --format=zarr
  done
  for name in ' a' 'a.' 'w.safetensors2' $'\u00fc' '%41' '*'; do
    tensor_of_name "$name" >named.safetensors
    ckptfs reshard -q named.safetensors y --format=zarr --overwrite
    ckptfs diff -q named.safetensors y
  done
  [[ ! -e x ]]
  nothing_left_over
}

# ---- messages ----

test_it_says_what_it_wrote() {
  status_of 0 ckptfs reshard "$ZOO_CKPT" x --ranks=2
  grep -qE '^x: 14 tensors, 0 objects, [0-9.]+ .?i?B for 2 ranks$' out || fail "$(cat out)"
  status_of 0 ckptfs reshard -q "$ZOO_CKPT" y
  [[ ! -s out && ! -s err ]]
}

test_options_that_cannot_be() {
  local r=(ckptfs reshard "$ZOO_CKPT" x)
  refused "option 'format': 'gguf' is not one of dcp, hyperparallel, safetensors, megatron, zarr " "${r[@]}" --format=gguf
  refused "option 'zstd' is for --format=dcp$" "${r[@]}" --format=safetensors --zstd
  refused "option 'zstd' is for --format=dcp$" "${r[@]}" --format=megatron --zstd
  refused "option 'threads' is for --format=dcp and megatron$" "${r[@]}" --format=hyperparallel --threads=2
  refused "option 'file_per_item' is for --format=dcp and megatron$" "${r[@]}" --format=safetensors --file-per-item
  refused "option 'shard_size' is for --format=safetensors and --format=zarr$" "${r[@]}" --shard-size=1G
  refused "option 'experts' is for --model$" "${r[@]}" --experts=split
  refused "option 'zstd': levels are 1 to 22$" "${r[@]}" --zstd=23
  refused "257 threads are too many: at most 256 are possible$" "${r[@]}" --threads=257
  refused "257 jobs are too many: at most 256 are possible$" "${r[@]}" --jobs=257
  refused "option 'ranks': 'many' is not a whole number from 1 to 4294967295" "${r[@]}" --ranks=many
  refused "option 'ranks': must be at least 1" "${r[@]}" --ranks=0
  refused "option 'zstd': must be at least 1" "${r[@]}" --zstd=0
  refused "65537 ranks are too many: at most 65536 are possible$" "${r[@]}" --ranks=65537
  refused "option 'dtype'.*int8" "${r[@]}" --dtype=int8
  refused "'nowhere'.*No such file" "${r[@]}" --layout=nowhere
  refused "'nowhere'" ckptfs reshard nowhere x
  refused "usage|DST" ckptfs reshard "$ZOO_CKPT"
  mesh_of_six
  refused "layout 'mesh' is for 6 ranks, not 4$" "${r[@]}" --layout=mesh --ranks=4
  [[ $(entries . | xargs -n 1 | sort | xargs) == "err mesh out" ]] || fail "$(entries .)"
}

test_a_layout_must_have_all_of_every_tensor() {
  local r=(ckptfs reshard "$ZOO_CKPT" x --include=model.lm_head.weight --layout=l)
  echo '{"0": {"model.lm_head.weight": {"mesh_shape": [2], "tensor_map": [0, -1], "rank_list": [0, 1]}},
         "1": {}}' >l
  refused "layout 'l': no rank has .*32, ?16.* of 'model.lm_head.weight' at .*32, ?0.*" "${r[@]}"
  echo '{"0": {}, "1": {}}' >l
  refused "layout 'l': no rank has .*64, ?16.* of 'model.lm_head.weight' at .*0, ?0.*" "${r[@]}"
  echo '{"0": {"model.lm_head.weight": {}}, "2": {"model.lm_head.weight": {}}}' >l
  refused "layout 'l': there is no rank 1 of 0 to 2$" "${r[@]}"
  [[ ! -e x ]]
  nothing_left_over
}

test_it_is_for_as_many_ranks_as_the_source() {
  need_fixture mp4_fsdp2_adamw
  ckptfs reshard "$(fixture mp4_fsdp2_adamw)/ckpt" x >out
  grep -q ' for 4 ranks$' out || fail "$(cat out)"
  is 4 "$(ckptfs info --json x | jq .ranks)"
  ckptfs reshard x x --overwrite >out
  grep -q ' for 4 ranks$' out || fail "$(cat out)"
  ckptfs reshard x y --format=hyperparallel >out
  grep -q ' for 4 ranks$' out || fail "$(cat out)"
  is 4 "$(ckptfs info --json y | jq .ranks)"
  # Whole tensors belong to no rank, and safetensors files do not name ranks.
  ckptfs reshard x z --format=safetensors --model >out
  grep -q ' for 1 rank$' out || fail "$(cat out)"
  ckptfs reshard z w >out
  grep -q ' for 1 rank$' out || fail "$(cat out)"
}

test_a_model_has_its_configuration_and_tokenizer_beside_it() {
  local f
  mkdir assets
  for f in config.json generation_config.json tokenizer.json tokenizer_config.json chat_template.jinja; do
    echo "{\"of\": \"$f\"}" >"assets/$f"
  done
  touch assets/empty.txt
  head -c 9000000 /dev/zero >assets/merges.txt
  reshard "$ZOO_CKPT" x --format=safetensors --model --assets=assets
  ckptfs export -q "$ZOO_CKPT" hf hf --assets=assets
  diff -r hf x
  for f in assets/*; do
    cmp "$f" "x/${f#*/}"
  done
  # Assets beside the checkpoint are taken, too, and also with several ranks.
  old_copy "$ZOO_CKPT" c
  cp assets/config.json c
  reshard c y --format=safetensors --model --ranks=3 --shard_size=1K
  cmp assets/config.json y/config.json
  # A new model replaces the old one and its assets, but no other file.
  reshard "$ZOO_CKPT" x --format=safetensors --model --assets=assets --overwrite --shard_size=1K
  cmp assets/config.json x/config.json
  echo hello >x/README
  refused "'.*/x' holds 'README', which is not part of a checkpoint and would be lost$" \
    ckptfs reshard "$ZOO_CKPT" x --format=safetensors --model --assets=assets --overwrite
  rm x/README assets/tokenizer.json
  refused "'.*/x' holds 'tokenizer.json', which is not part of a checkpoint and would be lost$" \
    ckptfs reshard "$ZOO_CKPT" x --format=safetensors --model --assets=assets --overwrite
  refused "'.*/x' holds '[a-z_.]*', which is not part of a checkpoint and would be lost$" \
    ckptfs reshard "$ZOO_CKPT" x --overwrite
  # Only models in safetensors have assets beside them.
  reshard c z
  reshard c w --format=safetensors
  [[ ! -e z/config.json && ! -e w/config.json ]]
  refused "option 'assets' is for --model with --format=safetensors, and for --recipe$" \
    ckptfs reshard "$ZOO_CKPT" v --assets=assets
  nothing_left_over
}

# ---- destinations ----

test_what_is_there_stays() {
  reshard "$ZOO_CKPT" x
  digest x >before
  refused "'.*/x' already exists and is not empty: use the option overwrite to replace it$" ckptfs reshard "$ZOO_CKPT" x
  digest x | cmp - before
  echo hello >x/README
  refused "'.*/x' holds 'README', which is not part of a checkpoint and would be lost$" ckptfs reshard --overwrite "$ZOO_CKPT" x
  rm x/README
  digest x | cmp - before
  touch file
  refused "'.*/file' already exists and is not a directory$" ckptfs reshard --overwrite "$ZOO_CKPT" file
  mkdir empty
  reshard "$ZOO_CKPT" empty
  diff -r x empty
  reshard "$ZOO_CKPT" empty/. --overwrite --ranks=2
  nothing_left_over
}

# If nothing is left to write, nothing is written, least of all over a checkpoint.
cases_nothing_is_not_written() {
  printf '%s\n' "--model --include=optim*" "--exclude=*" "--model --format=safetensors --include=optim*"
}
test_nothing_is_not_written() {
  reshard "$ZOO_CKPT" x
  digest x >before
  refused "reshard: (there is nothing to write|exclude leaves nothing)" ckptfs reshard -q --overwrite "$@" \
    "$ZOO_CKPT" x
  digest x | cmp - before
  refused "nothing" ckptfs reshard -q "$@" "$ZOO_CKPT" y
  [[ ! -e y ]]
  nothing_left_over
}

test_a_file_without_tensors_is_not_written() {
  printf '\2\0\0\0\0\0\0\0{}' >none.safetensors
  refused "reshard: there is nothing to write: no tensor and no object is left" ckptfs reshard none.safetensors x
  [[ ! -e x ]]
}

test_dst_in_src_and_src_in_dst() {
  mkdir d
  reshard "$ZOO_CKPT" d/src
  digest d/src >before
  refused "'.*/d/src' already exists" ckptfs reshard d/src d/src
  refused "'.*/d' holds 'src', which is not part of a checkpoint" ckptfs reshard d/src d --overwrite
  reshard d/src d/src/new --ranks=2
  same d/src d/src/new
  rm -r d/src/new
  digest d/src | cmp - before
  nothing_left_over
}

# The old checkpoint is read until the new one is complete.
test_a_checkpoint_may_be_replaced_by_itself() {
  reshard "$ZOO_CKPT" x --ranks=3
  reshard x x --overwrite --ranks=7 --zstd
  same "$ZOO_CKPT" x
  [[ -e x/__6_0.distcp ]]
  reshard x x --overwrite --format=hyperparallel
  same "$ZOO_CKPT" x tensors
  [[ ! -e x/__6_0.distcp ]]
  nothing_left_over
}

test_two_at_once() {
  local pid
  halted "10000 1000000000 3 19" reshard -q "$(big)/ckpt" x --ranks=16 --jobs=1 --zstd &
  pid=$!
  wait_until is_stopped $pid
  refused "another save to '.*/x' is under way" ckptfs reshard "$ZOO_CKPT" x
  kill -CONT $pid
  wait $pid
  same "$(big)/ckpt" x
  nothing_left_over
}

test_what_somebody_else_has_called_partial() {
  mkdir x.partial
  echo mine >x.partial/w
  refused "'.*x.partial' is in the way" ckptfs reshard "$ZOO_CKPT" x
  [[ $(cat x.partial/w) == mine && ! -e x ]]
}

test_a_directory_that_is_read_only() {
  [[ $(id -u) == 0 ]] || skip "not root"
  mkdir d
  mount -t tmpfs tmpfs d
  mount -o remount,ro d
  refused "'.*d/x'.*Read-only file system" ckptfs reshard "$ZOO_CKPT" d/x
  refused "'no/x'.*No such file" ckptfs reshard "$ZOO_CKPT" no/x
}

# ---- failures ----

test_a_full_disk() {
  local o
  [[ $(id -u) == 0 ]] || skip "not root"
  mkdir small
  mount -t tmpfs -o size=20m tmpfs small
  reshard "$ZOO_CKPT" small/x
  digest small/x >before
  for o in "--ranks=4" "--ranks=3 --threads=2 --jobs=5" "--format=hyperparallel" "--format=safetensors"; do
    # shellcheck disable=SC2086 # words
    refused "'.*(_|model).*'.*No space left on device" ckptfs reshard "$(big)/ckpt" small/y $o
    [[ $(entries small) == x* && ! -e small/y ]] || fail "$(find small)"
    # shellcheck disable=SC2086 # words
    refused "No space left on device" ckptfs reshard "$(big)/ckpt" small/x --overwrite $o
    digest small/x | cmp - before
    nothing_left_over small
  done
  mount -o remount,size=40m small
  reshard "$(big)/ckpt" small/x --overwrite --ranks=4
  same "$(big)/ckpt" small/x
}

# A source that turns out to be truncated while it is read.
test_a_source_that_cannot_be_read() {
  big_copy src
  ckptfs index src 2>/dev/null || true
  truncate -s -100000 src/__w_1.distcp
  status_of 2 ckptfs reshard src x --ranks=2
  [[ $(wc -l <err) == 1 ]] || fail "$(cat err)"
  grep -q "__w_1.distcp" err || fail "$(cat err)"
  [[ ! -e x ]]
  nothing_left_over
}

cases_signals_leave_nothing() { printf '%s\n' INT TERM HUP; }
test_signals_leave_nothing() {
  local pid rc=0
  reshard "$ZOO_CKPT" x
  digest x >before
  # By default a background job ignores SIGINT.
  (trap - INT && halted "10000 1000000000 3 19" reshard "$(big)/ckpt" x --overwrite --ranks=4) &
  pid=$!
  wait_until is_stopped $pid
  [[ -e x.partial ]]
  kill "-$1" $pid
  kill -CONT $pid
  wait $pid || rc=$?
  is $((128 + $(kill -l "$1"))) $rc
  digest x | cmp - before
  nothing_left_over
}

# Saves over a checkpoint are killed. Two checkpoints replace each other at x.
test_killed_at_any_moment_the_old_or_the_new() {
  reshard "$ZOO_CKPT" a --ranks=4
  reshard "$ZOO_CKPT" b --ranks=3 --threads=2 --include='model.*'
  cp -r a x
  helper kill "$CKPTFS" "$ZOO_CKPT"
  nothing_left_over
}

# ---- memory ----

# A tensor of 256 MiB in a sparse safetensors file.
cases_memory_does_not_grow_with_tensors() {
  printf '%s\n' "--ranks=4" "--ranks=2 --threads=2" "--layout=columns" "--zstd=1 --jobs=2" "--format=safetensors" \
    "--format=hyperparallel --ranks=3"
}
test_memory_does_not_grow_with_tensors() {
  echo -e 'mesh tp=4\n* tp:1' >columns
  python3 - src.safetensors <<'END'
import json, sys
header = json.dumps({"w": {"dtype": "BF16", "shape": [16384, 8192], "data_offsets": [0, 1 << 28]}}).encode()
with open(sys.argv[1], "wb") as f:
    f.write(len(header).to_bytes(8, "little") + header)
    for i in range(0, 256, 16):
        f.seek(8 + len(header) + (i << 20))
        f.write(i.to_bytes(8, "little") * 512)
    f.truncate(8 + len(header) + (1 << 28))
END
  mkdir big
  if [[ $(id -u) == 0 ]]; then mount -t tmpfs tmpfs big; fi
  # A sanitizer needs memory of its own, and would keep freed memory in its quarantine.
  local limit=64
  [[ $VARIANT == release ]] || limit=128
  ASAN_OPTIONS+=:quarantine_size_mb=4 helper memory $limit "$CKPTFS" reshard -q src.safetensors big/x "$@"
  same src.safetensors big/x
}

ZOO_CKPT=
if [[ ${1:-} == --inside ]]; then ZOO_CKPT=$(zoo); fi
run_suite "$@"
