#!/bin/bash
# dequantize=: every directory and every command must show a checkpoint of float8 weights as they show its twin, which
# has the same weights in bfloat16.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"

# ./fp8 and ./bf16, made once.
make_twins() {
  mkdir hf
  # shellcheck disable=SC2046 # words
  python3 "$HERE/dequant.py" "$SEED" fp8 bf16 $(python3 "$HERE/gguf.py" model llama hf | cut -d ' ' -f 1,2)
}
twins() { once dequantised make_twins; }

# same DIR DIR: the files are the same, except in .ckptfs
same() {
  is "$(cd "$1" && find . -type f -printf '%P %s\n' | sorted)" "$(cd "$2" && find . -type f -printf '%P %s\n' | sorted)"
  diff -r "$1" "$2" >differ || fail "$(head -n 3 differ)"
}

cases_every_face_is_the_twins() {
  printf '%s\n' hf safetensors pt tensors npy gguf "hf shard_size=20KB" "gguf gguf_dtype=q8_0" "pt dtype=fp32" \
    "hf include=*mlp*"
}
test_every_face_is_the_twins() {
  local dir
  dir=$(twins)
  mount_at a "$dir/fp8" -o "dequantize=bf16${2:+,$2}"
  mount_at b "$dir/bf16" ${2:+-o "$2"}
  [[ -n $(ls "a/$1") ]] || fail "nothing in $1/"
  same "a/$1" "b/$1"
}

test_the_configuration_says_nothing_of_codes() {
  mount_at m "$(twins)/fp8" -o dequantize=fp16
  ! grep quantization_config m/hf/config.json || fail "config.json has quantization_config"
  is "" "$(find m/tensors -name '*scale*')"
  is float16 "$(ckptfs info --json "$(twins)/fp8" -o dequantize=fp16 model.layers.0.mlp.up_proj.weight |
    sed -n 's/.*"dtype": "\([^"]*\)".*/\1/p' | head -n 1)"
}

# A tensor subclass of torchao in DCP is shown as its parts, or as the tensor that it stands for.
test_a_subclass_is_the_tensor_it_stands_for() {
  need_fixture dcp_wrapped
  mount_at a "$DATA/dcp_wrapped/ckpt"
  mount_at b "$DATA/dcp_wrapped/ckpt" -o dequantize=bf16
  [[ -e a/tensors/model.float8.qdata && ! -e a/tensors/model.float8 ]]
  [[ ! -e b/tensors/model.float8.qdata && ! -e b/tensors/model.float8.scale ]]
  is '[64,96]' "$(getfattr --only-values -n user.ckptfs.shape b/tensors/model.float8)"
  python3 "$HERE/dequant.py" same a/tensors/model.float8.qdata a/tensors/model.float8.scale b/tensors/model.float8 32
}

# Subclasses of torchao and Transformer Engine, against the weights that torch's operations make of them.
cases_every_face_has_what_subclasses_stand_for() { printf '%s\n' "dcp_subclasses exp_avg 4" "dcp_cut exp_avg.8 7"; }
test_every_face_has_what_subclasses_stand_for() {
  local data face
  need_fixture "$1"
  data=$DATA/$1
  mount_at a "$data/ckpt" -o dequantize=bf16
  mount_at b "$data/weights"
  for face in tensors npy safetensors; do
    same "a/$face" "b/$face"
  done
  ckptfs cat "$data/ckpt" "tensors/$2" -o dequantize=bf16 | cmp - "b/tensors/$2"
  ckptfs diff "$data/ckpt" "$data/weights" -o dequantize=bf16 >out 2>&1 || fail "$(cat out)"
  is "$3 equal, 0 differ, 0 only in A, 0 only in B" "$(tail -n 1 out)"
  ckptfs stat "$data/ckpt" -o dequantize=bf16 >have
  ckptfs stat "$data/weights" >want
  diff have want >differ || fail "$(head -n 5 differ)"
  ckptfs export "$data/ckpt" safetensors one -o dequantize=bf16
  same one b/safetensors
  ckptfs reshard "$data/ckpt" dcp -o dequantize=bf16
  ckptfs diff dcp "$data/weights"
}

test_commands_see_the_weights() {
  local dir what
  dir=$(twins)
  ckptfs diff "$dir/fp8" "$dir/bf16" -o dequantize=bf16 >out 2>warning || fail "$(cat out)"
  is "ckptfs: warning: option 'dequantize' does nothing: no tensor holds codes that have scales" "$(cat warning)"
  for what in sum stat head; do
    set --
    [[ $what != head ]] || set -- model.layers.1.mlp.up_proj.weight '[3:9, ::7]'
    ckptfs "$what" "$dir/fp8" "$@" -o dequantize=bf16 >have
    ckptfs "$what" "$dir/bf16" "$@" >want
    diff have want >differ || fail "$what: $(head -n 5 differ)"
  done
}

test_what_is_written_has_the_weights() {
  local dir
  dir=$(twins)
  ckptfs export "$dir/fp8" hf one -o dequantize=bf16
  ckptfs export "$dir/bf16" hf two
  same one two
  ckptfs reshard "$dir/fp8" three -o dequantize=bf16
  ckptfs diff three "$dir/bf16" >out || fail "$(cat out)"
}

# Wherever rows are cut, the weights of a part are those of the whole.
test_a_part_is_a_part_of_the_whole() {
  local dir i off
  dir=$(twins)
  mount_at m "$dir/fp8" -o dequantize=bf16
  for i in {1..20}; do
    off=$((RANDOM % 12000))
    cmp <(tail -c +$((off + 1)) m/tensors/model.layers.1.mlp.up_proj.weight | head -c "$i") \
      <(dd if="m/tensors/model.layers.1.mlp.up_proj.weight" bs=1 skip=$off count="$i" status=none)
  done
}

test_scales_that_are_gone_are_named() {
  cp -r "$(twins)/fp8" ckpt
  chmod -R u+w ckpt
  sed -i 's/"model.layers.1.mlp.up_proj.weight_scale_inv"/"model.layers.1.mlp.up_proj.weight_scale_bad"/' ckpt/*.safetensors \
    ckpt/*.json
  status_of 2 ckptfs info ckpt -o dequantize=bf16
  [[ $(cat "$T/err") == *"'model.layers.1.mlp.up_proj.weight' holds codes (float8_e4m3fn), but"*"does not exist"* ]] ||
    fail "$(cat "$T/err")"
}

run_suite "$@"
