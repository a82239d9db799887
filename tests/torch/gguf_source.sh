#!/bin/bash
# tests/torch/gguf_source.sh [SEED]
#
# GGUF files of llama.cpp's converter and of llama-quantize, opened as checkpoints: `diff` proves from which models they
# were made, under the names of Hugging Face they are these models again, and hf/ is complete for a config.json that is
# made from the keys. SEED (random when empty) decides. Must be root, for the chroot (scripts/chroot.sh).
set -euo pipefail

cd "$(dirname "$0")/../.."
# shellcheck source-path=SCRIPTDIR source=lib.sh
. tests/torch/lib.sh
seed=${1:-$RANDOM}
echo "seed $seed"

# prove WHAT WANT COMMAND...: a line of its output must match WANT.
prove() {
  local what=$1 want=$2
  shift 2
  "$@" >"$tmp/out" 2>&1 || true
  if grep -E -- "$want" "$tmp/out" >/dev/null; then
    pass
  else
    fail "$what"
    head -n 20 "$tmp/out" | sed 's/^/  /'
  fi
}

files=(llama:f32 smaug:f32 mistral:bf16 mixtral:f32 qwen2:f32 qwen3:f16 qwen2_moe:f32 qwen2_moe:q4_k_m qwen3_moe:f32 gpt2:f32
  granite:f32 smollm3:bf16 olmo2:f32 olmo3:f32 phi3:f32 phi4_mini:f32 gemma:f16 gemma2:bf16 gemma3:bf16 glm4:f32 glm4_moe:f32
  deepseek_v2:f32 deepseek_v3:f32 deepseek_v3:q4_k_m qwen3_next:bf16 qwen3_next:q4_k_m qwen35:f16 qwen35_moe:q8_0
  granite_moe:q8_0 cohere:bf16 mistral3:bf16 gemma3_vision:f16 qwen3_vl:q8_0 qwen35_moe_vision:bf16)
# shellcheck disable=SC2206 # words
for kind in q8_0 q4_0 q5_1 q4_k_m q5_k_s q6_k mxfp4; do files+=(llama:$kind qwen3_moe:$kind gpt2:$kind); done
mkdir "$tmp/made"
mapfile -t models < <(printf '%s\n' "${files[@]%:*}" | sort -u)
if ! in_chroot sh -c "python3 /mnt/tests/gguf_models.py $seed /mnt/out/models ${models[*]} &&
  python3 /mnt/tests/gguf_source.py /mnt/out/models /mnt/out/made ${files[*]}" >"$tmp/log" 2>&1; then
  fail "gguf_source.py"
  tail -n 20 "$tmp/log" | sed 's/^/  /'
fi
for file in "${files[@]}"; do
  model=${file%:*}
  kind=${file#*:}
  gguf=$tmp/made/$model-$kind.gguf
  ckpt=$tmp/models/$model
  prove "$file: origin" '^[1-9][0-9]* equal, 0 differ, [01] only in A, 0 only in B$' \
    "$ckptfs" diff "$ckpt/ckpt" "$gguf" -o "assets=$ckpt/hf"
  case $file in
    # The test model's rope factors are other than those of Llama 3.
    llama:f32) prove "$file: config.json" "the factors of 'rope_freqs.weight' are not those of Llama 3" "$ckptfs" info "$gguf" ;;
    # These can be written but not read back, for example because a logarithm cannot be undone exactly.
    qwen3_next:* | qwen3_vl:* | qwen35* | granite_moe:* | cohere:*)
      prove "$file: refused" "llama.cpp's architecture '(qwen3(next|vl|5|5moe)|granitemoe|command-r)' is not supported" \
      "$ckptfs" info "$gguf" -o dequantize=fp32 ;;
    *:f32 | *:f16 | *:bf16) prove "$file: config.json" "hf/: *complete for .*config.json from GGUF" "$ckptfs" info "$gguf" ;;
  esac
  options=assets=$ckpt/hf,dtype=fp32
  case $model in
    mixtral | *_moe | deepseek*) options+=,experts=fused ;;
  esac
  [[ $kind != f32 ]] || prove "$file: model" '^[1-9][0-9]* equal, 0 differ, [01] only in A, 0 only in B$' \
    "$ckptfs" diff --model "$ckpt/ckpt" "$gguf" -o "$options"
done

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
