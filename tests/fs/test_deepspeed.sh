#!/bin/bash
# DeepSpeed's checkpoints: a tag, the directory above it, and runs of them.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
long="every_tensor_is_what_was_in_the_model"

# same_as_expected ARGUMENTS OF CAT: compares what `ckptfs cat` writes with what expected.json says of each tensor
same_as_expected() {
  python3 - "$CKPTFS" "$@" <<'PY'
import hashlib, json, subprocess, sys
program, fixture, path = sys.argv[1:4]
tensors = json.load(open(fixture + "/expected.json"))["tensors"]
for name, want in tensors.items():
    file = "tensors/" + name.replace("/", "%2F")
    got = subprocess.run([program, "cat", path, file], stdout=subprocess.PIPE, check=True).stdout
    assert hashlib.sha256(got).hexdigest() == want["sha256"], name
print(len(tensors))
PY
}

cases_every_tensor_is_what_was_in_the_model() {
  printf '%s\n' z1_fp32_w2 z2_bf16_w2_rr z3_fp16_w3_ties moe_z2_bf16_ep2_w4 tp2_z3_fp32_w4
}
test_every_tensor_is_what_was_in_the_model() {
  need_fixture "ds_$1"
  same_as_expected "$(fixture "ds_$1")" "$(fixture "ds_$1")/ckpt" >count
  [[ $(cat count) -gt 40 ]]
}

test_a_tag_and_the_directory_above_it_are_the_same() {
  copy_of ds_z3_bf16_w4_frozen c
  mount_at m c
  mount_at n c/global_step3
  diff -r m/tensors n/tensors
  diff -r m/hf n/hf
  ckptfs cat c hf/model.safetensors | cmp - m/hf/model.safetensors
}

test_several_tags_are_a_run() {
  copy_of ds_z1_fp32_w2 c
  cp -r c/global_step3 c/global_step10
  printf global_step10 >c/latest
  mount_at m c
  is ".ckptfs global_step10 global_step3 latest" "$(entries m | tr ' ' '\n' | sorted)"
  is global_step10 "$(readlink m/latest)"
  ckptfs cat c latest/tensors/scale | cmp - m/latest/tensors/scale
  diff -r m/global_step3/tensors m/global_step10/tensors
}

# As transformers' Trainer and Lightning leave them: a directory with latest and a tag for each save.
test_directories_with_a_tag_each_are_a_run() {
  mkdir out
  copy_of ds_z1_fp32_w2 out/checkpoint-9
  copy_of ds_z3_bf16_w4_frozen out/checkpoint-10
  mount_at m out
  is ".ckptfs checkpoint-10 checkpoint-9 latest" "$(entries m | tr ' ' '\n' | sorted)"
  is checkpoint-10 "$(readlink m/latest)"
  ckptfs cat out/checkpoint-9 tensors/scale | cmp - m/checkpoint-9/tensors/scale
}

# Each tensor in hf/ has the bytes of its master copy, or, where it has none or --master=no, of the weight.
test_masters_are_the_model_when_asked_for() {
  need_fixture ds_z2_bf16_w4_frozen
  ckptfs cat --master=yes "$(fixture ds_z2_bf16_w4_frozen)/ckpt" hf/model.safetensors >model
  ckptfs cat --master=no "$(fixture ds_z2_bf16_w4_frozen)/ckpt" hf/model.safetensors >weights
  python3 - "$(fixture ds_z2_bf16_w4_frozen)" <<'PY'
import hashlib, json, sys
tensors = json.load(open(sys.argv[1] + "/expected.json"))["tensors"]
for path, master in ("model", "optimizer.state.%s.fp32"), ("weights", "%s"):
    file = open(path, "rb").read()
    end = 8 + int.from_bytes(file[:8], "little")
    names = {k: v for k, v in json.loads(file[8:end]).items() if k != "__metadata__"}
    assert set(names) == {n for n in tensors if not n.startswith("optimizer.")}
    for name, at in names.items():
        a, b = at["data_offsets"]
        want = tensors.get(master % name, tensors[name])
        assert hashlib.sha256(file[end + a : end + b]).hexdigest() == want["sha256"], name
PY
  need_fixture plain
  refused "option 'master': no weight has an fp32 master" ckptfs info --master=yes "$(fixture plain)/ckpt"
  refused "option 'master': 'maybe' is not one of yes, no" ckptfs info --master=maybe "$(fixture plain)/ckpt"
}

# Slices of the other rank are not shown as if they were the tensors.
test_a_model_parallel_rank_without_optimizer_states_is_told() {
  copy_of ds_tp2_z3_fp32_w4 c
  rm c/*/*mp_rank_01_optim_states.pt
  ckptfs ls c >names 2>says
  grep -q "'zero_pp_rank_0_mp_rank_01_optim_states.pt' is missing, though" says
  is optimizer.state.down.weight.step "$(grep down.weight names)"
  copy_of ds_pp2_z1_bf16_w4 p
  rm p/*/*mp_rank_01_optim_states.pt
  ckptfs ls p >names 2>says
  grep -q "'bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt' is missing, though" says
  grep -q "optimizer.state.1.lin.weight.fp32" names
  copy_of ds_pp2_z1_bf16_w4 t
  rm t/*/layer_00-model_states.pt
  ckptfs ls t 2>&1 | grep "no file of a layer holds 'tied_modules.embed.weight': it is missing" >/dev/null
}

test_what_cannot_be_shown_is_said() {
  need_fixture ds_bad_missing_rank
  ckptfs ls "$(fixture ds_bad_missing_rank)/ckpt" >names 2>says
  grep -q "^fc1.weight$" names
  is 0 "$(grep -c '^optimizer.state' names || true)"
  grep -q "'global_step3/bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt' is there" says
  grep -q "not everything is there: 'bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt' is missing" says
  need_fixture ds_bad_latest_path
  refused "'latest' names '../../z1_fp32_w2/ckpt/global_step3'" ckptfs ls "$(fixture ds_bad_latest_path)/ckpt"
}

run_suite "$@"
