#!/bin/bash
# The files that the ranks of an FSDP run have saved: which of them are a checkpoint, and what is said of others.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"

part() { printf 'c/model_world_size_%s_rank_%s.pt' "$1" "$2"; }

refused() {
  ! ckptfs ls c >names 2>says || return 1
  grep -q "$1" says || { cat says; return 1; }
}

test_the_directory_above_the_policy_is_the_same() {
  mkdir step
  copy_of fsdp_tp step/actor
  mount_at m step
  mount_at n step/actor
  diff -r m/tensors n/tensors
}

test_steps_are_a_run() {
  mkdir -p run/global_step_9 run/global_step_10
  copy_of fsdp_tp run/global_step_9/actor
  copy_of fsdp_placed run/global_step_10/actor
  mount_at m run
  is ".ckptfs global_step_10 global_step_9 latest" "$(entries m | tr ' ' '\n' | sorted)"
  ckptfs cat run/global_step_9 tensors/small | cmp - m/global_step_9/tensors/small
}

test_the_file_of_a_rank_is_missing() {
  copy_of fsdp_placed c
  rm "$(part 4 2)"
  refused "'model_world_size_4_rank_2.pt' is missing: the files of 3 of 4 ranks are there"
}

test_files_of_an_older_save_are_left_out_where_something_says_so() {
  copy_of fsdp_placed c
  cp "$(part 4 1)" "$(part 2 0)"
  refused "are from two different saves, and it is not clear which one to open"
  echo '{"FSDP_version": 2, "world_size": 4}' >c/fsdp_config.json
  ckptfs ls c >names
  is 11 "$(wc -l <names)"
}

test_files_are_of_the_rank_that_their_name_says() {
  copy_of fsdp_placed c
  cp "$(part 4 1)" "$(part 4 2)"
  refused "rank 1 has written it, not rank 2 as the file's name says"
}

test_the_mesh_has_more_ranks_than_there_are_files() {
  copy_of fsdp_placed c
  for r in 0 1; do mv "$(part 4 $r)" "$(part 2 $r)"; done
  rm c/model_world_size_4_*
  refused "its mesh has rank 2, but there are files of only 2 ranks"
}

test_shards_under_the_names_of_dinov2() {
  copy_of fsdp_sharded s
  mkdir c
  for r in 0 1 2 3; do cp "s/model_world_size_4_rank_$r.pt" "c/model_9.rank_$r.pth"; done
  mount_at m c
  mount_at n s
  diff -r m/tensors n/tensors
  cp c/model_9.rank_0.pth c/model_8.rank_0.pth
  refused "are from two different saves"
  echo model_9.rank_0.pth >c/last_checkpoint.rank_0
  ckptfs ls c >/dev/null
  rm c/model_9.rank_3.pth
  refused "it was written by one of 4 ranks, but there are files of 3"
}

test_the_configuration_is_in_a_directory_beside_them() {
  copy_of fsdp_tp c
  mkdir c/huggingface
  echo '{"model_type": "llama"}' >c/huggingface/config.json
  mount_at m c
  cmp c/huggingface/config.json m/hf/config.json
}

test_an_optimizer_in_part_is_left_out() {
  copy_of fsdp_tp c
  rm c/optim_world_size_4_rank_3.pt
  ckptfs ls c >names 2>says
  grep -q "not everything is there: rank 3's file of optimizer states is missing" says
  if grep '^optimizer' names; then fail "a part is shown"; fi
  # Everyone who may rely on the checkpoint is told.
  status_of 1 ckptfs check c
  grep -x "fault: not everything is there: rank 3's file .*" "$T/out"
  status_of 1 ckptfs check --json c
  jq -e '.fault_count == 1 and (.faults[0] | .fqn == null and .warning == false)' "$T/out"
  ckptfs info c | grep -A1 -x 'complete    no: not everything is there' | grep -x "  rank 3's file .*"
  ckptfs info --json c | jq -e '.complete == false and (.missing | startswith("rank 3")) and .not_shown == null'
  ckptfs check --exclude=missing c
  mkdir run
  cp -r c run/step-1
  aged run
  ckptfs ls -l run | grep -x "complete    step-1  (latest)  (not everything is there: rank 3's .*)"
}

cases_what_other_versions_pickle_is_read() { printf '%s\n' 2.1 2.2 2.3 2.5 2.6 2.9 2.10 2.13; }
test_what_other_versions_pickle_is_read() {
  python3 "$HERE/make_fsdp.py" "$1" .
  ckptfs ls c >names 2>says
  [[ ! -s says ]] || fail "$(cat says)"
  is "$(find . -maxdepth 1 -type f ! -name names ! -name says -printf '%f\n' | sorted)" "$(sorted <names)"
  mount_at m c
  while read -r name; do cmp "$name" "m/tensors/$name"; done <names
}

cases_copies_are_compared_as_often_as_is_said() {
  echo 70000
  [[ ${VARIANT:-release} != release ]] || echo 530000 | full_only # a sanitizer takes minutes
}
test_copies_are_compared_as_often_as_is_said() {
  python3 "$HERE/make_fsdp.py" --copies "$1" .
  ckptfs ls --index=:memory: c >names 2>says
  is "$1" "$(grep -vcx not_shown names)"
  if (($1 < 1 << 19)); then
    [[ ! -s says ]] || fail "$(cat says)"
  else
    grep -q "whether all ranks have the same values of '[0-9]*' and others: only 2097152 are compared" says ||
      fail "$(cat says)"
  fi
}

run_suite "$@"
