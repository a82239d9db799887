#!/bin/bash
# gguf/: its contents, and the reasons why it may be absent.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
long="blocks_that_do_not_come_out_are_f16 experts_that_nobody_asked_for_stay experts_are_fused_and_split \
  experts_that_cannot_be_regrouped_are_named the_model_has_to_be_all_of_it what_is_not_known_is_said \
  experts_have_to_be_as_many_as_it_says large_blocks_are_read_from_any_byte what_a_reader_in_order_needs_is_computed_once_and_ahead many_may_look_at_once \
  a_size_makes_several_files nobody_waits_for_it_but_who_looks"

gguf() { python3 "$HERE/gguf.py" "$@"; }

# model KIND: a tiny model in ./dcp, and its configuration in ./hf
model() {
  local args
  mkdir -p hf
  args=$(gguf model "$1" hf)
  # shellcheck disable=SC2086 # words
  make_dcp --flat dcp $args
}

# What info.json says about gguf/.
about() { sed -n 's/^  "gguf": //p' "$1"/.ckptfs/info.json; }

# missing WHY [options]: there is no gguf/, for this reason
missing() {
  local why=$1
  shift
  mount_at m dcp -o assets=hf "$@"
  [[ ! -e m/gguf ]] || fail "there is a gguf/"
  [[ " $(entries m) " != *" gguf "* ]] || fail "gguf/ is listed"
  is "{\"missing\": \"$why\"}" "$(about m)"
  ckptfs umount m
}

# ---- what it is ----

cases_every_element_is_where_it_belongs() { printf '%s\n' llama experts fused granitemoe gpt2 qwen3_next qwen3_5_text mistral3 mistral3_old; }
test_every_element_is_where_it_belongs() {
  model "$1"
  mount_at m dcp -o assets=hf
  is model.gguf "$(ls m/gguf)"
  is "0 0" "$(gguf check "$1" m/gguf/model.gguf)"
  [[ $(about m) == *'"dtype": "f32"'* ]] || fail "$(about m)"
}

cases_matrices_are_what_was_asked_for() {
  printf '%s\n' "f32 0 0" "f16 1 1" "bf16 30 32" "q8_0 8 7" "q4_0 2 8 2"
}
test_matrices_are_what_was_asked_for() {
  model llama
  mount_at m dcp -o assets=hf,gguf_dtype="$1"
  is "${*:2}" "$(gguf check llama m/gguf/model.gguf)"
}

test_blocks_that_do_not_come_out_are_f16() {
  model llama
  gguf set hf/config.json intermediate_size 80
  missing "'model.layers.0.mlp.gate_proj.weight' is (96, 64), but by config.json it should be (80, 64)"
  sed 's/4, 2, 96, 2, 3/4, 2, 80, 2, 3/' "$HERE/gguf.py" >own.py
  rm -r dcp
  # shellcheck disable=SC2046 # words
  make_dcp --flat dcp $(python3 own.py model llama hf)
  mount_at m dcp -o assets=hf,gguf_dtype=Q8_0 # as llama-quantize prints it
  is "1 8 7" "$(python3 own.py check llama m/gguf/model.gguf)"
}

test_a_size_makes_several_files() {
  model llama
  mount_at m dcp -o assets=hf,shard_size=100KB
  local files=(m/gguf/*)
  ((${#files[@]} > 2)) || fail "${files[*]}"
  is "model-00001-of-0000${#files[@]}.gguf" "$(basename "${files[0]}")"
  is "0 0" "$(gguf check llama "${files[@]}")"
  [[ ! -e m/gguf/model.gguf && ! -e m/gguf/model-00000-of-0000${#files[@]}.gguf ]]
  ckptfs umount m
  mount_at m dcp -o assets=hf,shard_size=1GB
  is model.gguf "$(ls m/gguf)"
}

cases_any_part_reads_as_the_whole() { printf '%s\n' f32 q8_0 q5_1 mxfp4; }
test_any_part_reads_as_the_whole() {
  local at n size
  model experts
  mount_at m dcp -o assets=hf,gguf_dtype="$1"
  cat m/gguf/model.gguf >whole
  ckptfs cat dcp gguf/model.gguf --assets=hf --gguf-dtype="$1" | cmp - whole
  size=$(stat -c %s m/gguf/model.gguf)
  is "$size" "$(stat -c %s whole)"
  for ((at = 1; at < size; at += 20011)); do
    n=$((at % 5000 + 1))
    cmp <(dd if=m/gguf/model.gguf iflag=direct,skip_bytes,fullblock bs=$n skip=$at count=1 status=none) \
      <(dd if=whole iflag=skip_bytes bs=$n skip=$at count=1 status=none)
  done
}

quantised() { sed -n 's/.*"quantised_bytes": \([0-9]*\).*/\1/p' m/.ckptfs/stats.json; }

blocks() { sed -n 's/.*"gguf_block_bytes": \([0-9]*\).*/\1/p' m/.ckptfs/stats.json; }

# large_model HIDDEN FFN: use multiples of 256, so that rows are whole blocks of every type
large_model() {
  mkdir hf
  sed "s/8, 64, 4, 2, 96, 2, 3/8, $1, 4, 2, $2, 2, 3/" "$HERE/gguf.py" >own.py
  # shellcheck disable=SC2046 # words
  make_dcp --flat dcp $(python3 own.py model llama hf)
}

test_large_blocks_are_read_from_any_byte() {
  local at n size sum=0
  large_model 256 512
  mount_at m dcp -o assets=hf,gguf_dtype=q4_k_m
  cat m/gguf/model.gguf >whole
  # The head, and attn_v and ffn_down of the second layer, have more bits.
  is "0 0 0 0 0 12 12 12 12 12 12 12 12 12 12 12 12 12 14 14 14" "$(gguf types whole)"
  is 15 "$(gguf key whole general.file_type)"
  ckptfs cat dcp gguf/model.gguf --assets=hf --gguf-dtype=q4_k_m | cmp - whole
  size=$(stat -c %s whole)
  is "$size" "$(stat -c %s m/gguf/model.gguf)"
  # A read computes only the blocks that it touches.
  for at in 65536 131072 196608 262144; do
    n=$(quantised)
    dd if=m/gguf/model.gguf iflag=direct,skip_bytes of=part bs=4096 skip=$at count=1 status=none
    cmp part <(dd if=whole iflag=skip_bytes bs=4096 skip=$at count=1 status=none)
    n=$(($(quantised) - n))
    ((n <= 4096 + 2 * 210)) || fail "$n bytes of blocks at $at"
    ((sum += n))
  done
  ((sum > 0))
  for ((at = 4096; at < size; at += 13331)); do
    n=$((at % 600 + 1))
    cmp <(dd if=m/gguf/model.gguf iflag=direct,skip_bytes,fullblock bs=$n skip=$at count=1 status=none) \
      <(dd if=whole iflag=skip_bytes bs=$n skip=$at count=1 status=none)
  done
}

# A reader counts as one in order when it has read a mebibyte.
test_what_a_reader_in_order_needs_is_computed_once_and_ahead() {
  local all n whole=$PWD/whole
  large_model 512 3072
  ckptfs cat dcp gguf/model.gguf --assets=hf --gguf-dtype=q4_k_m >"$whole"
  mount_at m dcp -o assets=hf,gguf_dtype=q4_k_m
  is 0 "$(blocks)" # nothing has been read yet
  in_order() { dd if=m/gguf/model.gguf iflag=direct bs=128K "$@" status=none; }
  in_order | cmp - "$whole"
  all=$(blocks)
  ((all > (5 << 20))) || fail "$all bytes of blocks"
  n=$(quantised)
  ((n >= all && n < all + (1 << 19))) || fail "$n of $all bytes computed"
  in_order | cmp - "$whole"
  n=$(($(quantised) - n))
  ((n <= 1 << 20)) || fail "$n bytes computed again"
  ckptfs umount m
  mount_at m dcp -o assets=hf,gguf_dtype=q4_k_m
  in_order count=16 | cmp -n $((2 << 20)) - "$whole"
  # shellcheck disable=SC2317 # wait_until calls it
  is_ahead() { (($(quantised) > (3 << 20))); }
  wait_until is_ahead
  ckptfs umount m
  mount_at m dcp -o assets=hf,gguf_dtype=q4_k_m,cache=1M
  in_order | cmp - "$whole"
}

test_a_cast_decides_what_matrices_are() {
  model llama
  mount_at m dcp -o assets=hf,dtype=bf16
  is "30 32" "$(gguf check llama m/gguf/model.gguf)"
}

test_nobody_waits_for_it_but_who_looks() {
  model llama
  mount_at m dcp -o assets=hf
  is 1 "$(stat -c %h m)" # the number of subdirectories is not known yet
  ls m/hf >/dev/null
  is "$(stat -c %s m)" "$(($(entries m | wc -w) - 1))"
}

test_many_may_look_at_once() {
  local i pids=()
  model llama
  mount_at m dcp -o assets=hf
  for i in 1 2 3 4 5 6 7 8; do
    cat m/gguf/model.gguf >"got$i" &
    pids+=($!)
  done
  for i in "${pids[@]}"; do wait "$i"; done
  for i in 2 3 4 5 6 7 8; do cmp got1 "got$i"; done
  is "0 0" "$(gguf check llama got1)"
}

# A recipe makes the head from the embedding. The file has both only if their elements differ.
cases_a_head_is_left_out_if_it_is_the_embedding() { printf '%s\n' "no" "yes times:2"; }
test_a_head_is_left_out_if_it_is_the_embedding() {
  local name shape names how=${2:-}
  mkdir hf
  while read -r name shape _; do
    [[ $name != lm_head.weight ]] || continue
    echo "$name = $name [${shape//x/, }]"
    [[ $name != model.embed_tokens.weight ]] || echo "lm_head.weight = $name [${shape//x/, }] ${how/:/ }"
  done < <(gguf model llama hf) >r.recipe
  model llama
  mount_at m dcp -o assets=hf,recipe=r.recipe
  names=$(gguf names m/gguf/model.gguf)
  is "$1" "$([[ " $names " == *" output.weight "* ]] && echo yes || echo no)"
  ckptfs umount m
  # The same if the embedding is the one that is computed.
  sed -i -E '/^(lm_head|model.embed)/ { s/ times.*//; /^model/ s/$/ '"${how/:/ }"'/ }' r.recipe
  mount_at m dcp -o assets=hf,recipe=r.recipe
  is "$names" "$(gguf names m/gguf/model.gguf)"
}

# ---- experts ----

# hf WORD=VALUE...: the names of the tensors in hf/ and their hashes
hf() {
  ckptfs cat dcp hf/model.safetensors --assets=hf "$@" >file
  readers digest file | LC_ALL=C sort -k 2
}

test_experts_are_fused_and_split() {
  local fused split
  model experts
  split=$(hf)
  is "$split" "$(hf --experts=split 2>err)"
  grep -q "option 'experts': the model stores its experts that way already, or has none" err
  fused=$(hf --experts=fused)
  [[ $fused == *"model.layers.0.mlp.experts.gate_up_proj"* && $fused != *block_sparse_moe* ]]
  # Save the fused experts as a checkpoint, and split them again.
  mv file model.safetensors
  rm -r dcp
  mkdir dcp
  mv model.safetensors dcp
  is "$fused" "$(hf --experts=stored)"
  is "$split" "$(hf --experts=split)"
  # Without an option, hf/ has experts as save_pretrained writes them; pt/ has them as they are stored.
  is "$split" "$(hf)"
  ckptfs cat dcp pt/model.pt --assets=hf | cmp - <(ckptfs cat dcp pt/model.pt --assets=hf --experts=stored)
  is "$fused" "$(mv hf/config.json kept; hf; mv kept hf/config.json)"
  mount_at m dcp -o assets=hf,experts=split
  is "0 0" "$(gguf check experts m/gguf/model.gguf)"
  ckptfs umount m
  mount_at m dcp -o assets=hf
  is "0 0" "$(gguf check experts m/gguf/model.gguf)"
}

cases_hf_has_experts_as_save_pretrained_splits_them() {
  printf '%s\n' qwen2_moe qwen3_moe deepseek_v2 deepseek_v3 glm4_moe qwen3_next qwen3_5_moe_text
}
test_hf_has_experts_as_save_pretrained_splits_them() {
  local split
  model fused
  gguf set hf/config.json model_type "\"$1\""
  split=$(hf)
  [[ $split == *model.layers.1.mlp.experts.2.up_proj.weight* && $split != *gate_up_proj* ]] || fail "$split"
}

# Experts that cannot be fused or split are an error only if that was asked for.
test_experts_that_nobody_asked_for_stay() {
  local fused
  model experts
  fused=$(hf --experts=fused)
  rm -r dcp
  mkdir dcp
  mv file dcp/model.safetensors
  gguf set hf/config.json model_type '"llama"'
  is "$fused" "$(hf)"
  echo '{' >hf/config.json
  is "$fused" "$(hf)"
}

test_experts_that_cannot_be_regrouped_are_named() {
  model experts
  refused "option 'experts': 'all' is not one of fused, split, stored" ckptfs cat dcp hf/config.json --experts=all
  refused "option 'experts': it needs a config.json" ckptfs cat dcp hf/model.safetensors --experts=fused
  refused "'model.layers.0.block_sparse_moe.experts.0.w1.weight' is one of 3 experts, of which 2 are complete" \
    ckptfs cat dcp hf/config.json --assets=hf --experts=fused --exclude='*.0.block*.2.w2.weight'
  gguf set hf/config.json model_type '"llama"'
  refused "option 'experts': config.json: model_type 'llama' has no experts that are known" \
    ckptfs cat dcp hf/config.json --assets=hf --experts=fused
}

# ---- why it is absent ----

test_without_files_beside_it_there_is_none() {
  model llama
  mv hf elsewhere
  mkdir hf
  missing "no config.json beside the checkpoint or in assets="
  cp elsewhere/config.json hf
  missing "no tokenizer.json beside the checkpoint or in assets="
  cp elsewhere/tokenizer.json hf
  mount_at m dcp -o assets=hf
  is "0 0" "$(gguf check llama m/gguf/model.gguf)"
}

test_what_is_not_known_is_said() {
  model llama
  cp -r hf good
  gguf set hf/config.json model_type '"bert"'
  missing "config.json: model_type 'bert' is not supported"
  cp good/config.json hf
  gguf set hf/config.json rope_scaling '{"type": "dynamic", "factor": 2}'
  missing "config.json: rotary embeddings of type 'dynamic' are not supported"
  cp good/config.json hf
  gguf set hf/tokenizer.json pre_tokenizer '{"type": "Whitespace"}'
  missing "tokenizer.json: the pre-tokenizer is not supported"
  echo '{' >hf/tokenizer.json
  missing "tokenizer.json, line 2: string or '}' expected near end of file"
}

# The vision part is ignored, whatever is in it; but the text model must be complete, and nothing may be left over.
test_of_a_model_that_sees_the_text_has_to_be_there() {
  model mistral3
  mount_at m dcp -o assets=hf --exclude='model.vision_tower*'
  [[ $(about m) == *'"architecture": "mistral3"'* ]] || fail "$(about m)"
  is "0 0" "$(gguf check mistral3 m/gguf/model.gguf)"
  ckptfs umount m
  missing "the model has no 'model.language_model.layers.1.mlp.up_proj.weight'" \
    --exclude='model.language_model.layers.1.mlp.up_proj.weight'
  echo 's/^model.vision_tower/model.language_model.vision_tower/' >rules
  missing "a GGUF of architecture 'mistral3' has no place for 'model.language_model.vision_tower.layers.0.self_attn.q_proj.weight'" \
    -o rename=rules
  gguf set hf/config.json text_config null
  missing "config.json has no 'text_config'"
}

test_the_model_has_to_be_all_of_it() {
  model llama
  missing "the model has no 'model.layers.1.mlp.up_proj.weight'" -o 'exclude=*.1.mlp.up_proj.weight'
  missing "the model has no 'lm_head.weight'" -o exclude=lm_head.weight
  gguf set hf/config.json num_hidden_layers 1
  missing "a GGUF of architecture 'llama' has no place for 'model.layers.1.input_layernorm.weight'"
  gguf set hf/config.json num_hidden_layers 3
  missing "the model has no 'model.layers.2.input_layernorm.weight'"
  gguf set hf/config.json num_hidden_layers 2
  gguf set hf/config.json tie_word_embeddings true
  mount_at m dcp -o assets=hf,exclude=lm_head.weight
  [[ " $(gguf names m/gguf/model.gguf) " != *" output.weight "* ]]
}

test_experts_have_to_be_as_many_as_it_says() {
  model experts
  gguf set hf/config.json num_local_experts 2000000000
  missing "'model.layers.0.block_sparse_moe.gate.weight' is (3, 64), but by config.json it should be (2000000000, 64)"
}

test_a_type_that_is_none_is_refused() {
  model llama
  mkdir m
  refused "option 'gguf_dtype': 'q3_k' is not one of f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k_s, q4_k_m, q5_k_s, q5_k_m, q6_k, mxfp4" \
    ckptfs mount dcp m -o gguf_dtype=q3_k
}

run_suite "$@"
