#!/bin/bash
# Checkpoints of safetensors files. Their bytes are compared in test_bytes.sh.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"

test_a_single_file_is_a_checkpoint() {
  need_fixture hf_rank0
  cp "$(fixture hf_rank0)/ckpt/model-00002-of-00002.safetensors" some-name
  ckptfs ls some-name >names
  diff - <(sort names) <<'END'
count
flag
model.norm.weight
scalar
END
}

test_pieces_and_what_torch_made_of_them_are_equal() {
  need_fixture mp4_hf_consolidated_1
  status_of 0 ckptfs diff "$(fixture mp4_hf_consolidated_1)/ckpt" \
    "$(fixture mp4_hf_consolidated_1)/ckpt/sharded"
  diff out - <<<'5 equal, 0 differ, 0 only in A, 0 only in B'
}

test_the_model_has_its_names() {
  need_fixture hf_rank0
  mount_at m "$(fixture hf_rank0)/ckpt"
  status_of 0 ckptfs diff "$(fixture hf_rank0)/ckpt" m/hf
  diff out - <<<'5 equal, 0 differ, 0 only in A, 0 only in B'
}

test_a_missing_shard_is_named() {
  copy_of hf_rank0 c
  mkdir m
  rm c/model-00001-of-00002.safetensors
  refused "'model.embed.weight': a tensor of 'model-00001-of-00002.safetensors', which is missing" \
    ckptfs mount c m
  mount_at m c -oallow_missing
  [[ $(stat -c %s m/tensors/model.norm.weight) == 16 ]]
  try_eio cat m/objects/model.embed.weight
}

test_a_shard_that_was_cut_is_named() {
  copy_of mp4_hf_sharded c
  mkdir m
  truncate -s -1 c/shard-00003-model-00001-of-00001.safetensors
  refused "'shard-00003-model-00001-of-00001.safetensors' has [0-9]+ bytes, items in it reach" \
    ckptfs mount c m
}

# Hugging Face's libraries load all that the files hold, and so must this program.
test_an_index_that_is_wrong_is_followed_as_far_as_possible() {
  local says="^ckptfs: warning: the files count, not their index: 'model.safetensors.index.json'"
  copy_of hf_rank0 c
  sed -i 's/"flag": .*/"lm_head.weight": "model-00002-of-00002.safetensors",/' c/*.json
  ckptfs info c >out 2>err
  grep -q "$says does not name 'flag' of 'model-00002-of-00002.safetensors'$" err || fail "$(cat err)"
  grep -q '^complete *no: 1 cannot be opened$' out
  grep -q "lm_head.weight: the index places it in 'model-00002-of-00002.safetensors', which lacks it" out
  ckptfs export c safetensors x 2>err && fail "exported"
  grep -q "'lm_head.weight': the index places it in .* with the option allow_missing, the rest can be read$" err
  ckptfs export c safetensors x -o 'exclude=lm_head*' 2>err
  ckptfs ls x >names
  grep -qx flag names
  status_of 0 ckptfs diff c x -o 'exclude=lm_head*' -o exclude=index_differs
  ckptfs info c -o 'exclude=lm_head*' 2>err | grep '^complete *yes$' >/dev/null
  # What is saved from it has no index that could be wrong.
  ckptfs reshard -q c saved -o 'exclude=lm_head*' 2>err
  ckptfs ls saved >names
  grep -x index_differs names && fail "it was saved, too"
  ckptfs info saved >out 2>err
  is "" "$(cat err)"
}

test_parts_of_torch_need_no_index() {
  copy_of torchsave_sharded c
  rm c/*.json
  ckptfs diff c "$(fixture torchsave_sharded)/ckpt" >out
  grep -q ' 0 differ, 0 only in A, 0 only in B$' out || fail "$(cat out)"
  rm c/pytorch_model-00002-of-00003.bin
  refused "'pytorch_model-00002-of-00003.bin' is missing: the model is in 3 files; add the file" ckptfs info c
}

test_a_file_of_several_is_said_to_be_one() {
  local others='each with a part of the model; the others are not shown$'
  ckptfs info "$(fixture hf_rank0)/ckpt/model-00002-of-00002.safetensors" >out 2>err
  grep -q "^ckptfs: warning: 'model-00002-of-00002.safetensors' is one of 2 files, $others" err || fail "$(cat err)"
  cp "$(fixture torchsave_zip)/ckpt/model.pt" consolidated.00.pth
  ckptfs info consolidated.00.pth >out 2>err
  is "" "$(cat err)"
  cp consolidated.00.pth consolidated.01.pth
  ckptfs info consolidated.00.pth >out 2>err
  grep -q "'consolidated.00.pth' has only one rank's part of the model; those in 'consolidated.01.pth' and" err
  ckptfs info consolidated.01.pth >out 2>err
  grep -q "'consolidated.01.pth' has only one rank's part of the model; those in 'consolidated.00.pth' and" err
  refused "a model of Meta's, cut into slices for several GPUs .*; convert it with convert_llama_weights_to_hf.py" \
    ckptfs info .
}

# Each format's file: NAME
cases_what_a_failed_download_leaves_is_named() {
  printf '%s\n' model.safetensors pytorch_model.bin model.gguf
}
test_what_a_failed_download_leaves_is_named() {
  mkdir d
  : >"d/$1"
  refused "'$1': it is empty; save or download it again$" ckptfs info d
  truncate -s 4096 "d/$1"
  refused "'$1': it begins with 512 zeros, as after a download or copy that was not completed; " ckptfs info d
  printf '\n<!doctype html>\n<html><title>Sign in</title>' >"d/$1"
  refused "'$1': it is a web page, which a server sent .*; sign in and download it again$" ckptfs info d
  printf 'Access to model a/b is restricted.\r\nLog in.' >"d/$1"
  refused "'$1': it is a text, as servers send instead of a file: 'Access to model a/b is restricted.'" ckptfs info d
  refused "'$1': it is a text, as servers send instead of a file: " ckptfs info "d/$1"
}

run_suite "$@"
