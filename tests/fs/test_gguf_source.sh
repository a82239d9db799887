#!/bin/bash
# GGUF files as checkpoints: their tensors, objects, values, and the model in them.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"

made() { python3 "$HERE/gguf_source.py" "$@"; }
gguf() { python3 "$HERE/gguf.py" "$@"; }

test_blocks_are_bytes_without_dequantize() {
  made make m.gguf
  mount_at m m.gguf
  is "v w" "$(entries m/tensors)"
  is 306 "$(stat -c %s m/tensors/w)"
  is 20 "$(stat -c %s m/tensors/v)"
  is '"test"' "$(cat m/objects/general.name)"
  is '{   "w": "Q8_0",   "v": "F32" }' "$(tr '\n' ' ' <m/objects/gguf.tensor_types | sed 's/ $//')"
  is '"uint8" [3,102]' "$(ckptfs ls --json m.gguf w | sed -n 's/.*"dtype": \("[a-z0-9]*"\), "shape": \(\[[0-9,]*\]\).*/\1 \2/p')"
}

test_reshard_says_what_it_writes() {
  made make m.gguf
  ckptfs reshard m.gguf blocks 2>said
  grep 'warning: 1 tensor is written as its quantised blocks of uint8' said >/dev/null
  ckptfs reshard m.gguf values --dequantize=fp32 2>said
  is "" "$(cat said)"
}

test_every_range_has_the_values() {
  made make m.gguf
  mount_at m m.gguf -o dequantize=fp32
  made edges m/tensors/w
  is 1152 "$(stat -c %s m/tensors/w)"
  is 20 "$(stat -c %s m/tensors/v)"
  ckptfs check --data m.gguf >/dev/null
}

test_parts_are_one_checkpoint() {
  for i in 0 1 2; do made make "m-0000$((i + 1))-of-00003.gguf" "$i" 3; done
  is "v0 v1 v2 w0 w1 w2" "$(ckptfs ls m-00002-of-00003.gguf '[vw]*' | tr '\n' ' ' | sed 's/ $//')"
  is 6 "$(ckptfs ls . '[vw]*' | wc -l)"
  rm m-00002-of-00003.gguf
  refused "'m-00002-of-00003.gguf' is missing: the model is in 3 files" ckptfs ls .
  refused "'m-00002-of-00003.gguf' is missing" ckptfs ls m-00001-of-00003.gguf
}

test_what_cannot_be_read_is_said() {
  printf 'GGUF\0\0\0\3' >big.gguf
  refused "it is a GGUF of big-endian numbers, which is not supported" ckptfs ls big.gguf
  made make m.gguf
  made make n.gguf
  refused "'big.gguf' and 'm.gguf' are two models: name one of them instead of the directory" ckptfs ls .
  truncate -s 200 m.gguf
  refused "'w' .* 'm.gguf' has 200 bytes" ckptfs cat m.gguf tensors/w
}

# A GGUF that gguf/ has made of a model is read as that model: under its names, with llama.cpp's changes undone.
cases_a_model_that_was_written_is_the_model_again() {
  printf '%s\n' llama experts gpt2 phi3 gemma gemma2 gemma3_text olmo3 glm4 glm4_moe qwen2_moe deepseek_v3
}
test_a_model_that_was_written_is_the_model_again() {
  local args
  mkdir -p hf x
  args=$(gguf model "$1" hf)
  # shellcheck disable=SC2086 # words
  make_dcp --flat dcp $args
  mount_at m dcp -o assets=hf
  cp m/gguf/model.gguf x/model.gguf
  ckptfs umount m
  ckptfs diff --model dcp x/model.gguf | grep ' equal, 0 differ, 0 only in A, 0 only in B$' >/dev/null
  ckptfs info x/model.gguf | grep 'hf/: complete for .* (config.json from GGUF)' >/dev/null
  # With the config.json made from it, it gives the same GGUF again.
  cp hf/tokenizer.json x
  ckptfs cat x/model.gguf gguf/model.gguf -o assets=x | cmp - x/model.gguf
  mount_at m x/model.gguf
  python3 -m json.tool m/hf/config.json >/dev/null
}

# Was a file made from a checkpoint? Its tensors, encoded again, have the same bytes.
cases_a_file_is_proven_to_be_made_from_a_checkpoint() { printf '%s\n' f16 q8_0 q4_0; }
test_a_file_is_proven_to_be_made_from_a_checkpoint() {
  mkdir -p hf x
  # shellcheck disable=SC2046 # words
  make_dcp --flat dcp $(gguf model llama hf)
  mount_at m dcp -o assets=hf,gguf_dtype="$1"
  cp m/gguf/model.gguf x.gguf
  ckptfs umount m
  is "21 equal, 0 differ, 0 only in A, 0 only in B" "$(ckptfs diff dcp x.gguf -o assets=hf)"
  gguf spoil x.gguf output.weight
  exit_status=0
  ckptfs diff dcp x.gguf -o assets=hf --values >lines || exit_status=$?
  is 1 "$exit_status"
  grep '^differs *output.weight ' lines >/dev/null
  grep '^20 equal, 1 differ, ' lines >/dev/null
  refused 'would be as a GGUF \(to compare the tensors as they are, name the GGUF first\): no config.json' ckptfs diff dcp x.gguf
}

# The text model of a vision model, in which its tensors have other names.
test_the_text_of_a_model_that_sees_is_a_model_of_its_own() {
  mkdir -p hf
  # shellcheck disable=SC2046 # words
  make_dcp --flat dcp $(gguf model mistral3 hf)
  ckptfs cat dcp gguf/model.gguf -o assets=hf >x.gguf
  is "21 equal, 0 differ, 0 only in A, 0 only in B" "$(ckptfs diff dcp x.gguf -o assets=hf)"
  ckptfs info x.gguf | grep 'hf/: complete for MistralForCausalLM (config.json from GGUF)' >/dev/null
  echo 's/^model\.language_model\./model./' >rules
  ckptfs diff --model dcp x.gguf -o rename=rules --exclude='*vision_tower*' --exclude='*projector*' >lines
  is "21 equal, 0 differ, 0 only in A, 0 only in B" "$(cat lines)"
}

# llama-quantize drops outer dimensions of 1.
cases_a_matrix_of_one_row_may_be_a_vector_in_the_file() { printf '%s\n' qwen3_next qwen2_moe; }
test_a_matrix_of_one_row_may_be_a_vector_in_the_file() {
  mkdir -p hf
  # shellcheck disable=SC2046 # words
  make_dcp --flat dcp $(gguf model "$1" hf)
  ckptfs cat dcp gguf/model.gguf -o assets=hf >x.gguf
  gguf vector x.gguf blk.1.ffn_gate_inp_shexp.weight
  ckptfs diff dcp x.gguf -o assets=hf | grep ' equal, 0 differ, 0 only in A, 0 only in B$' >/dev/null
  [[ $1 = qwen3_next ]] || ckptfs diff --model dcp x.gguf | grep ' equal, 0 differ, 0 only in A, 0 only in B$' >/dev/null
}

# ssm_a is -exp(A_log), and rounding may make its logarithm another number than A_log.
cases_a_model_that_cannot_be_told_keeps_its_names() { printf '%s\n' "qwen3_next qwen3next" "qwen3_5_text qwen35"; }
test_a_model_that_cannot_be_told_keeps_its_names() {
  mkdir -p hf x
  # shellcheck disable=SC2046 # words
  make_dcp --flat dcp $(gguf model "$1" hf)
  ckptfs cat dcp gguf/model.gguf -o assets=hf >x/model.gguf
  mount_at m x/model.gguf
  [[ -s m/tensors/blk.0.ssm_a && ! -e m/hf/config.json ]]
  ckptfs info x/model.gguf | grep "llama.cpp's architecture '$2' is not supported" >/dev/null
}

# llama.cpp's converter writes such layers of GLM-4.5 unless --no-mtp is given.
test_layers_that_predict_further_tokens_are_left_out() {
  mkdir -p hf x
  # shellcheck disable=SC2046 # words
  make_dcp --flat dcp $(gguf model glm4_moe hf)
  ckptfs cat dcp gguf/model.gguf -o assets=hf >x/model.gguf
  gguf further x/model.gguf glm4moe
  is 3 "$(gguf key x/model.gguf glm4moe.block_count)"
  ckptfs diff --model dcp x/model.gguf | grep ' equal, 0 differ, 0 only in A, 0 only in B$' >/dev/null
  ckptfs info x/model.gguf >out
  grep 'hf/: complete for Glm4MoeForCausalLM (config.json from GGUF)' out >/dev/null || fail "$(cat out)"
  grep -x 'assets      config.json made from the keys of the GGUF' out >/dev/null || fail "$(cat out)"
}

# The bound matters because the weights of keys and values would be named head by head.
test_a_number_of_heads_has_a_bound() {
  local at
  mkdir -p hf x
  # shellcheck disable=SC2046 # words
  make_dcp --flat dcp $(gguf model deepseek_v3 hf)
  ckptfs cat dcp gguf/model.gguf -o assets=hf >x/model.gguf
  at=$(grep -abo deepseek2.attention.head_count x/model.gguf | head -n 1 | cut -d : -f 1)
  printf '\377\377\377\177' | dd of=x/model.gguf bs=1 seek=$((at + 30 + 4)) conv=notrunc status=none
  ckptfs info x/model.gguf >out
  grep 'hf/: not loadable: no config.json: 2147483647 heads are more than 1024' out >/dev/null || fail "$(cat out)"
}

# configured MODEL JQ: makes ./x/model.gguf of a model, with config.json edited by JQ
configured() {
  mkdir -p hf x
  # shellcheck disable=SC2046 # words
  make_dcp --flat dcp $(gguf model "$1" hf)
  jq "$2" hf/config.json >x/new
  mv x/new hf/config.json
  ckptfs cat dcp gguf/model.gguf -o assets=hf >x/model.gguf
}

cases_scaled_rotary_embeddings_are_told() {
  printf '%s\n' 'llama {rope_type:"llama3",factor:8,low_freq_factor:1,high_freq_factor:4,original_max_position_embeddings:8192}' \
    'llama {rope_type:"llama3",factor:32,low_freq_factor:1,high_freq_factor:4,original_max_position_embeddings:8192}' \
    'phi3 {rope_type:"longrope",long_factor:[range(8)|.*.+1.125],short_factor:[range(8)|./8+1]}'
}
test_scaled_rotary_embeddings_are_told() {
  local more=
  [[ $1 != phi3 ]] || more='|.original_max_position_embeddings=4096|.max_position_embeddings=131072'
  configured "$1" ".rope_scaling=$2$more"
  is "$(jq -cS .rope_scaling hf/config.json)" "$(ckptfs cat x/model.gguf hf/config.json | jq -cS .rope_scaling)"
  is "$(jq .original_max_position_embeddings hf/config.json)" \
    "$(ckptfs cat x/model.gguf hf/config.json | jq .original_max_position_embeddings)"
  # The same file again, by the config.json that was made.
  cp hf/tokenizer.json x
  ckptfs cat x/model.gguf gguf/model.gguf -o assets=x | cmp - x/model.gguf
}

test_factors_that_are_not_known_are_named() {
  configured llama '.rope_scaling={rope_type:"llama3",factor:8,low_freq_factor:1,high_freq_factor:4,original_max_position_embeddings:4096}'
  ckptfs info x/model.gguf >out
  grep "no config.json: the factors of 'rope_freqs.weight' are not those of Llama 3" out >/dev/null || fail "$(cat out)"
  rm -r hf dcp x
  configured phi3 '.rope_scaling={rope_type:"longrope",long_factor:[range(8)|.+1],short_factor:[range(8)|.+1]}
    | .original_max_position_embeddings=4096 | .max_position_embeddings=131072'
  sed -i 's/rope_factors_long/rope_factors_lonk/' x/model.gguf
  ckptfs info x/model.gguf >out
  grep "no config.json: the GGUF has no tensor 'rope_factors_long.weight'" out >/dev/null || fail "$(cat out)"
  sed -i 's/rope_factors_lonk.weight/rope_factors_long.weight/; s/rope_factors_short.weight/rope_freqs_a_a_long.weigh/' x/model.gguf
  ckptfs info x/model.gguf >out
  grep "no config.json: the GGUF has no tensor 'rope_factors_short.weight'" out >/dev/null || fail "$(cat out)"
}

test_blocks_have_no_model() {
  mkdir -p hf x
  # shellcheck disable=SC2046 # words
  make_dcp --flat dcp $(gguf model llama hf)
  mount_at m dcp -o assets=hf,gguf_dtype=q8_0
  cp m/gguf/model.gguf x/model.gguf
  ckptfs info x/model.gguf | grep 'hf/: not loadable: no config.json: the weights are quantised blocks; dequantize=' >/dev/null
  ckptfs info x/model.gguf --dequantize=bf16 | grep 'hf/: complete for LlamaForCausalLM' >/dev/null
  is bfloat16 "$(sed -n 's/.*"torch_dtype": "\(.*\)".*/\1/p' <(ckptfs cat x/model.gguf hf/config.json --dequantize=bf16))"
}

test_a_model_that_is_not_known_has_its_names() {
  made make m.gguf
  ckptfs info m.gguf --dequantize=bf16 | grep "hf/: not loadable: no config.json: the GGUF has no key 'general.architecture'" >/dev/null
}

run_suite "$@"
