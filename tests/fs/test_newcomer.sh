#!/bin/bash
# A newcomer to ckptfs 0.5.0 was led astray in these places although every byte was right. These tests check what the
# commands say now.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"

# A Llama of one layer with the names of transformers, or with a prefix, as in training.
llama() {
  local p=${2-}
  make_dcp "$1" "${p}model.embed_tokens.weight" 16x8 1x1 "${p}model.layers.0.self_attn.q_proj.weight" 8x8 1x1 \
    "${p}model.layers.0.self_attn.k_proj.weight" 4x8 1x1 "${p}model.layers.0.self_attn.v_proj.weight" 4x8 1x1 \
    "${p}model.layers.0.self_attn.o_proj.weight" 8x8 1x1 "${p}model.layers.0.mlp.gate_proj.weight" 12x8 2x1 \
    "${p}model.layers.0.mlp.up_proj.weight" 12x8 1x1 "${p}model.layers.0.mlp.down_proj.weight" 8x12 1x1 \
    "${p}model.layers.0.input_layernorm.weight" 8 1 "${p}model.layers.0.post_attention_layernorm.weight" 8 1 \
    "${p}model.norm.weight" 8 1 "${p}lm_head.weight" 16x8 1x1
}
config() {
  cat >"$1" <<'END'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 16, "hidden_size": 8,
 "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 12,
 "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "tie_word_embeddings": false}
END
}

# 1. hf/ is offered although it is not the model that config.json asks for.
test_1_another_model_than_config_json_asks_for() {
  make_dcp ck tok_embeddings.weight 16x8 1x1 layers.0.attention.wq.weight 8x8 1x1 output.weight 16x8 1x1
  config ck/config.json
  mkdir m m2
  ckptfs mount ck m 2>err
  grep -q '^ckptfs: hf/: not loadable as LlamaForCausalLM: .*missing (.*model.embed_tokens.weight' err || fail "$(cat err)"
  grep -q '3 unexpected (layers.0.attention.wq.weight' err
  ckptfs info ck | grep 'not loadable as LlamaForCausalLM' >/dev/null
  refused 'not loadable as LlamaForCausalLM' ckptfs mount ck m2 -o strict
  llama right
  config right/config.json
  ckptfs info right | grep 'hf/: complete for LlamaForCausalLM' >/dev/null || fail "$(ckptfs info right)"
}

# 2. Reasons are known but hidden.
test_2_reasons() {
  llama ck
  refused 'no config.json beside the checkpoint or in assets=' ckptfs cat ck gguf/model.gguf
  refused 'no config.json' ckptfs cat ck hf/config.json
}

# 3. A misspelt filter mounts an empty tree.
test_3_filters_that_match_nothing() {
  llama ck
  mkdir m m2
  ckptfs mount ck m -o include='modle.*' 2>err
  grep -q "'modle.\*' matches no FQN" err || fail "$(cat err)"
  status_of 1 ckptfs ls ck q_proj
  is 1 "$(wc -l <err)"
  grep -q "matches 'q_proj'" err || fail "$(cat err)"
  is 2 "$(ckptfs ls ck 'model.layers.{0,1}.mlp.{up,gate}_proj.*' | wc -l)"
}

# 4. Hugging Face cache snapshots are refused.
test_4_the_hugging_face_cache() {
  local repo=models--o--n
  llama ck
  mkdir -p $repo/blobs $repo/refs $repo/snapshots/abc
  ckptfs export ck hf/model.safetensors $repo/blobs/0123 -q
  ln -s ../../blobs/0123 $repo/snapshots/abc/model.safetensors
  printf abc >$repo/refs/main
  ckptfs info $repo/snapshots/abc | grep safetensors >/dev/null
  ckptfs cat $repo latest/tensors/lm_head.weight | cmp - <(ckptfs cat ck tensors/lm_head.weight)
}

# 5. Well-known neighbours are "not a checkpoint".
test_5_neighbours() {
  mkdir -p actor m
  : >actor/model_world_size_2_rank_0.pt
  refused "'model_world_size_2_rank_1.pt' is missing" ckptfs info actor
  mkdir orbax
  echo '{}' >orbax/_CHECKPOINT_METADATA
  refused 'Orbax' ckptfs info orbax
  llama ck
  refused "is an empty directory|mount point|first|swap|other way" ckptfs mount m ck
}

# 6. Nothing tells what an object other than a tensor is.
test_6_objects() {
  need_fixture bytes_items
  local ck name
  ck=$(fixture bytes_items)/ckpt
  name=$(ckptfs ls -l "$ck" | awk '$1 == "object" { name = $NF } END { print name }')
  ckptfs cat "$ck" "objects/$name.json" | python3 -c 'import json, sys; json.load(sys.stdin)'
}

# 7. `check` drowns its one finding.
test_7_check() {
  local file
  big_copy ck
  file=$(find ck -name '*.distcp' -printf '%f\n' | sort | head -n 1)
  truncate -s 1000 "ck/$file"
  status_of 1 ckptfs check ck
  [[ $(wc -l <out) -le 4 ]] || fail "$(cat out)"
}

# 8. EIO without a reason where there is no syslog.
test_8_errors_have_a_reason() {
  local file
  big_copy ck
  mount_at m ck -q -o io=direct
  file=$(find ck -name '*.distcp' -printf '%f\n' | sort | head -n 1)
  truncate -s 1000 "ck/$file"
  try_eio cat m/tensors/v m/tensors/w
  grep -q "$file" m/.ckptfs/log || fail "$(cat m/.ckptfs/log)"
}

# 9. In a run, paths and names mean the same everywhere, and a fresh copy can be used at once.
test_9_runs() {
  mkdir run
  llama run/step-1
  cp -a run/step-1 run/step-2
  ckptfs info run/latest >/dev/null # builds the index
  ckptfs info run/latest | tail -n +2 >a
  ckptfs info run latest | tail -n +2 | diff a -
  ckptfs info run/step-2 | tail -n +2 | diff a -
  ckptfs diff run/step-1 run/latest
  ckptfs ls run latest | diff - <(ckptfs ls run/step-2)
  mount_at m run -q
  # Not -r: cp copies in the order of inode numbers. If those of deleted files are reused, .metadata may come between
  # data files, and a copy with new times would then not be opened for 20 seconds.
  cp -a run/step-1 run/step-3
  cmp m/latest/tensors/lm_head.weight <(ckptfs cat run/step-3 tensors/lm_head.weight) || fail "$(cat m/.ckptfs/log)"
}

# 10. ls and info show too little.
test_10_looking() {
  llama ck model.
  ckptfs ls -h ck | grep ' KiB\|512 B' >/dev/null || fail "$(ckptfs ls -h ck)"
  ckptfs ls --tree ck | grep 'model' >/dev/null || fail "$(ckptfs ls --tree ck)"
  ckptfs info ck | sed -n 1,3p | grep 'parameters' >/dev/null || fail "$(ckptfs info ck)"
  ckptfs info ck lm_head.weight | grep 'model.lm_head.weight' >/dev/null
  refused "did you mean 'model.norm.weight'" ckptfs info ck model.norm.wieght
}

# 11, completion, is test_completion.sh.

# 12. Python: a name that does not exist.
test_12_python() {
  case ${VARIANT:-release} in asan | tsan) return 0 ;; esac # only test_python.sh can load such a library
  llama ck
  status_of 1 env PYTHONPATH="$HERE/../../scripts/python" CKPTFS_LIBRARY="$(dirname "$CKPTFS")/$(basename "$(find "$(dirname "$CKPTFS")" -maxdepth 1 -name 'libckpt.so.*' | head -n 1)")" \
    "$PYTHON" -c 'import ckptfs, sys; ckptfs.open(sys.argv[1])["lm_head.wieght"]' ck
  grep -q "KeyError.*lm_head.weight" err || fail "$(cat err)"
}

# 13. Options that do nothing, and surprising ones.
test_13_options() {
  llama ck
  config config.json
  refused "layout" ckptfs ls ck --layout=x
  mkdir assets
  config assets/config.json
  ckptfs reshard ck st --format=safetensors --model --assets=assets -q
  cmp assets/config.json st/config.json
  ckptfs reshard ck three --ranks=3 -q
  ckptfs reshard three again -q
  is "$(find three -name '*.distcp' | wc -l)" "$(find again -name '*.distcp' | wc -l)"
  mount_at m ck -q
  refused "mounted" ckptfs mount ck m
}

# 14. No permission to open /dev/fuse.
test_14_without_fuse() {
  [[ $EUID == 0 ]] || skip "not root"
  llama ck
  mkdir m m2
  # shellcheck disable=SC2016 # for the inner shell
  status_of 2 unshare -m bash -c 'mount --bind /dev/null /dev/fuse && exec "$1" mount -q ck m' . "$CKPTFS"
  grep -q 'ckptfs cat' err || fail "$(cat err)"
}

# 15. cat writes binary data to a terminal.
test_15_binary_on_a_terminal() {
  llama ck
  script -qec "$CKPTFS cat ck tensors/lm_head.weight" said </dev/null >/dev/null && fail "written"
  grep -q terminal said
}

# 16. One checkpoint of a run lacks a file: which, and what now?
test_16_an_incomplete_checkpoint_of_a_run() {
  make_dcp run/step-1 v 4 2
  make_dcp run/step-2 v 4 2
  rm run/step-2/*.distcp
  mkdir m
  for average in last:2 step-2,step-1; do
    refused "/run/step-2': data file .* is missing .*; with the option allow_missing, the rest" \
      ckptfs mount run m -o average=$average
  done
  refused "is missing .*; with the option allow_missing, the rest can be read" ckptfs mount run/step-2 m
  refused "'tensors/v': there is no such file in the tree; it is a run: the path has to begin with one" \
    ckptfs cat run tensors/v
  refused "did you mean 'step-1' or 'step-2'" ckptfs cat run step-3/tensors/v
}

# 17. A misspelt name replaces the old checkpoint with an empty one, or leaves nothing to check.
test_17_nothing_is_left() {
  llama ck
  ckptfs reshard ck copy -q
  status_of 2 ckptfs reshard ck copy --overwrite --include='modle.*'
  grep -q '^ckptfs: reshard: include leaves nothing of the checkpoint$' err || fail "$(cat err)"
  ckptfs diff ck copy
  status_of 2 ckptfs check -q --values ck --include='modle.*'
  grep -q '^ckptfs: check: include leaves nothing of the checkpoint$' err || fail "$(cat err)"
  [[ ! -s out ]] || fail "$(cat out)"
  refused 'export: exclude leaves nothing of the checkpoint' ckptfs export ck tensors out2 --exclude='*'
  [[ ! -e out2 ]]
  printf '\2\0\0\0\0\0\0\0{}' >none.safetensors
  refused 'reshard: there is nothing to write: no tensor and no object is left' ckptfs reshard none.safetensors none
  [[ ! -e none ]]
}

# 18. The model of a training checkpoint has other names.
test_18_diff_of_a_model() {
  llama train model.
  ckptfs reshard train model --format=safetensors --model -q
  status_of 1 ckptfs diff train model
  grep -q '^ckptfs: warning: no name is in both checkpoints; --model compares' err || fail "$(cat err)"
  status_of 0 ckptfs diff train model --model
  [[ ! -s err ]] || fail "$(cat err)"
  status_of 1 ckptfs diff train model 'lm_head*'
  [[ ! -s err ]] || fail "$(cat err)" # only one of them has it
}

# 19. The path of a mount is given instead of the checkpoint's.
test_19_a_mount_is_not_a_checkpoint() {
  local what
  llama run/step-1
  mount_at m run/step-1 -q
  mount_at r run -q
  for what in m r r/step-1; do
    refused "'$what': it is a mount of ckptfs, or a copy of one: name the checkpoint itself" ckptfs info $what
    refused "it is a mount of ckptfs" ckptfs export $what hf copy
  done
  ckptfs info m/hf >/dev/null
  ckptfs warm m
}

# 20. A run has no checkpoint of that name.
test_20_a_misspelt_checkpoint_of_a_run() {
  llama run/step-100
  llama run/step-200
  refused "there is no such file or checkpoint; did you mean 'step-100' or 'step-200'" ckptfs check run step-300
  refused "there is no such file or checkpoint" ckptfs reshard run step-300 out
  refused "there is no such file or checkpoint" ckptfs export run step-300 hf out
  refused "unexpected argument 'step-300'" ckptfs check run/step-100 step-300
  refused "unexpected argument 'step-300'" ckptfs check run step-100 step-300
  refused "unexpected argument 'l\*': --include takes patterns" ckptfs check run/step-100 'l*'
  refused "'l\*': no tensor or object of that name; 'ckptfs ls' and 'ckptfs stat' take patterns" ckptfs info run/step-100 'l*'
  refused "the path has to begin with one of its checkpoints, as in 'latest/hf'" ckptfs export run hf out
  refused "run 'run' has no checkpoint 'step-300'; did you mean 'step-100' or 'step-200'[?]" \
    ckptfs head run step-300 lm_head.weight
  mkdir other
  mv run/step-100 other/final
  refused "latest checkpoint cannot be determined: no file names it, and no name ends in a number" ckptfs check other latest
}

run_suite "$@"
