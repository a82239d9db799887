#!/bin/bash
# Checkpoints that must not be opened, and those that must be opened in part.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
long="failing_opens_do_not_list_the_directory"

cases_broken_checkpoint_does_not_mount() { expect fixtures error; }
test_broken_checkpoint_does_not_mount() {
  mkdir m
  refused . ckptfs mount "$(fixture "$1")/ckpt" m
  unmounted m
}

# info works if only data files are damaged, and then says so.
cases_info_of_a_broken_checkpoint_says_so() { expect fixtures error; }
test_info_of_a_broken_checkpoint_says_so() {
  case $1 in
    missing_data_file | truncated_data)
      status_of 0 ckptfs info "$(fixture "$1")/ckpt"
      grep -q '^complete    no: [0-9]* cannot be opened$' out || fail "$(cat out)"
      ;;
    *) refused . ckptfs info "$(fixture "$1")/ckpt" ;;
  esac
}

cases_broken_checkpoint_fails_its_check() { expect fixtures error; }
test_broken_checkpoint_fails_its_check() {
  local rc=0
  ckptfs check "$(fixture "$1")/ckpt" >out 2>err || rc=$?
  case $rc in
    1) grep -q '^fault: ..' out || fail "no sentence: $(cat out)" ;;
    2) grep -q '^ckptfs: ..' err || fail "no sentence: $(cat err)" ;;
    *) fail "status $rc" ;;
  esac
}

test_message_names_the_missing_file() {
  need_fixture missing_data_file
  refused '__1_0\.distcp' ckptfs mount "$(fixture missing_data_file)/ckpt" "$T"
}

test_message_names_the_short_file() {
  need_fixture truncated_data
  refused '__0_0\.distcp' ckptfs mount "$(fixture truncated_data)/ckpt" "$T"
}

# Every file that Git LFS may have left as a pointer: FIXTURE FILE [WHAT IS OPENED BELOW]
cases_a_pointer_of_git_lfs_is_said_to_be_one() {
  printf '%s\n' 'plain .metadata' 'plain __0_0.distcp' 'mcore_flat metadata.json' \
    'mp4_hf_sharded shard-00001-model-00001-of-00001.safetensors' 'torchsave_zip model.pt model.pt' \
    'torchsave_sharded pytorch_model.bin.index.json' 'hp_a_collective .metadata'
}
test_a_pointer_of_git_lfs_is_said_to_be_one() {
  local name=$1 file=$2
  copy_of "$name" ckpt
  [[ -s ckpt/$file ]] || fail "no $file: $(ls -A ckpt)"
  printf '%s\n' 'version https://git-lfs.github.com/spec/v1' \
    "oid sha256:$(sha256sum <"ckpt/$file" | cut -d' ' -f1)" "size $(stat -c %s "ckpt/$file")" >pointer
  mv pointer "ckpt/$file"
  mkdir m
  refused "'$file'.* a Git LFS pointer; .*: run 'git lfs pull'" ckptfs mount "ckpt/${3:-}" m
}

# A tokenizer that Git LFS has not fetched is not shown, but the message must not call it absent.
test_assets_that_git_lfs_has_not_fetched_are_told() {
  local where
  mkdir run
  copy_of plain run/ckpt
  mkdir assets
  echo '{"model_type": "llama"}' >assets/config.json
  printf '%s\n' 'version https://git-lfs.github.com/spec/v1' "oid sha256:$(sha256sum </dev/null | cut -d' ' -f1)" \
    'size 9085657' >pointer
  for where in run/ckpt run assets; do
    cp pointer "$where/tokenizer.json"
    ckptfs info run/ckpt -o assets=assets >/dev/null 2>says.given
    ckptfs info run/ckpt >/dev/null 2>says
    [[ $where != assets ]] || mv says.given says
    grep -F "'$T/$where/tokenizer.json' is not used: it is a Git LFS pointer; the file itself has not been fetched: run \
'git lfs pull'" says || fail "$where: $(cat says)"
    mount_at m run/ckpt -o assets=assets
    [[ -e m/hf/config.json && ! -e m/hf/tokenizer.json ]]
    ckptfs umount m
    rm "$where/tokenizer.json"
  done
}

test_message_names_the_bad_path() {
  need_fixture path_absolute
  need_fixture path_traversal
  refused '/etc/passwd' ckptfs info "$(fixture path_absolute)/ckpt"
  refused '\.\./outside\.bin' ckptfs info "$(fixture path_traversal)/ckpt"
}

test_checkpoint_without_some_files_mounts_when_allowed() {
  need_fixture missing_data_file
  mount_at m "$(fixture missing_data_file)/ckpt" -o allow_missing
  local name good=0 bad=0
  for name in m/tensors/*; do
    if cat "$name" >/dev/null 2>&1; then good=$((good + 1)); else bad=$((bad + 1)); fi
  done
  ((good > 0 && bad > 0)) || fail "$good readable, $bad not"
}

test_evil_pickle_runs_nothing() {
  copy_of evil_pickle ckpt
  touch -d 2000-01-01 marker
  mount_at m ckpt
  expect tree evil_pickle m
  # The payload, which would have written there, has not run.
  [[ -z $(find /tmp -maxdepth 1 -newer marker -iname '*pwned*') ]]
}

cases_checkpoint_with_holes_is_refused() { expect holes dcp; }
test_checkpoint_with_holes_is_refused() {
  mkdir m
  refused "'(uneven_)?s0s[01]'" ckptfs mount "$(fixture "$1")/ckpt" m
  unmounted m
}

cases_holes_are_eio_and_the_rest_reads() { cases_checkpoint_with_holes_is_refused; }
test_holes_are_eio_and_the_rest_reads() {
  local name sum
  mount_at m "$(fixture "$1")/ckpt" -o allow_missing
  while read -r name; do
    [[ -e m/tensors/$name && -e m/npy/$name.npy ]] || fail "$name is not listed"
    try_eio cat "m/tensors/$name"
    try_eio cat "m/npy/$name.npy"
    refused "$name" ckptfs cat "$(fixture "$1")/ckpt" "tensors/$name"
  done < <(expect incomplete "$1")
  while read -r name sum; do
    [[ $(sha256sum <"m/tensors/$name") == "$sum  -" ]] || fail "$name differs"
  done < <(expect complete "$1")
}

# cost_of_failing_opens N: what 2000 of them take in a directory of N, in clock ticks of CPU time, in $ticks
cost_of_failing_opens() {
  local before
  used() { awk '{ print $14 + $15 }' "/proc/$DAEMON/stat"; }
  python3 "$HERE/hostile.py" no_items "$1" c
  mkdir m
  "$CKPTFS" mount -f c m 2>log &
  DAEMON=$!
  wait_until is_mounted m || fail "$(cat log)"
  before=$(used)
  python3 - "$1" >out 2>&1 <<'END' || fail "$(cat out)"
import errno, os, sys
last = int(sys.argv[1])
for i in range(last - 2000, last):
    try:
        os.open(f"m/tensors/t{i:07}", os.O_RDONLY)
        sys.exit(f"t{i:07} was opened")
    except OSError as e:
        assert e.errno == errno.EIO, e
END
  is 2000 "$(grep -c "open '/tensors/t0*[0-9]*'" log)"
  ticks=$(($(used) - before))
  ckptfs umount m
  wait "$DAEMON"
  rm -r c m
}
# The log names the file for each open that fails. Searching a directory of 100,000 files for that name would take 9 ms.
test_failing_opens_do_not_list_the_directory() {
  local n=20000 small
  [[ -z ${CHECK_FULL:-} || ${VARIANT:-release} != release ]] || n=100000
  cost_of_failing_opens 2000
  small=$ticks
  cost_of_failing_opens $n
  ((ticks <= 4 * small + $(getconf CLK_TCK) / 5)) || fail "$small ticks, and $ticks with $n names"
}

cases_what_is_not_in_the_tree_has_a_reason() {
  cat <<'END'
gguf/model.gguf no config.json beside the checkpoint or in assets=
gguf no config.json beside the checkpoint or in assets=
hf/config.json there is no config.json, beside the checkpoint or in assets=
hf/tokenizer.json there is no tokenizer.json, beside the checkpoint or in assets=
ranks/00000/tensors there is no layout=, which says what each rank holds
ranks there is no layout=
logical no tensor is stored flattened
pt/model.ptt did you mean 'pt/model.pt'
END
}
test_what_is_not_in_the_tree_has_a_reason() {
  need_fixture mp4_fsdp2_adamw
  cp -r "$(fixture mp4_fsdp2_adamw)/ckpt" step-1
  mkdir run
  mv step-1 run
  touch -d '1 hour ago' run/step-1/* run/step-1/.metadata
  refused "'$1': there is no such file in the tree.*${*:2}" ckptfs cat run/step-1 "$1"
  refused "'step-1/$1': there is no such file in the tree.*${*:2:3}" ckptfs cat run "step-1/$1"
}

test_neighbours_are_named() {
  mkdir -p old/iter_0000010/mp_rank_00 orbax/7.orbax-checkpoint-tmp-1 x.partial hub/models--a--b m
  printf 'GGUF\3\0\0\0' >model.gguf
  refused "'iter_0000010' in it is a directory of Megatron's model-parallel ranks" ckptfs info old
  refused "none of them holds the model: model_optim_rng.pt" ckptfs ls old/iter_0000010
  ckptfs info orbax | grep 'its name is that of an Orbax save that has not finished' >/dev/null
  refused 'its name is that of an Orbax save that has not finished' ckptfs info orbax/7.orbax-checkpoint-tmp-1
  refused 'its name is that of a save or export of ckptfs that has not finished' ckptfs info x.partial
  refused "read 'model.gguf': GGUF header: it goes beyond the end of the file" ckptfs mount model.gguf m
  refused 'the addresses that ckptfs knows begin with s3://' ckptfs info ftp://bucket/step-10
  refused "an address has two slashes: 's3://bucket/step-10'$" ckptfs info s3:/bucket/step-10
  refused "a repository of the Hugging Face Hub is 'hf://Qwen/Qwen3-0.6B'" ckptfs info Qwen/Qwen3-0.6B
  refused "'Qwen/model.gguf': No such file or directory$" ckptfs info Qwen/model.gguf
  refused "'nix/adapter_model.safetensors': No such file or directory$" ckptfs info "$(big)/ckpt" --lora=nix
  HF_HUB_CACHE=$PWD/hub refused "in the Hugging Face cache: open '$PWD/hub/models--a--b'" ckptfs mount a/b m
  refused 'it is a cache of the Hugging Face Hub' ckptfs info hub
}

test_an_export_that_cannot_begin_names_the_directory() {
  refused "export: directory '/proc': create 'x.partial.state': " ckptfs export "$(big)/ckpt" tensors /proc/x
}

test_an_index_that_cannot_be_kept_is_an_error() {
  local ckpt
  ckpt=$(big)/ckpt
  XDG_CACHE_HOME=/dev/null refused 'index: it cannot be kept: .*name a file with --index=PATH$' ckptfs index "$ckpt"
  XDG_CACHE_HOME=/dev/null refused 'index: it cannot be kept' ckptfs index --print "$ckpt"
  is :memory: "$(XDG_CACHE_HOME=/dev/null ckptfs index --print "$ckpt" --index=:memory:)"
  is "$PWD/i" "$(XDG_CACHE_HOME=/dev/null ckptfs index --print "$ckpt" --index=i)"
}

test_swapped_arguments_are_noticed() {
  need_fixture plain
  cp -r "$(fixture plain)/ckpt" c
  mkdir m
  refused "'c' is a checkpoint and 'm' is not: the checkpoint comes first, as in 'ckptfs mount c m'" ckptfs mount m c
  refused 'the directory that it is in is one .dcp.: name that' ckptfs info c/.metadata
  refused 'the directory that it is in is one .dcp.: name that' ckptfs info c/__0_0.distcp
}

cases_info_of_holes_says_so() { cases_checkpoint_with_holes_is_refused; }
test_info_of_holes_says_so() {
  status_of 0 ckptfs info "$(fixture "$1")/ckpt"
  grep -q '^complete  *no: ' out || fail "$(cat out)"
  grep -q 's0s1' out || fail "$(cat out)"
  status_of 0 ckptfs info "$(fixture "$1")/ckpt" s0s1
}

run_suite "$@"
