#!/bin/bash
# The verdicts on hf/, gguf/, pt/ and safetensors/: whether the programs for which they are meant can load them.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"

# model KIND: a tiny model in ./dcp, and its configuration in ./hf
model() {
  local args
  mkdir -p hf
  args=$(python3 "$HERE/gguf.py" model "$1" hf)
  # shellcheck disable=SC2086 # words
  make_dcp --flat dcp $args
}

config() { python3 "$HERE/gguf.py" set hf/config.json "$@"; }

# of FACE [options]: the verdict on a directory, from `info`
of() { ckptfs info dcp "${@:2}" | sed -n "s|^\(serves\)\{0,1\} *$1/: ||p"; }

# ---- complete ----

cases_a_whole_model_is_complete() {
  printf '%s\n' "llama Llama" "experts Mixtral" "fused Mixtral" "gpt2 GPT2"
}
test_a_whole_model_is_complete() {
  local class=$2ForCausalLM
  [[ $2 != GPT2 ]] || class=GPT2LMHeadModel
  model "$1"
  is "complete for $class (config.json from assets)" "$(of hf -o assets=hf)"
  [[ $(of gguf -o assets=hf) == "complete for llama.cpp ("*")" ]] || fail "$(of gguf -o assets=hf)"
  [[ $(of pt) == "complete: "*" tensors" ]] || fail "$(of pt)"
  mount_at m dcp -o assets=hf,strict
  python3 - m/.ckptfs/info.json "$class" <<'PYTHON'
import json, sys
v = {x["face"]: x for x in json.load(open(sys.argv[1]))["verdicts"]}
assert list(v) == ["hf", "gguf", "pt", "safetensors"], v
assert all(x["serves"] == "yes" for x in v.values()), v
assert v["hf"]["verdict"] == f"complete for {sys.argv[2]} (config.json from assets)", v
PYTHON
  cp hf/config.json dcp
  is "complete for $class (config.json from checkpoint)" "$(of hf)"
}

# ---- not loadable ----

# As in test_newcomer.sh, 1: names of another framework beside a config.json of transformers.
test_names_of_another_framework_are_told() {
  model llama
  cat >rules <<'RULES'
s/^model\.embed_tokens/tok_embeddings/
s/^model\.//
s/self_attn\.([qkvo])_proj/attention.w\1/
s/^lm_head/output/
RULES
  [[ $(of hf -o assets=hf,rename=rules) == "not loadable as LlamaForCausalLM: "*" tensors missing (model.embed_tokens.weight, model.norm.weight, ...), "*" unexpected (layers.0.attention.wk.weight, "* ]] ||
    fail "$(of hf -o assets=hf,rename=rules)"
  [[ $(of gguf -o assets=hf,rename=rules) == "absent: the model has no 'model.embed_tokens.weight'" ]]
}

# A recipe that makes the model from these names and shapes is suggested.
test_torchtitan_s_names_are_known() {
  model llama
  cat >rules <<'RULES'
s/^model\.embed_tokens/tok_embeddings/
s/^model\.//
s/self_attn\.([qkvo])_proj/attention.w\1/
s/mlp\.gate_proj/feed_forward.w1/
s/mlp\.up_proj/feed_forward.w3/
s/mlp\.down_proj/feed_forward.w2/
s/input_layernorm/attention_norm/
s/post_attention_layernorm/ffn_norm/
s/^lm_head/output/
RULES
  [[ $(of hf -o assets=hf,rename=rules) == "not loadable as LlamaForCausalLM: "*"; its names look like those of torchtitan: try recipe=torchtitan-llama" ]] ||
    fail "$(of hf -o assets=hf,rename=rules)"
}

test_olmo_core_s_names_are_known() {
  model llama
  cat >rules <<'RULES'
s/^model\.embed_tokens/embeddings/
s/^model\.norm/lm_head.norm/
s/^model\.layers/blocks/
s/self_attn\.([qkv])_proj/attention.w_\1/
s/self_attn\.o_proj/attention.w_out/
s/mlp\.gate_proj/feed_forward.w1/
s/mlp\.up_proj/feed_forward.w3/
s/mlp\.down_proj/feed_forward.w2/
s/input_layernorm/attention_norm/
s/post_attention_layernorm/feed_forward_norm/
s/^lm_head\.weight/lm_head.w_out.weight/
RULES
  [[ $(of hf -o assets=hf,rename=rules) == "not loadable as LlamaForCausalLM: "*"; its names look like those of OLMo-core: try recipe=olmo-llama" ]] ||
    fail "$(of hf -o assets=hf,rename=rules)"
}

# As in test_newcomer.sh, 2: the reason is known and must be shown.
test_no_config_is_told() {
  model llama
  is "not loadable: no config.json beside the checkpoint or in assets=" "$(of hf)"
  is "absent: no config.json beside the checkpoint or in assets=" "$(of gguf)"
  refused "option 'strict': hf/: not loadable: no config.json beside" ckptfs ls dcp -o strict
}

test_each_difference_is_counted_and_named() {
  model llama
  is "not loadable as LlamaForCausalLM: 1 tensor missing (model.norm.weight)" \
    "$(of hf -o assets=hf --exclude=model.norm.weight)"
  echo 's/^model\.norm/model.final_norm/' >rules
  is "not loadable as LlamaForCausalLM: 1 tensor missing (model.norm.weight), 1 unexpected (model.final_norm.weight)" \
    "$(of hf -o assets=hf,rename=rules)"
  config vocab_size 7
  [[ $(of hf -o assets=hf) == "not loadable as LlamaForCausalLM: 2 of the wrong shape (lm_head.weight is ("*", 64), but by config.json it should be (7, 64), ...); the vocabulary is padded to 8 rows" ]] ||
    fail "$(of hf -o assets=hf)"
  mkdir none
  refused "option 'strict': hf/: not loadable as LlamaForCausalLM: 2 of the wrong shape" \
    ckptfs mount dcp none -o assets=hf,strict
}

test_more_than_the_model_is_not_complete() {
  model llama
  config num_hidden_layers 1
  [[ $(of hf -o assets=hf) == "more than LlamaForCausalLM: "*" unexpected (model.layers.1."* ]] ||
    fail "$(of hf -o assets=hf)"
  refused "option 'strict': hf/: more than" ckptfs info dcp -o assets=hf,strict
}

test_what_is_not_known_is_not_called_complete() {
  model llama
  config model_type '"bert"'
  is "not checked: config.json: model_type 'bert' is not supported" "$(of hf -o assets=hf)"
  config model_type '"llama"'
  config quantization_config '{}'
  is "not checked: config.json asks for quantised weights (quantization_config)" "$(of hf -o assets=hf)"
  ckptfs info dcp -o assets=hf,strict >/dev/null
  echo '{' >hf/config.json
  [[ $(of hf -o assets=hf) == "not loadable: config.json, line "* ]] || fail "$(of hf -o assets=hf)"
}

# Of a vision model, only the text model is checked.
cases_of_a_model_that_sees_the_text_is_checked() { printf '%s\n' "mistral3 model.language_model." "mistral3_old language_model.model."; }
test_of_a_model_that_sees_the_text_is_checked() {
  local class=Mistral3ForConditionalGeneration
  model "$1"
  is "not checked: the text model is complete for $class (config.json from assets), and what the other 2 tensors should be is not known" \
    "$(of hf -o assets=hf)"
  ckptfs info dcp -o assets=hf,strict >/dev/null
  is "not loadable as $class: 1 tensor missing ($2norm.weight)" "$(of hf -o assets=hf --exclude="$2norm.weight")"
  is "not loadable as $class: no tensors but those of the text model" \
    "$(of hf -o assets=hf --exclude='*vision_tower*' --exclude='*projector*')"
  echo "s/^$2layers.0.mlp/$2layers.0.ffn/" >rules
  [[ $(of hf -o assets=hf,rename=rules) == "not loadable as $class: 3 tensors missing ($2layers.0.mlp.gate_proj.weight, $2layers.0.mlp.up_proj.weight, ...), 3 unexpected ($2layers.0.ffn."* ]] ||
    fail "$(of hf -o assets=hf,rename=rules)"
  [[ $(of gguf -o assets=hf) == "complete for llama.cpp (mistral3, f32)" ]] || fail "$(of gguf -o assets=hf)"
}

# A recipe is suggested only if it makes the whole model.
test_a_recipe_that_makes_the_model_is_named() {
  local c=$DATA/mcore_gpt_dense/ckpt
  mkdir hf
  cat >hf/config.json <<'JSON'
{"model_type": "qwen3", "vocab_size": 60, "hidden_size": 16, "intermediate_size": 24, "head_dim": 6,
 "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
 "max_position_embeddings": 64, "attention_bias": false}
JSON
  ckptfs info "$c" | grep -F "; its names look like those of Megatron-core: with assets=DIR, where its config.json is, try recipe=megatron" >/dev/null
  ckptfs info "$c" -o assets=hf | grep -F "; its names look like those of Megatron-core, but with recipe=megatron-llama 12 tensors are missing, unexpected or of the wrong shape" >/dev/null
  # The biases of q, k and v, which this model does not have, are left out.
  ckptfs info "$c" -o assets=hf,exclude='*linear_qkv.bias' >out
  grep -qF "its names look like those of Megatron-core: try recipe=megatron-llama" out
  ckptfs info "$c" -o assets=hf,exclude='*linear_qkv.bias',recipe=megatron-llama,strict |
    grep -qF "hf/: complete for Qwen3ForCausalLM (config.json from assets)"
}

# What this kind of model needs is not known, but a recipe fits.
test_a_recipe_is_named_for_a_model_that_is_not_known() {
  local name norm rows columns args=(embedding.word_embeddings.weight 8x4 1x1 embedding.position_embeddings.weight 6x4 1x1)
  for name in weight bias; do
    args+=("decoder.final_layernorm.$name" 4 1)
    for norm in self_attention.linear_qkv mlp.linear_fc1; do args+=("decoder.layers.$norm.layer_norm_$name" 1x4 1x1); done
  done
  for name in self_attention.linear_qkv:8:4 self_attention.linear_proj:4:4 mlp.linear_fc1:16:4 mlp.linear_fc2:4:16; do
    IFS=: read -r name rows columns <<<"$name"
    args+=("decoder.layers.$name.weight" "1x${rows}x$columns" 1x1x1 "decoder.layers.$name.bias" "1x$rows" 1x1)
  done
  make_dcp --flat dcp "${args[@]}"
  mkdir hf
  cat >hf/config.json <<'JSON'
{"model_type": "gpt_bigcode", "vocab_size": 7, "n_embd": 4, "n_layer": 1, "n_head": 2, "n_positions": 6,
 "n_inner": null, "multi_query": true}
JSON
  is "not checked: config.json: model_type 'gpt_bigcode' is not supported; its names look like those of Megatron-core: try recipe=megatron-gpt-bigcode" \
    "$(of hf -o assets=hf)"
  is "not checked: config.json: model_type 'gpt_bigcode' is not supported" "$(of hf -o assets=hf,recipe=megatron)"
}

test_damage_is_told() {
  model llama
  rm dcp/*.distcp
  [[ $(of hf -o assets=hf) == "not loadable as LlamaForCausalLM: "*" left out ("* ]] ||
    fail "$(of hf -o assets=hf)"
  [[ $(of pt) == "not complete: "*" left out ("*": data file '"* ]] ||
    fail "$(of pt)"
}

# Of a tensor that a Flax model's index names and no file has, neither dtype nor shape is known.
test_objects_that_are_lost_are_counted() {
  mkdir dcp m
  python3 - <<'END'
import json
array = b"\x93\x91\x02\xa5uint8\xc4\x02ab"
open("dcp/flax_model-00001-of-00001.msgpack", "wb").write(b"\x81\xa1a\xc7" + bytes([len(array), 1]) + array)
json.dump({"weight_map": {"a": "flax_model-00001-of-00001.msgpack", "b": "flax_model-00001-of-00001.msgpack"}},
          open("dcp/flax_model.msgpack.index.json", "w"))
END
  is "not complete: 1 tensor; 1 object cannot be read" "$(of pt)"
  is "not complete: 1 tensor; 1 object cannot be read" "$(of safetensors)"
  is "object    b|complete  no: the index places it in 'flax_model-00001-of-00001.msgpack', which lacks it" \
    "$(ckptfs info dcp b | paste -sd '|')"
  refused "object 'b': the index places it in 'flax_model-00001-of-00001.msgpack', which lacks it" ckptfs mount dcp m
}

# ---- mount and export ----

# As in the directory of an optimizer that is saved by itself.
test_a_model_without_tensors_is_told() {
  local none why="empty: no tensor seems to be a weight of a model: name the weights with weights= or rename="
  model llama
  ckptfs reshard -q dcp opt -o rename=<(echo 's/^/optimizer.state.exp_avg./')
  is "$why" "$(ckptfs info opt | sed -n 's|.* hf/: ||p')"
  is "$why" "$(ckptfs info opt | sed -n 's|.* pt/: ||p')"
  refused "option 'strict': hf/: $why" ckptfs export opt hf no -o strict
  ckptfs info opt -o weights=optimizer.state.exp_avg. | grep 'pt/: complete: ' >/dev/null
  none=$(ckptfs info "$DATA/mcore_flat/ckpt" -o include=common.pt)
  is "empty: the checkpoint has no tensors" "$(echo "$none" | sed -n 's|.* pt/: ||p')"
}

test_mount_has_a_line_for_each_face() {
  model llama
  mount_at m dcp -o assets=hf 2>err
  is "ckptfs: hf/: complete for LlamaForCausalLM (config.json from assets)
ckptfs: gguf/: not checked: it is made when it is first accessed
ckptfs: pt/: complete: 21 tensors
ckptfs: safetensors/: complete: 21 tensors" "$(cat err)"
  ckptfs umount m
  mount_at m dcp -q -o assets=hf 2>err
  is "" "$(cat err)"
  ckptfs umount m
  mount_at m dcp 2>err
  is "ckptfs: hf/: not loadable: no config.json beside the checkpoint or in assets=
ckptfs: gguf/: absent: no config.json beside the checkpoint or in assets=" "$(head -n 2 err)"
}

test_mount_of_a_run_has_none() {
  mkdir run
  model llama
  mv dcp run/step-1
  mount_at m run 2>err
  is "" "$(cat err)"
  grep -qF '"verdict": "not loadable: no config.json' m/step-1/.ckptfs/info.json
}

test_mount_8_hears_only_what_is_wrong() {
  model llama
  mkdir m
  ln -s "$CKPTFS" mount.ckptfs
  ./mount.ckptfs dcp m -o assets=hf 2>err
  is "" "$(cat err)"
  ckptfs umount m
  ./mount.ckptfs dcp m 2>err
  is "ckptfs: hf/: not loadable: no config.json beside the checkpoint or in assets=" "$(cat err)"
  ckptfs umount m
  ./mount.ckptfs dcp m -v -o assets=hf 2>err
  grep -qxF "ckptfs: hf/: complete for LlamaForCausalLM (config.json from assets)" err
  refused "option 'strict': hf/: not loadable: no config.json" ./mount.ckptfs dcp hf -o strict
}

test_export_tells_of_what_it_copies() {
  model llama
  ckptfs export dcp hf copy 2>err
  is "ckptfs: export: hf/: not loadable: no config.json beside the checkpoint or in assets=" "$(cat err)"
  ckptfs export dcp hf/model.safetensors one -o assets=hf 2>err
  is "ckptfs: export: hf/: complete for LlamaForCausalLM (config.json from assets)" "$(cat err)"
  ckptfs export dcp gguf gg -o assets=hf 2>err
  [[ $(cat err) == "ckptfs: export: gguf/: complete for llama.cpp ("* ]] || fail "$(cat err)"
  ckptfs export dcp tensors t 2>err
  is "" "$(cat err)"
  ckptfs export -q dcp hf quiet 2>err
  is "" "$(cat err)"
  ckptfs export dcp . all 2>err
  is 4 "$(grep -c '^ckptfs: export: [a-z]*/: ' err)"
  refused "option 'strict': hf/: not loadable" ckptfs export dcp hf no -o strict
  [[ ! -e no && ! -e no.partial ]]
}

# ---- codes ----

# tensors_of NAME:DTYPE...: a safetensors file of these tensors, each of four elements; $shape: not [4]
tensors_of() {
  mkdir -p q
  shape=${shape:-[4]} python3 - "$@" >q/model.safetensors <<'PYTHON'
import json, os, struct, sys
size = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "I8": 1, "U8": 1, "I16": 2, "I32": 4, "U32": 4, "I64": 8}
head, at = {}, 0
for name, dtype in (x.rsplit(":", 1) for x in sys.argv[1:]):
    n = 4 * size[dtype]
    head[name] = {"dtype": dtype, "shape": json.loads(os.environ["shape"]), "data_offsets": [at, at + n]}
    at += n
text = json.dumps(head).encode()
sys.stdout.buffer.write(struct.pack("<Q", len(text)) + text + bytes(at))
PYTHON
}

cases_a_cast_of_codes_is_refused() {
  cat <<'END'
a.weight:F8_E4M3 a.weight_scale_inv:F32
a.weight:F8_E4M3 a.weight_scale:F32
a.weight:U8 a.weight_scale:F8_E4M3
a.weight_packed:I32 a.weight_scale:BF16
a.weight._data:U8 a.weight._scale_inv:F32
e.down_proj_blocks:U8 e.down_proj_scales:U8
a.qweight:I32 a.scales:F16
a.weight:F8_E4M3 a.scale:F32
a.weight:F8_E4M3 a.qscale_weight:F32
a.weight:F8_E4M3 a.scale_weight:F32
a.weight:U32 a.scales:F16
a.weight:I8 a.weight_scales:F16
a.weight:I8 a.SCB:F32
a.weight:U8 a.weight.absmax:F32
a.weight:BF16 a.weight.quant_state.bitsandbytes__nf4:U8
a.W_q:U8 a.scale:F16
a.W_q:F16 a.scale:F16
a.weight._data:I8 a.weight._scale:F16
a.B:I32 a.s:F16
a.codes:I16 a.codebooks:F16
a.indices:I32 a.centroids.weight:F16
a.Qidxs:I64 a.Wscale:F16
a.q_weight:I32 a.q_scale_max:F16
a.trellis:I16 a.suh:F16
a.weight:I8 a.weight.scale:F64
END
}
test_a_cast_of_codes_is_refused() {
  tensors_of norm.weight:F32 "$@"
  refused "option 'dtype': '${1%:*}' holds codes \(.*\) whose scales are in '${2%:*}'" ckptfs ls q -o dtype=bf16
  mkdir m
  refused "option 'dtype': '${1%:*}' holds codes" ckptfs mount q m -o dtype=fp32
  ckptfs ls q >/dev/null
  ckptfs ls q -o dtype=bf16 --exclude="${2%:*}" >/dev/null
}

# Then config.json says that there are codes; masks and positions are none.
test_codes_of_an_unknown_form_are_not_cast() {
  local shape='[2,2]'
  tensors_of a.weight:I8 a.weight_scale:F32 b.strange:U8 b.strangescal:F32
  echo '{"quantization_config": {"quant_method": "new"}}' >q/config.json
  refused "config.json has 'quantization_config', and 'b.strange' \\(uint8, shape \\(2, 2\\)\\) may hold codes" \
    ckptfs ls q -o dtype=bf16 --exclude='a.*'
  ckptfs ls q -o dtype=bf16 --exclude='a.weight_scale' --exclude='b.*' >/dev/null
  shape='[1,4]'
  tensors_of position:I32 w:F32
  ckptfs ls -l q -o dtype=bf16 | grep '^bfloat16' >/dev/null
}

test_a_cast_of_what_only_sounds_like_scales_is_allowed() {
  tensors_of logit:F32 logit_scale:F32 a.weight:BF16 a.weight_scale:F32 b_scale:F32 c.scales:F16 d.weight:F32 \
    d.scale:F32 d.layer_scale:F32 e.B:F32 e.s:F32
  is "11 bfloat16" "$(ckptfs ls -l q -o dtype=bf16 | awk '{ print $1 }' | sort | uniq -c | xargs)"
}

run_suite "$@"
