#!/bin/bash
# What options make of several checkpoints while they are read: averages, adapters, overlays.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"

merge() { python3 "$HERE/merge.py" "$@"; }

# A run of three checkpoints, the last in DCP, and the mean of the last two.
make_run() {
  for i in 1 2 3; do merge step "run/step-${i}000" "$i"; done
  merge average mean run/step-3000 run/step-2000
  ckptfs reshard -q run/step-3000 dcp --ranks=3
  rm -r run/step-3000
  mv dcp run/step-3000
  aged run mean
}
run() { once merge make_run; }

# same_tree MOUNT WANTED: all files are the same, except in .ckptfs
same_tree() {
  for face in tensors hf safetensors pt npy objects; do
    [[ -d $2/$face ]] || continue
    diff -r --exclude=.ckptfs "$1/$face" "$2/$face" || fail "$face/ is different"
  done
}

test_every_face_of_an_average_is_that_of_the_mean() {
  ln -s "$(run)/run" run
  ln -s "$(run)/mean" mean
  mount_at want mean
  mount_at got run -o average=step-2000:0.5,step-3000:0.5
  same_tree got want
  mount_at last run -o average=last:2,include='model.*'
  mount_at some mean -o include='model.*'
  same_tree last some
}

cases_a_command_takes_an_average() {
  printf '%s\n' "cat %s tensors/model.norm.weight" "head %s model.norm.weight" "stat --csv %s" "sum --model %s" \
    "ls -l %s model.*"
}
test_a_command_takes_an_average() {
  local words
  ln -s "$(run)/run" run
  # shellcheck disable=SC2059 # from above
  read -ra words <<<"$(printf "$*" "$(run)/mean")"
  ckptfs "${words[@]}" >want
  # shellcheck disable=SC2059
  read -ra words <<<"$(printf "$*" run)"
  status_of 0 ckptfs "${words[@]}" --average=step-2000:0.5,step-3000:0.5
  if [[ $1 == ls ]]; then
    awk '{ $(NF - 1) = ""; print }' want >w # chunks
    awk '{ $(NF - 1) = ""; print }' out | diff - w
  else
    diff want out
  fi
}

test_an_average_is_compared_exported_and_resharded() {
  ln -s "$(run)/run" run
  ln -s "$(run)/mean" mean
  status_of 0 ckptfs diff run mean -o average=step-2000,step-3000
  grep -q '^5 equal, 0 differ, 0 only in A, 0 only in B' out
  status_of 1 ckptfs diff run mean -o average=step-1000,step-3000
  ckptfs export -q run hf out-hf -o average=last:2
  ckptfs export -q mean hf want-hf
  diff -r out-hf want-hf
  ckptfs reshard -q run out-dcp --average=last:2 --ranks=2
  status_of 0 ckptfs diff out-dcp mean
  status_of 0 ckptfs diff run mean -o average=last:2,dtype=fp16
}

# Names may look like options that mount(8) passes to all file systems, or like flags.
test_weights_that_do_not_add_up_to_1_are_told() {
  ln -s "$(run)/run" run
  ckptfs ls run -o average=step-2000:0.5,step-3000:0.5 >names 2>says
  [[ ! -s says ]] || fail "$(cat says)"
  ckptfs ls run -o average=step-2000:1,step-3000:3 2>says | cmp - names
  grep "warning: option 'average': the weights add up to 4, not to 1" says
  ckptfs ls run -o average=step-1000:1,step-2000:1,step-3000:-1 2>says | cmp - names
  [[ ! -s says ]] || fail "$(cat says)"
}

test_no_name_of_a_list_is_taken_for_an_option() {
  cp -a "$(run)/run" run
  mv run/step-2000 run/x-tuned
  mv run/step-1000 run/dev
  aged run
  mount_at m run -o average=x-tuned:0.5,dev:2
  ckptfs cat run tensors/model.norm.weight -o average=x-tuned:0.5,dev:2 | cmp - m/tensors/model.norm.weight
  ckptfs umount m
  refused "option 'average': 'dev' is also an option" ckptfs mount run m -o average=x-tuned,dev
  refused "option 'average': 'x-tuned' is also an option" ckptfs mount run m -o average=dev,x-tuned
  mount_at m run -o 'average=x-tuned\,dev'
  ckptfs cat run tensors/model.norm.weight --average=x-tuned,dev | cmp - m/tensors/model.norm.weight
  ckptfs umount m
  mv run/dev run/anonymous
  refused "option 'average': 'anonymous' is also an option" ckptfs ls run -o average=x-tuned:1,anonymous
  # What is no name here is an option, also among them.
  mount_at m run -o average=x-tuned:0.5,dev,x-systemd.automount,step-3000:0.5,noatime,nosuid,io=direct
  ckptfs cat run tensors/model.norm.weight --average=x-tuned:0.5,step-3000:0.5 | cmp - m/tensors/model.norm.weight
}

test_a_list_ends_at_the_next_option() {
  ln -s "$(run)/run" run
  ckptfs cat run tensors/model.norm.weight -o average=step-2000,step-3000,dtype=bf16,exclude=steps >got
  ckptfs cat "$(run)/mean" tensors/model.norm.weight --dtype=bf16 >want
  cmp got want
  refused "unknown option 'step-3000'" ckptfs ls run -o dtype=bf16,step-3000
}

test_an_incomplete_checkpoint_is_named() {
  mkdir run
  old_copy "$(zoo)" run/step-1
  old_copy "$(zoo)" run/step-2
  rm run/step-2/.metadata
  refused "checkpoint 'run': '.*/run/step-2': .metadata is missing" ckptfs info run -o average=step-2
}

test_what_is_missing_is_refused() {
  ln -s "$(run)/run" run
  mkdir m
  refused "there is no such file or checkpoint; did you mean 'step-1000'" ckptfs mount run m -o average=step-100,step-2000
  refused "the last 4 are asked for, and the run '.*' has 3 complete" ckptfs mount run m -o average=last:4
  refused "give the run's directory" ckptfs mount run/step-1000 m -o average=last:2
}

test_a_source_that_goes_is_an_error() {
  cp -a "$(run)/run" run
  mount_at m run -o average=last:2,io=direct
  cat m/tensors/model.norm.weight >before
  : >run/step-2000/model.safetensors
  try_eio cat m/tensors/model.embed_tokens.weight
  cat m/tensors/steps >steps # comes from the base alone
}

# ---- adapters and overlays ----

make_tuned() {
  merge step base 1
  merge step over 2
  merge adapter adapter 3
  merge merged want base adapter 1
  merge merged half base adapter 0.5
  aged base over adapter want half
}
tuned() { once tuned make_tuned; }

test_every_face_of_a_merged_adapter_is_that_of_the_merged_model() {
  ln -s "$(tuned)" t
  mount_at want t/want
  mount_at got t/base -o lora=t/adapter
  same_tree got want
  mount_at half t/half
  mount_at half-got t/base -o lora=t/adapter:0.5
  same_tree half-got half
}

test_an_adapter_is_compared_exported_and_resharded() {
  cp -r "$(tuned)/." .
  status_of 0 ckptfs diff base want -o lora=adapter
  ckptfs export -q base hf merged -o lora=adapter:0.5
  ckptfs export -q half hf want-hf
  diff -r merged want-hf
  ckptfs reshard -q base dcp --lora=adapter --ranks=3
  status_of 0 ckptfs diff dcp want
  echo '{}' >config.json
  ckptfs export -q base hf codes -o assets=.,lora=adapter,quantize=fp8_dynamic
  ckptfs export -q want hf want-codes -o assets=.,quantize=fp8_dynamic
  diff -r codes want-codes
  # The base may have any format and be cut.
  ckptfs reshard -q base cut --ranks=3
  status_of 0 ckptfs diff cut want -o lora=adapter
  ckptfs cat base tensors/model.norm.weight --lora=adapter --dtype=bf16 >got
  ckptfs cat want tensors/model.norm.weight --dtype=bf16 | cmp got -
}

# The checkpoint has no output embeddings, because they are tied; PEFT stores them twice.
test_an_adapter_with_more_tokens_resizes_the_vocabulary() {
  cp -r "$(tuned)/." .
  merge tokens more base want
  printf '{\n  "vocab_size": 64,\n  "tie_word_embeddings": true\n}\n' >base/config.json
  sed 's/64/70/' base/config.json >want/config.json
  touch -d '1 hour ago' more/* want/* base/config.json more want base
  mount_at m base -o lora=more
  mount_at n want
  same_tree m n
  cmp m/hf/config.json want/config.json
  cp base/config.json more/
  echo '{"new": "tokenizer"}' >more/tokenizer.json
  ckptfs export -q base hf out -o lora=more,assets=more
  cmp out/config.json want/config.json
  cmp out/tokenizer.json more/tokenizer.json
}

# A relative path is relative to the directory of the mount command, even for checkpoints that are opened later.
test_each_checkpoint_of_a_run_gets_the_adapter() {
  cp -r "$(tuned)/." .
  mkdir run
  mv base over run
  aged run
  mount_at m run -o lora=adapter:0.5
  mount_at half-m half
  same_tree m/base half-m
  [[ -s m/over/tensors/model.norm.weight ]]
}

# The configuration is that beside the link, in which the adapter may be scaled differently.
test_an_adapter_may_be_a_link() {
  cp -r "$(tuned)/." .
  mkdir linked
  ln -s ../adapter/adapter_model.safetensors linked/
  sed 's/"lora_alpha": \([0-9]*\)/"lora_alpha": \1e300/' adapter/adapter_config.json >linked/adapter_config.json
  ckptfs cat base tensors/model.norm.weight --lora=adapter >/dev/null
  ! ckptfs sum base -o lora=linked | diff - <(ckptfs sum base -o lora=adapter) >/dev/null || fail "the other configuration"
  cp adapter/adapter_config.json linked/
  diff <(ckptfs sum base -o lora=linked) <(ckptfs sum base -o lora=adapter)
  mkdir run
  mv base run/step-1
  aged run
  mount_at m run -o lora=linked
  mount_at want-m want
  same_tree m/step-1 want-m || fail "$(cat m/.ckptfs/log)"
}

test_an_overlay_takes_the_place_of_names() {
  cp -r "$(tuned)/." .
  mount_at m base -o overlay=over
  mount_at over-m over
  same_tree m over-m
  # lora= is applied after overlay=.
  merge merged both over adapter 1
  status_of 0 ckptfs diff base both -o lora=adapter,overlay=over
}

# A patch of all that an adapter changes: two whole matrices, the norm, but no embedding.
cases_a_patch_changes_elements() { printf '%s\n' trl.safetensors prime; }
test_a_patch_changes_elements() {
  cp -r "$(tuned)/." .
  merge patch patch base want
  merge patch back want base
  aged patch back patch/prime back/prime
  mount_at m base -o "overlay=patch/$1"
  mount_at want-m want
  same_tree m want-m
  read_at_random m want
  status_of 0 ckptfs diff base base -o "overlay=patch/$1,overlay=back/$1"
  status_of 1 ckptfs diff base base -o "overlay=patch/$1"
  sed -i 's/mlp.up_proj/mlp.no_proj/g' patch/trl.safetensors patch/prime/*.json
  refused "changes elements of 'model.layers.0.mlp.no_proj.weight', but the checkpoint has none" \
    ckptfs ls base -o "overlay=patch/$1"
}

# The patch is opened with each step, when the daemon is confined; one at an address is opened by a ckptfs-fetch that
# was started before that.
cases_a_patch_changes_each_checkpoint_of_a_run() { printf '%s\n' patch/trl.safetensors patch/prime file://; }
test_a_patch_changes_each_checkpoint_of_a_run() {
  local patch=$1
  cp -r "$(tuned)/." .
  merge patch patch base want
  mkdir run
  mv base run/step-1
  aged patch run
  [[ $1 != file:// ]] || patch=file://$PWD/patch/trl.safetensors
  mount_at m run -o "overlay=$patch,cache_dir=$PWD/cache"
  mount_at want-m want
  same_tree m/step-1 want-m || fail "$(cat m/.ckptfs/log)"
}

cases_an_overlay_of_a_run_may_be_a_link() { printf '%s\n' over/model.safetensors links/to links/to-link; }
test_an_overlay_of_a_run_may_be_a_link() {
  cp -r "$(tuned)/." .
  mkdir run links
  mv base run/step-1
  ln -s ../over/model.safetensors links/to
  ln -s "$PWD/links/to" links/to-link
  aged run
  mount_at m run -o "overlay=$1"
  mount_at over-m over
  same_tree m/step-1 over-m || fail "$(cat m/.ckptfs/log)"
}

# A file of a few bytes can claim any number of pairs of index and value.
test_pairs_have_a_bound() {
  local name
  for name in base/w:u1 over/w.idx:u2 over/w.val:u1; do
    mkdir -p "${name%:*}"
    printf '{"zarr_format":2,"shape":[%d],"chunks":[1048576],"dtype":"|%s","fill_value":0,"order":"C","filters":null,"compressor":null}' \
      $((1 << 41)) "${name#*:}" | sed 's/|u2/<u2/' >"${name%:*}/.zarray"
  done
  refused "'w.idx' of .*/over' has 2199023255552 indices, more than 1073741824" ckptfs ls base -o overlay=over
}

test_an_adapter_that_does_not_fit_is_refused() {
  cp -r "$(tuned)/." .
  mkdir m
  refused "option 'lora': open 'none/adapter_model.safetensors'" ckptfs mount base m -o lora=none
  sed -i 's/"r": 4/"r": 4, "use_dora": true/' adapter/adapter_config.json
  refused "adapter_config.json': use_dora: DoRA" ckptfs mount base m -o lora=adapter
}

run_suite "$@"
