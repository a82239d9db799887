#!/bin/bash
# tests/torch/gguf.sh [SEED [MODEL...]]
#
# gguf/ on live mounts is compared with what llama.cpp's own converter and llama-quantize make of the
# same models, and served by llama-server, whose tokens and probabilities have to be those of
# transformers. The models are of every known architecture (gguf_models.py), in all types of elements
# and some of blocks, in one file and in many; and two of those that clients.sh uses, as 4 ranks of
# FSDP and as Megatron-core save them. SEED (random when not given, always printed) decides everything
# about the checkpoints. MODEL...: only these models of gguf_models.py, in all types.
# Must be root, for the chroot that llama.cpp lives in (scripts/chroot.sh).
#
# $CKPTFS is the program, default build/release/ckptfs.
set -euo pipefail

cd "$(dirname "$0")/../.."
# shellcheck source-path=SCRIPTDIR source=lib.sh
. tests/torch/lib.sh
seed=${1:-$RANDOM}
mounts=()
models=("${@:2}")
some=${2:-}
[ -n "$some" ] || models=(llama smaug mistral mixtral qwen2 qwen3 qwen2_moe qwen3_moe gpt2 gemma2 gemma3
  gemma granite smollm3 olmo2 olmo3 phi3 phi4_mini glm4 glm4_moe gpt_oss deepseek_v2 deepseek_v3
  qwen3_next qwen35 qwen35_moe granite_moe cohere cohere_plus gemma3_vision mistral3
  ministral3 ministral3_vision qwen3_vl qwen35_vision qwen35_moe_vision)

# generate SCRIPT ARG...: runs it in the chroot; if it fails, the end of its output is shown.
generate() {
  if ! in_chroot python3 "/mnt/tests/$1" "${@:2}" >"$tmp/generated" 2>&1; then
    fail "$*"
    tail -n 40 "$tmp/generated" | sed 's/^/  /'
    return 1
  fi
  cat "$tmp/generated"
}

# job MODEL CKPT TYPE SERVE [WORD=VALUE...]: mounts CKPT, and adds a line for gguf_check.py.
job() {
  local o words=() name=${#mounts[@]}-$1-$3
  for o in "${@:5}"; do words+=(-o "$o"); done
  mkdir -p "$tmp/mnt/$name"
  try "$name: mount ${*:5}" "$ckptfs" mount "$tmp/models/$1/$2" "$tmp/mnt/$name" \
    -o "assets=$tmp/models/$1/hf" -o "gguf_dtype=$3" "${words[@]}" || return 0
  mounts+=("$name")
  echo "/mnt/out/mnt/$name /mnt/out/models/$1 $3 $4" >>"$tmp/jobs"
}

jobs() {
  local m kind modes=(mmap none dio) i=0
  local some_types all=(q4_0 q4_1 q5_0 q5_1 q4_k_s q4_k_m q5_k_s q5_k_m q6_k mxfp4)
  for m in "${models[@]}"; do
    job "$m" ckpt f32 "${modes[i++ % 3]}"
    job "$m" ckpt bf16 -
    job "$m" ckpt f16 - shard_size=60KB
    some_types=("${all[@]}")
    [ -n "$some" ] || mapfile -t some_types < <(printf '%s\n' "${all[@]}" |
      shuf -n 3 --random-source=<(yes "$seed $m"))
    for kind in q8_0 "${some_types[@]}"; do job "$m" ckpt "$kind" -; done
    case $m in
    # save_pretrained uses other names for these than those in memory: language_model.model.*
    gemma3_vision | mistral3 | ministral3_vision) job "$m" hf f32 - ;;
    gpt_oss) job gpt_oss-mxfp4 hf mxfp4 mmap dequantize=bf16 ;;
    deepseek_v3)
      job deepseek_v3-fp8 hf f32 mmap dequantize=fp32
      job deepseek_v3-fp8 hf q4_k_m - dequantize=fp32
      ;;
    esac
  done
  [ -z "$some" ] || return 0
  job smaug ckpt f32 mmap shard_size=60KB
  job qwen3 ckpt bf16 mmap
  # Experts with other names, and other frameworks.
  for m in llama-bf16 mixtral-fp32; do
    job "$m" fsdp f32 mmap
    job "$m" megatron f32 mmap recipe=megatron
    job "$m" megatron q8_0 - recipe=megatron
  done
}

echo "seed $seed"
if generate gguf_models.py "$seed" /mnt/out/models "${models[@]}" &&
  { [ -n "$some" ] || {
    generate make_models.py "$seed" /mnt/out/models llama mixtral &&
      generate make_megatron.py "$seed" /mnt/out/models/{llama-bf16,mixtral-fp32}
  }; }; then
  : >"$tmp/jobs"
  jobs
  counted "gguf" in_chroot python3 /mnt/tests/gguf_check.py "$seed" /mnt/out/jobs
fi
for name in "${mounts[@]}"; do unmount "$name" "$tmp/mnt/$name"; done

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
