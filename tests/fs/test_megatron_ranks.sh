#!/bin/bash
# The files that each model-parallel rank of Megatron-LM saves: runs of them, and the messages about them.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"

test_iterations_are_a_run() {
  mkdir run
  copy_of mranks_virtual run/iter_0000007
  copy_of mranks_moe run/iter_0000020
  copy_of mranks_version_0 run/release
  printf 7 >run/latest_checkpointed_iteration.txt
  mount_at m run
  is "iter_0000007" "$(readlink m/latest)"
  ckptfs cat run/latest tensors/output_layer.weight | cmp - m/iter_0000007/tensors/output_layer.weight
  [[ -e m/release/tensors/language_model.transformer.final_layernorm.weight ]]
}

test_the_format_is_named() {
  need_fixture mranks_moe
  ckptfs info "$(fixture mranks_moe)/ckpt" >out
  grep -q '^format  *megatron-legacy$' out
  ckptfs check --data "$(fixture mranks_moe)/ckpt"
}

test_a_missing_rank_is_named() {
  copy_of mranks_virtual c
  set -- c/mp_rank_*
  rm -r "${!#}"
  ! ckptfs ls c >names 2>says || return 1
  grep -q -e "others are missing" -e "${!##c/}' is missing beside 'mp_rank_00" says || { cat says; return 1; }
}

test_ranks_of_another_iteration_are_refused() {
  copy_of mranks_virtual c
  copy_of mranks_version_0 d
  cp d/mp_rank_00/model_optim_rng.pt c/mp_rank_00_001/
  ! ckptfs ls c >names 2>says || return 1
  grep -q "different values of checkpoint_version" says || { cat says; return 1; }
}

test_an_optimizer_beside_the_model_is_not_shown() {
  copy_of mranks_moe c
  for d in c/mp_rank_*; do : >"$d/distrib_optim.pt"; done
  ckptfs ls c >names 2>says
  grep -q "not everything is shown: the optimizer's states" says
}

run_suite "$@"
