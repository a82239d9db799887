#!/bin/bash
# hf/, safetensors/, pt/ and the options that decide what is in them.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
long="a_hundred_thousand_tensors shards_keep_their_size incomplete_tensors_are_left_out weights_names_the_model"

# Tensors of two elements each: small DIR [--nested|--flat] NAME...
small() {
  local dir=$1 name args=()
  shift
  if [[ $1 == --* ]]; then
    args=("$1")
    shift
  fi
  args+=("$dir")
  for name in "$@"; do
    args+=("$name" 1x2 1x1)
  done
  make_dcp "${args[@]}"
}

# The names of the tensors in a safetensors file; also writes their hashes to ./digests.
names_in() {
  readers digest "$1" >digests
  sed 's/^[0-9a-f]*  //' digests | sorted
}

# hf_names CKPT [options]: the names of the tensors in its hf/
hf_names() {
  local ckpt=$1
  shift
  ckptfs cat "$ckpt" hf/model.safetensors "$@" >file
  names_in file
}

# ---- what the files are ----

test_hf_is_the_model() {
  mount_at m "$(zoo)"
  is model.safetensors "$(ls m/hf)"
  is "$ZOO" "$(readers safetensors m/hf/model.safetensors m/tensors model. | sorted)"
}

test_safetensors_has_every_tensor() {
  mount_at m "$(zoo)"
  is model.safetensors "$(ls m/safetensors)"
  is "$(find m/tensors -type f -printf '%f\n' | sorted)" \
    "$(readers safetensors m/safetensors/model.safetensors m/tensors | sorted)"
  ckptfs umount m
  mount_at m "$(zoo)" -o weights=model
  is "$ZOO" "$(readers safetensors m/safetensors/model.safetensors m/tensors model. | sorted)"
}

test_pt_is_what_torch_would_save() {
  mount_at m "$(zoo)"
  is model.pt "$(ls m/pt)"
  is "$ZOO" "$(readers pt m/pt/model.pt m/tensors model. | sorted)"
  python3 -m zipfile -l m/pt/model.pt >listed
  is 11 "$(grep -c '^model/data/' listed)"
}

cases_shards_keep_their_size() { printf '%s\n' 1 1000 2KB 4KiB; }
test_shards_keep_their_size() {
  local f
  local -A bytes=([2KB]=2000 [4KiB]=4096)
  mount_at m "$(zoo)" -o shard_size="$1"
  readers index m/hf "${bytes[$1]:-$1}"
  for f in m/hf/*.safetensors; do
    readers safetensors "$f" m/tensors model.
  done >names
  is "$ZOO" "$(sorted <names)"
}

test_one_file_when_everything_fits() {
  local bytes
  mount_at m "$(zoo)"
  bytes=$(stat -c %s m/tensors/model.* | awk '{ n += $1 } END { print n }')
  mount_at just "$(zoo)" -o shard_size="$bytes"
  mount_at more "$(zoo)" -o shard_size=$((bytes - 1))
  is model.safetensors "$(ls just/hf)"
  is "model-00001-of-00002.safetensors model-00002-of-00002.safetensors model.safetensors.index.json" "$(entries more/hf)"
}

test_a_checkpoint_without_weights_has_an_empty_model() {
  small c --nested optim.a optim.b
  mount_at m c
  readers digest m/hf/model.safetensors >names
  [[ ! -s names ]]
  readers pt m/pt/model.pt m/tensors >names
  is "" "$(xargs <names)" # no names, but a readable file
  is "optim.a optim.b" "$(names_in m/safetensors/model.safetensors)"
}

# ---- ways of reading ----

test_every_way_of_reading_gives_the_same() {
  local f
  mkdir d copy tar sparse
  echo '{}' >d/config.json
  mount_at m "$(zoo)" -o shard_size=1500,assets=d
  (cd m && find hf pt safetensors -type f | LC_ALL=C sort) >files
  (($(wc -l <files) >= 7)) || fail "$(cat files)"
  (cd m && xargs sha256sum <../files) >sums
  while read -r f; do
    ckptfs cat "$(zoo)" "$f" -o shard_size=1500,assets=d >c
    is "$(stat -c %s c)" "$(stat -c %s "m/$f")"
    echo "$(sha256sum <c | cut -d' ' -f1)  $f"
  done <files >by_cat
  diff sums by_cat
  (cd m && xargs "$PYTHON" -S -E "$HERE/readers.py" map <../files) | diff sums -
  cp -r m/hf m/pt m/safetensors copy
  tar -C m -cf - hf pt safetensors | tar -C tar -xf -
  tar -C m -S -cf - hf pt safetensors | tar -C sparse -xf -
  for f in copy tar sparse; do
    (cd $f && sha256sum --quiet -c ../sums)
  done
}

# In files that are put together from several tensors, some of them cast.
cases_reads_may_begin_and_end_anywhere() {
  printf '%s\n' hf/model.safetensors pt/model.pt tensors/model.layers.0.q.weight
}
test_reads_may_begin_and_end_anywhere() {
  mount_at m "$(zoo)" -o dtype=bf16
  cp "m/$1" whole
  dd if="m/$1" bs=1 skip=101 count=33 status=none | cmp - <(tail -c +102 whole | head -c 33)
  dd if="m/$1" bs=3 skip=35 count=77 status=none | cmp - <(tail -c +106 whole | head -c 231)
  # The page cache asks for whole pages; nothing must depend on that, so this also reads directly.
  python3 - "m/$1" whole <<'END'
import mmap, os, random, sys
seed = int.from_bytes(os.urandom(4), "little")
print("seed", seed)
source, whole = random.Random(seed), open(sys.argv[2], "rb").read()
plain = os.open(sys.argv[1], os.O_RDONLY)
direct = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
for i in range(300):
    at, n = source.randrange(len(whole) + 5), source.choice((1, 2, 3, 5, 7, 63, 4097))
    for fd in plain, direct:
        assert os.pread(fd, n, at) == whole[at : at + n], (at, n)
END
}

# ---- casts ----

# Whoever loads hf/ converts to the type that config.json names.
cases_config_json_names_the_dtype_asked_for() { printf '%s\n' torch_dtype dtype; }
test_config_json_names_the_dtype_asked_for() {
  mkdir assets
  echo "{\"model_type\": \"llama\", \"$1\": \"bfloat16\", \"text_config\": {\"torch_dtype\": \"bfloat16\", \"n\": 1}}" >assets/config.json
  mount_at m "$(zoo)" -o assets=assets,dtype=fp16
  jq -e ".$1 == \"float16\" and .model_type == \"llama\" and .text_config == {n: 1}" m/hf/config.json
  ckptfs cat "$(zoo)" hf/config.json -o assets=assets,dtype=fp16 | cmp - m/hf/config.json
  ckptfs cat "$(zoo)" hf/config.json -o assets=assets,dtype=bf16 | cmp - assets/config.json # nothing to change
  ckptfs cat "$(zoo)" hf/config.json -o assets=assets | cmp - assets/config.json
  for text in '{}' ' { } ' '{"torch_dtype": "float32"}' '{"model_type": "llama"}' '{"dtype": null}'; do
    echo "$text" >assets/config.json
    ckptfs cat "$(zoo)" hf/config.json -o assets=assets,dtype=fp16 >out.json
    if [[ $text == *float32* ]]; then jq -e '. == {torch_dtype: "float16"}' out.json; else cmp out.json assets/config.json; fi
  done
}

cases_dtype_casts_floats_and_nothing_else() {
  printf '%s\n' 'bf16 bfloat16' 'fp16 float16' 'fp32 float32'
}
test_dtype_casts_floats_and_nothing_else() {
  mount_at plain "$(zoo)"
  mount_at m "$(zoo)" --dtype="$1"
  is "bfloat16 bool float16 float32 float64 int32 int64 uint8" "$(readers cast plain/tensors m/tensors "$2")"
  is "$ZOO" "$(readers safetensors m/hf/model.safetensors m/tensors model. | sorted)"
  is "$ZOO" "$(readers pt m/pt/model.pt m/tensors model. | sorted)"
  is "$2" "$(getfattr --only-values -n user.ckptfs.dtype m/npy/model.scale.npy)"
  ckptfs ls -l "$(zoo)" --dtype="$1" | grep -E "^$2 +\[13,24\] .* model.layers.0.q.weight\$" >/dev/null
  ckptfs cat "$(zoo)" --dtype="$1" hf/model.safetensors | cmp - m/hf/model.safetensors
}

# ---- which tensors, under which names ----

# Each case: stored names, a colon, and the names in the model.
cases_the_model_is() {
  cat <<'END'
--nested model.a model.b.c optim.a : a b.c
--nested model.a model.norm.x other optim.a : a norm.x
--flat model.a model.layers.0.w lm_head.weight optim.a : lm_head.weight model.a model.layers.0.w
model.a model.layers.0.w lm_head.weight optim.a : lm_head.weight model.a model.layers.0.w
model.a model.b optim.a : a b
a b.c optim.x optimizer.x optimizers.x lr_scheduler.x dataloader.x train_state.x optimum.x : a b.c optimum.x
--nested model.module.a model._orig_mod.b.c model.d._fsdp_wrapped_module.e : a b.c d.e
module.x._checkpoint_wrapped_module._orig_mod.y module.submodule.z : submodule.z x.y
END
}
test_the_model_is() {
  local stored=() name model short
  while [[ $1 != : ]]; do
    stored+=("$1")
    shift
  done
  shift
  small c "${stored[@]}"
  is "$*" "$(hf_names c)"
  # Each has the bytes of the stored tensor that has this name, apart from wrappers.
  for name in c.*.bin; do
    short=$(sed -E 's/^c\.//; s/\.bin$//; s/(^|\.)((module|_orig_mod|_(fsdp|checkpoint)_wrapped_module)\.)+/\1/g' <<<"$name")
    echo "$(sha256sum <"$name" | cut -d' ' -f1)  $short"
  done >stored
  while read -r sum model; do
    grep -qxE "$sum  (model\.)?$model" stored || fail "bytes of $model"
  done <digests
}

test_weights_names_the_model() {
  small c --nested model.a teacher.a teacher.b.c teachers.d
  is a "$(hf_names c)"
  is c "$(hf_names c -o weights=teacher.b)"
  is "a b.c" "$(hf_names c --weights teacher.)"
  is "a b.c" "$(hf_names c --weights=teacher)"
  is "$(sha256sum <c.teacher.b.c.bin | cut -d' ' -f1)" "$(sed -n 's/  b\.c$//p' digests)"
  ckptfs cat c .ckptfs/info.json -o weights=teacher >info
  python3 - info <<'END'
import json, sys
model = json.load(open(sys.argv[1]))["model"]
assert (model["prefix"], model["tensors"], model["bytes"]) == ("teacher.", 2, 16), model
END
}

test_rename_holds_everywhere() {
  small c --flat net.enc.0.wq net.enc.0.wk net.enc.10.wq optim.net.enc.0.wq
  printf '%s\n' '# rules' '' 's/^net\.enc/model.layers/' 's|\.w([qk])$|.\1_proj.weight|' >rules
  mount_at m c -o rename=rules
  is "model.layers.0.k_proj.weight model.layers.0.q_proj.weight model.layers.10.q_proj.weight optim.net.enc.0.q_proj.weight" \
    "$(entries m/tensors)"
  cmp c.net.enc.10.wq.bin m/tensors/model.layers.10.q_proj.weight
  tail -c 8 m/npy/model.layers.0.k_proj.weight.npy | cmp - c.net.enc.0.wk.bin
  is optim.net.enc.0.q_proj.weight \
    "$(getfattr --only-values -n user.ckptfs.fqn m/tensors/optim.net.enc.0.q_proj.weight)"
  [[ ! -e m/tensors/net.enc.0.wq ]]
  readers safetensors m/safetensors/model.safetensors m/tensors >/dev/null
  is model.layers.0.k_proj.weight "$(ckptfs ls c --rename rules | head -1)"
  status_of 1 ckptfs ls c --rename rules 'net*'
  ckptfs cat c --rename=rules --fqn model.layers.0.q_proj.weight | cmp - c.net.enc.0.wq.bin
}

test_options_for_names_combine() {
  printf '%s\n' 's/^old\.model/new.net/' 's/_w$/.weight/' >rules
  small c --nested old.model.a_w old.model.b_w old.model.c old.ema.a_w
  # include and exclude match stored names, weights the renamed ones.
  mount_at m c -o 'include=old.model.*,exclude=*.b_w,rename=rules,weights=new.net'
  is "new.net.a.weight new.net.c" "$(entries m/tensors)"
  is "a.weight c" "$(readers safetensors m/hf/model.safetensors m/tensors new.net. | sorted)"
  is "a.weight c" "$(readers pt m/pt/model.pt m/tensors new.net. | sorted)"
  refused "'weights': no tensor's name begins with 'old.model\.'" ckptfs info c -o rename=rules,weights=old.model
  refused "no tensor's name begins with 'new.net\.'" ckptfs info c -o 'exclude=*model*,rename=rules,weights=new.net'
}

test_names_that_collide_are_named() {
  small c --flat model.module.a model.a b.x b.y
  mkdir m
  # Nobody asked for a model: a warning, and the rest of the tree.
  status_of 0 ckptfs mount -q c m
  is 1 "$(wc -l <err)"
  grep -q "^ckptfs: warning: no hf/ and pt/.*'model.a' and 'model.module.a' would both be called 'model.a'" err ||
    fail "$(cat err)"
  is ".ckptfs npy objects safetensors tensors" "$(entries m)"
  cmp m/tensors/model.module.a c.model.module.a.bin
  is "b.x b.y model.a model.module.a" "$(names_in m/safetensors/model.safetensors)"
  grep -q '"model": null' m/.ckptfs/info.json
  # If a model is requested explicitly, it is an error.
  refused "'model.a' and 'model.module.a' would both be called 'a'" ckptfs info c -o weights=model
  is "x y" "$(hf_names c -o weights=b)"
  echo 's/^b\.[xy]/b.z/' >rules
  refused "'b.x' and 'b.y' would both be called 'b.z'" ckptfs ls c -o rename=rules
  status_of 0 ckptfs ls c -o exclude=model.a
  [[ ! -s err ]] || fail "$(cat err)"
}

# ---- assets ----

test_assets_are_shown_unchanged() {
  local f
  mkdir -p d/sub
  printf '{"a": 1}' >d/config.json
  head -c 3000000 /dev/urandom >d/tokenizer.model
  : >d/empty.txt
  echo x >'d/10 a%b.txt'
  echo y >d/2.txt
  echo hidden >d/.hidden
  for f in model.safetensors model-00001-of-00002.safetensors model.safetensors.index.json pytorch_model.bin \
    pytorch_model.bin.index.json a.pt b.pth c.gguf d.h5 e.msgpack f.ckpt g.onnx; do
    echo weights >"d/$f"
  done
  touch -d '2020-02-02 02:02:02.5' d/config.json
  echo far >elsewhere
  ln -s ../elsewhere d/link.json # links are allowed in a directory that the user names
  mkfifo d/fifo.json || true # SFTP has none
  mount_at m "$(zoo)" -o assets=d
  is "2.txt 10 a%b.txt config.json empty.txt link.json model.safetensors tokenizer.model" "$(entries m/hf)"
  for f in config.json tokenizer.model empty.txt '10 a%b.txt' 2.txt link.json; do
    cmp "d/$f" "m/hf/$f"
    is "$(stat -L -c %s "d/$f")" "$(stat -c %s "m/hf/$f")"
  done
  is "$(stat -c %y d/config.json)" "$(stat -c %y m/hf/config.json)"
  dd if=m/hf/tokenizer.model bs=7 skip=123456 count=1 status=none |
    cmp - <(tail -c +$((7 * 123456 + 1)) d/tokenizer.model | head -c 7)
  ckptfs cat "$(zoo)" --assets=d hf/tokenizer.model hf/2.txt | cmp - <(cat d/tokenizer.model d/2.txt)
  LC_ALL=C touch m/hf/config.json 2>err || true
  grep -q 'Read-only file system' err
}

test_assets_are_found_beside_the_checkpoint() {
  mkdir run other
  old_copy "$(zoo)" run/step-1
  echo '{"of": "step"}' >run/step-1/config.json
  echo '{"of": "run"}' >run/config.json
  echo tokens >run/tokenizer.json
  echo notes >run/notes.txt
  echo weights >run/model.safetensors
  mkdir run/vocab.json
  mount_at m run/step-1
  is "config.json model.safetensors tokenizer.json" "$(entries m/hf)"
  cmp m/hf/config.json run/step-1/config.json
  cmp m/hf/tokenizer.json run/tokenizer.json
  is "$ZOO" "$(readers safetensors m/hf/model.safetensors m/tensors model. | sorted)"
  ckptfs umount m
  echo other >other/merges.txt
  mount_at m run/step-1 -o assets=other
  is "merges.txt model.safetensors" "$(entries m/hf)"
}

test_links_out_of_the_checkpoint_are_not_followed() {
  mkdir run
  old_copy "$(zoo)" run/c
  echo secret >secret
  echo inner >run/c/inner.json
  ln -s ../../secret run/c/config.json
  ln -s "$T/secret" run/tokenizer.json
  ln -s inner.json run/c/merges.txt
  ln -s c/inner.json run/vocab.json
  mount_at m run/c
  is "merges.txt model.safetensors vocab.json" "$(entries m/hf)"
  is "inner inner" "$(cat m/hf/merges.txt m/hf/vocab.json | xargs)"
}

# hub REVISION...: a cache of the Hugging Face Hub with these revisions of a model
hub() {
  local revision
  mkdir -p models--a--b/{blobs,refs}
  ckptfs cat "$(zoo)" hf/model.safetensors >models--a--b/blobs/aa11
  echo '{"of": "hub"}' >models--a--b/blobs/bb22
  printf %s "$1" >models--a--b/refs/main
  for revision; do
    mkdir -p "models--a--b/snapshots/$revision"
    ln -s ../../blobs/aa11 "models--a--b/snapshots/$revision/model.safetensors"
    ln -s ../../blobs/bb22 "models--a--b/snapshots/$revision/config.json"
  done
}

cases_a_snapshot_of_the_hugging_face_cache_is_a_checkpoint() { printf '%s\n' auto off; }
test_a_snapshot_of_the_hugging_face_cache_is_a_checkpoint() {
  hub r1
  mount_at m models--a--b/snapshots/r1 -o "sandbox=$1"
  is "config.json model.safetensors" "$(entries m/hf)"
  cmp m/hf/config.json models--a--b/blobs/bb22
  is "$(readers digest models--a--b/blobs/aa11 | sorted)" "$(readers digest m/hf/model.safetensors | sorted)"
  status_of 0 ckptfs check --data models--a--b/snapshots/r1
  status_of 0 ckptfs diff models--a--b/snapshots/r1 models--a--b/blobs/aa11
  ckptfs umount m
}

cases_a_file_of_a_snapshot_has_the_files_beside_it() { printf '%s\n' auto off; }
test_a_file_of_a_snapshot_has_the_files_beside_it() {
  local snapshot=models--a--b/snapshots/r1
  hub r1
  mount_at m $snapshot/model.safetensors -o "sandbox=$1"
  is "config.json model.safetensors" "$(entries m/hf)"
  cmp m/hf/config.json models--a--b/blobs/bb22
  is "$(readers digest models--a--b/blobs/aa11 | sorted)" "$(readers digest m/hf/model.safetensors | sorted)"
  ckptfs umount m
  # A link to a file has what is beside the link, or beside the file, but never some of each.
  mkdir d
  ln -s ../$snapshot/model.safetensors d/link.safetensors
  ckptfs cat d/link.safetensors hf/config.json | cmp - models--a--b/blobs/bb22
  echo '{"of": "d"}' >d/config.json
  ckptfs cat d/link.safetensors hf/config.json | cmp - d/config.json
}

latest_is() { [[ $(readlink m/latest) == "$1" ]]; }
cases_a_repository_of_the_hugging_face_cache_is_a_run() { printf '%s\n' auto off; }
test_a_repository_of_the_hugging_face_cache_is_a_run() {
  hub r1 r2
  mount_at m models--a--b -o "sandbox=$1"
  is ".ckptfs latest r1 r2" "$(entries m)"
  is r1 "$(readlink m/latest)"
  cmp m/latest/hf/config.json models--a--b/blobs/bb22
  cmp m/r1/hf/model.safetensors m/r2/hf/model.safetensors
  # Another revision is downloaded.
  hub r3
  wait_until test -d m/r3
  wait_until latest_is r3
  cmp m/r3/hf/config.json models--a--b/blobs/bb22
  # If refs/main names no snapshot, there is no latest.
  printf ../refs >models--a--b/refs/main
  wait_until latest_is ""
  ckptfs umount m
  status_of 0 ckptfs info models--a--b
  grep -q '^latest  *none' out || fail "$(cat out)"
  rm -r models--a--b/snapshots/r[12] models--a--b/refs
  status_of 0 ckptfs info models--a--b
  grep -q '^latest  *r3$' out || fail "$(cat out)"
  status_of 0 ckptfs ls models--a--b/snapshots
  is r3 "$(cat out)"
}

test_a_snapshot_shows_nothing_else_of_the_machine() {
  local link
  hub r1
  cp models--a--b/blobs/aa11 secret
  cp secret models--a--b/
  for link in ../../../secret ../../secret "$T/secret" "$T/models--a--b/blobs/aa11" ../../blobs/../secret; do
    ln -sfn "$link" models--a--b/snapshots/r1/model.safetensors
    refused 'a link leads out of the checkpoint' ckptfs info models--a--b/snapshots/r1
    ln -sfn "$link" models--a--b/snapshots/r1/config.json
  done
  ln -sfn ../../blobs/aa11 models--a--b/snapshots/r1/model.safetensors
  mount_at m models--a--b/snapshots/r1
  is model.safetensors "$(entries m/hf)"
  ckptfs umount m
  mv models--a--b/blobs blobs
  ln -s ../blobs models--a--b/blobs
  refused "'model.safetensors' is not a regular file of the checkpoint" ckptfs mount models--a--b/snapshots/r1 m
}

# For the checkpoints of a run, too.
test_info_says_where_assets_are_from() {
  mkdir run given
  old_copy "$(zoo)" run/step-1
  echo '{}' >run/step-1/config.json
  echo tokens >run/tokenizer.json
  echo g >given/notes.txt
  status_of 0 ckptfs info run/step-1
  grep -q "^assets      config\.json in the checkpoint's directory: $T/run/step-1/config.json$" out
  grep -q "^            tokenizer\.json in the directory above: $T/run/tokenizer.json$" out
  status_of 0 ckptfs info --assets=given run/step-1
  grep -q "^assets      notes\.txt of assets=: $T/given/notes.txt$" out
  [[ $(grep -c json: out) == 0 ]]
  mount_at m run
  for info in "$(ckptfs info --json run/step-1)" "$(cat m/step-1/.ckptfs/info.json)"; do
    python3 - "$T/run" "$info" <<'END'
import json, sys
run, info = sys.argv[1], json.loads(sys.argv[2])
assert info["assets"] == [
    {"name": "config.json", "from": "checkpoint", "path": f"{run}/step-1/config.json"},
    {"name": "tokenizer.json", "from": "parent", "path": f"{run}/tokenizer.json"}], info["assets"]
assert info["assets_refused"] == [], info["assets_refused"]
END
  done
}

test_files_that_others_put_beside_the_checkpoint_are_not_used() {
  local why
  [[ $(id -u) == 0 ]] || skip "not root"
  mkdir run
  old_copy "$(zoo)" run/step-1
  echo own >run/step-1/vocab.txt
  echo theirs | tee run/config.json >run/tokenizer.json
  chown 65534 run/config.json
  chmod 666 run/tokenizer.json
  why="'$T/run/config.json' is not used: it belongs to user 65534, the checkpoint does not (and 1 more beside it)"
  status_of 0 ckptfs cat run/step-1 hf/vocab.txt
  is 1 "$(wc -l <err)"
  grep -qF "ckptfs: warning: $why" err || fail "$(cat err)"
  status_of 0 ckptfs info run/step-1
  grep -qF "no asset    $why" out || fail "$(cat out)"
  mount_at m run
  is "model.safetensors vocab.txt" "$(entries m/step-1/hf)"
  grep -qF '"assets_refused": ["'"$why" m/step-1/.ckptfs/info.json
  status_of 2 ckptfs cat run/step-1 hf/config.json
  is theirs "$(ckptfs cat --assets=run run/step-1 hf/config.json)"
}

test_an_asset_that_changes_is_an_error() {
  mkdir d
  echo 12345678 >d/config.json
  echo stays >d/vocab.txt
  mount_at m "$(zoo)" -o assets=d
  echo 1 >d/config.json
  try_eio cat m/hf/config.json
  is stays "$(cat m/hf/vocab.txt)"
}

# ---- what is left out ----

test_incomplete_tensors_are_left_out() {
  local rest=${ZOO/ layers.0.q.weight/} f
  cp -r "$(zoo)" c
  rm c/__model.layers.0.q.weight_1.distcp c/__optim.state.exp_avg_0.distcp
  mount_at m c -o allow_missing,shard_size=1000
  readers index m/hf 1000
  for f in m/hf/*.safetensors; do
    readers safetensors "$f" m/tensors model.
  done >names
  is "$rest" "$(sorted <names)"
  is "$rest" "$(readers pt m/pt/model.pt m/tensors model. | sorted)"
  is 12 "$(readers safetensors m/safetensors/model.safetensors m/tensors | wc -l)"
  [[ -e m/tensors/model.layers.0.q.weight ]]
  try_eio cat m/tensors/model.layers.0.q.weight
  python3 - m/.ckptfs/info.json <<'END'
import json, sys
info = json.load(open(sys.argv[1]))
assert info["complete"] is False and info["incomplete"] == 2, info
(left,) = info["model"]["left_out"]
assert left["tensor"] == "layers.0.q.weight", left
assert "__model.layers.0.q.weight_1.distcp" in left["why"], left
END
}

test_what_safetensors_cannot_hold_is_left_out() {
  need_fixture dtypes
  mount_at m "$(fixture dtypes)/ckpt"
  python3 - m <<'END'
import json, os, sys
m = sys.argv[1]
with open(f"{m}/hf/model.safetensors", "rb") as f:
    header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
model = json.load(open(f"{m}/.ckptfs/info.json"))["model"]
left = {t["tensor"]: t["why"] for t in model["left_out"]}
fqns = {os.getxattr(f"{m}/tensors/{n}", "user.ckptfs.fqn").decode() for n in os.listdir(f"{m}/tensors")}
names = {n.removeprefix(model["prefix"]) for n in fqns}
inside = set(header) - {"__metadata__"}
assert left and inside | set(left) == names and not inside & set(left), (left, names)
for name, why in left.items():
    dtype = os.getxattr(f"{m}/tensors/{model['prefix']}{name}", "user.ckptfs.dtype").decode()
    assert f"safetensors has no type {dtype}" in why or dtype.startswith("float4"), (name, why)
END
}

# ---- errors ----

# Each case: the option, the contents of the file f, words of the message.
cases_bad_options_are_errors() {
  cat <<'END'
rename=absent - option.'rename':.*'absent':.no.such.file
rename=. - option.'rename':.*directory
rename=f s/a/b option.'rename':.'f'.line.1:.no.'/'.after.the.replacement
rename=f s/a/b/\n\ns/(/x/ 'f'.line.3:
rename=f s/a/b/\nfoo 'f'.line.2:.not.a.rule
rename=f s/a/\\1/ 'f'.line.1:.*groups
rename=f s/a/b/x 'f'.line.1:.'x'.after.the.rule
rename=f s/.*// 'f'.line.1:.'.*'.becomes.nothing
dtype=int8 - option.'dtype':.'int8'.is.not.one.of.bf16
dtype - option.'dtype'.needs.a.value
weights=nothing - option.'weights':.no.tensor's.name.begins.with.'nothing\.'
weights=mod - no.tensor's.name.begins.with.'mod\.'
shard_size=many - option.'shard_size':.'many'.is.not.a.size
shard_size=-1 - option.'shard_size':.'-1'.is.not.a.size
shard_size=5XB - option.'shard_size':.'5XB'.is.not.a.size
shard_size=0 - option.'shard_size':.must.be.at.least.1
assets=absent - assets.directory.'absent':.no.such.file
assets=f x assets.directory.'f':.not.a.directory
END
}
test_bad_options_are_errors() {
  mkdir m
  printf '%b' "$2" >f
  refused "$3" ckptfs mount "$(zoo)" m -o "$1"
  unmounted m
  refused "$3" ckptfs cat "$(zoo)" hf/model.safetensors -o "$1"
}

test_rules_that_match_nothing_are_warnings() {
  mkdir m
  printf '%s\n' 's/^model/model/' '' 's/nothing/x/' 's/neither/y/' >rules
  cat >wanted <<'END'
ckptfs: warning: rules:3: 's/nothing/x/' matches no FQN
ckptfs: warning: rules:4: 's/neither/y/' matches no FQN
END
  status_of 0 ckptfs mount -q "$(zoo)" m -o rename=rules
  diff wanted err
  is_mounted m
  status_of 0 ckptfs ls "$(zoo)" -o rename=rules
  diff wanted err
}

# ---- many tensors ----

# timed WHAT COMMAND...: its stdout goes to $T/out, and the time that it took to the log
timed() {
  local what=$1 start
  shift
  start=${EPOCHREALTIME/./}
  "$@" >"$T/out" || fail "$what: exit status $?"
  echo "$(((${EPOCHREALTIME/./} - start) / 1000)) ms: $what" | tee -a "${TIMES:-/dev/null}"
}

test_a_hundred_thousand_tensors() {
  local n=20000 # in a short run; 500 per shard
  ! is_full || n=100000
  make_dcp --many $n c
  mkdir m
  printf '%s\n' 'mesh dp=8 tp=8' '* tp:0' >layout
  timed "mount, index built" ckptfs mount c m -o layout=layout,shard_size=2000
  ckptfs umount m
  timed "mount" ckptfs mount c m -o layout=layout,shard_size=2000
  timed "ls -l hf" ls -l m/hf
  is $((n / 500 + 2)) "$(wc -l <out)"
  timed "ls ranks" ls m/ranks
  is 128 "$(wc -l <out)"
  timed "hf/model.safetensors.index.json" cat m/hf/model.safetensors.index.json
  is $n "$(grep -c '\.w":' out)"
  timed "header of a shard" head -c 4096 "m/hf/model-00010-of-$(printf %05d $((n / 500))).safetensors"
  timed "header of safetensors/" head -c 4096 m/safetensors/model.safetensors
  timed "cat hf/model.safetensors" ckptfs cat c hf/model.safetensors
  is $n "$(names_in out | wc -w)"
}

run_suite "$@"
