#!/bin/bash
# Elements of tensors as text.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
long="as_numpy_prints"

test_as_numpy_prints() {
  local tensors=160 # two or three processes each
  [[ $every == 1 && ${VARIANT:-release} == release ]] || tensors=30
  /usr/bin/python3 "$HERE/head.py" "$CKPTFS" "$T" $tensors "${TEST_SEED:-$RANDOM}"
}

test_bits() {
  python3 -c 'import sys; sys.stdout.buffer.write(bytes(range(16)))' >v
  make_dcp ck v 2x4:bfloat16 1x2:v
  ckptfs head --bits ck v >out
  printf '%s\n' '[[0x0100 0x0302 0x0504 0x0706]' ' [0x0908 0x0b0a 0x0d0c 0x0f0e]]' | diff - out
  is 0x0908 "$(ckptfs head --bits ck v '1, 0')"
  is '[0x0302 0x0b0a]' "$(ckptfs head --bits ck v '[..., 1]')"
  is 0x0f0e "$(ckptfs head --bits ck v -1,-1)"
  is 0x0f0e "$(ckptfs head ck v '-1, -1' --bits)"
  refused "unknown option '-x'" ckptfs head ck v -x
}

# Only the elements that are shown are read.
test_a_large_tensor() {
  ckptfs head "$(big)/ckpt" w >out
  is 7 "$(grep -cF ... out)" # three rows, a line of dots, three rows
  refused 'more than 1000000 elements' ckptfs head --json "$(big)/ckpt" w
}

# Empty dimensions before or after long ones.
test_no_elements() {
  python3 -c 'import json, struct
head = json.dumps({name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name, shape in (
    ("a", [1 << 62, 0]), ("b", [0, 1 << 62]), ("c", [2, 0, 1 << 40]))}).encode()
open("model.safetensors", "wb").write(struct.pack("<Q", len(head)) + head)'
  for name in a b c; do is '[]' "$(ckptfs head . $name)"; done
  is '[]' "$(ckptfs head --json . b | tr -d '\n')"
  is '[[],[]]' "$(ckptfs head --json . c | tr -d '\n')"
  refused "more than 1000000 empty lists to show" ckptfs head --json . a
}

test_names() {
  is "$(ckptfs head "$(zoo)" model.layers.0.norm)" "$(ckptfs head "$(zoo)" layers.0.norm)"
  refused "^ckptfs: head: 'layers.0.nrm': no tensor or object of that name; did you mean" ckptfs head "$(zoo)" layers.0.nrm
}

# A name that is stored as another one is shown comes first.
test_names_as_they_are_shown() {
  mkdir c
  python3 - >c/model.safetensors <<'PYTHON'
import json, struct, sys
head = {n: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]} for i, n in enumerate(("a\nb", "c%0Ad", "c\nd"))}
text = json.dumps(head).encode()
sys.stdout.buffer.write(struct.pack("<Q", len(text)) + text + struct.pack("<3f", 1, 2, 3))
PYTHON
  ckptfs ls c | grep -x 'a%0Ab'
  is 1. "$(ckptfs head c a%0Ab | tr -d '[]')"
  is 2. "$(ckptfs head c 'c%0Ad' | tr -d '[]')"
  is 3. "$(ckptfs head c $'c\nd' | tr -d '[]')"
  ckptfs cat --fqn c a%0Ab | cmp - <(ckptfs cat --fqn c $'a\nb')
  ckptfs info c a%0Ab | grep float32 >/dev/null
  refused "'a%0ab': no tensor or object of that name" ckptfs info c a%0ab
}

test_names_that_only_the_model_has() {
  local c=$DATA/mcore_gpt_dense/ckpt name=model.layers.0.self_attn.q_proj.weight
  mkdir hf
  cat >hf/config.json <<'JSON'
{"model_type": "qwen3", "vocab_size": 60, "hidden_size": 16, "intermediate_size": 24, "head_dim": 6,
 "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
 "max_position_embeddings": 64, "attention_bias": false}
JSON
  options=assets=hf,exclude='*linear_qkv.bias',recipe=megatron-llama
  ckptfs sum --model "$c" -o "$options" | grep -F "$name" >/dev/null
  refused "info: '$name' is not stored: hf/ makes it from other tensors; only 'stat', 'sum' and 'diff' take such names, with --model" \
    ckptfs info "$c" "$name" -o "$options"
  refused "'$name' is not stored" ckptfs cat --fqn "$c" "$name" -o "$options"
}

cases_bad_slices() {
  printf '%s\n' '1:2:0 step' '[1 its.end' 'a expected' '1,2,3,4 more.parts' '99 outside' '[-99] outside' \
    '1:2] expected' '::-1 step' '...,...,... expected' '1;2 expected' '1:2:3:4 expected' '99999999999999999999 expected'
}
test_bad_slices() { refused "${2//./ }" ckptfs head "$(zoo)" model.layers.0.q.weight "$1"; }

run_suite "$@"
