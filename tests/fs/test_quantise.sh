#!/bin/bash
# quantize=: hf/ has float8 codes and scales, the same in every way of reading; dequantize= accepts what was exported.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"

# ./bf16, made once.
make_model() {
  mkdir hf
  # shellcheck disable=SC2046 # words
  python3 "$HERE/dequant.py" "$SEED" fp8 bf16 $(python3 "$HERE/gguf.py" model llama hf | cut -d ' ' -f 1,2)
}
model() { once quantised make_model; }

test_every_way_has_the_same_bytes() {
  local dir f
  dir=$(model)/bf16
  mount_at m "$dir" -o quantize=fp8_dynamic,shard_size=20KB
  ckptfs export "$dir" hf written -o quantize=fp8_dynamic,shard_size=20KB
  [[ -e m/hf/model.safetensors.index.json ]] || fail "no index"
  for f in m/hf/*; do
    cmp "$f" "written/${f##*/}" || fail "export: $f"
    cmp "$f" <(ckptfs cat "$dir" "hf/${f##*/}" -o quantize=fp8_dynamic,shard_size=20KB) || fail "cat: $f"
  done
  grep -q 'q_proj.weight_scale"' m/hf/model.safetensors.index.json || fail "no scales in the index"
}

test_what_was_written_is_a_model() {
  local dir
  dir=$(model)/bf16
  ckptfs export "$dir" hf written -o quantize=fp8_dynamic
  is "$(ckptfs ls "$dir" | sorted)" "$(ckptfs ls written -o dequantize=bf16 | sorted)"
  ckptfs info written -o dequantize=bf16,strict >/dev/null
  # Quantising the decoded weights gives the same codes, because a row's largest weight is 448 times its scale.
  ckptfs export written hf again -o dequantize=bf16,quantize=fp8_dynamic
  is "$(ckptfs ls written | sorted)" "$(ckptfs ls again | sorted)"
}

test_other_directories_have_the_weights() {
  local dir face
  dir=$(model)/bf16
  mount_at m "$dir" -o quantize=fp8_dynamic
  mount_at p "$dir"
  for face in tensors npy pt safetensors gguf; do
    diff -r "m/$face" "p/$face" >differ || fail "$face: $(head -n 3 differ)"
  done
  ckptfs info "$dir" -o quantize=fp8_dynamic >out
  [[ $(cat out) == *"hf/: complete for LlamaForCausalLM"* ]] || fail "$(cat out)"
}

run_suite "$@"
