#!/bin/bash
# What bash completes for ckptfs; every word but the last is there already.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

# completed WORD...: one word a line.
completed() {
  PATH=$(dirname "$CKPTFS"):$PATH bash -c '
    . /usr/share/bash-completion/bash_completion
    . "$1/../../fs/ckptfs.bash"
    shift
    compopt() { :; }
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE=$*
    COMP_LINE=${COMP_LINE/ = /=} COMP_POINT=${#COMP_LINE}
    _ckptfs
    printf "%s\n" "${COMPREPLY[@]}" | sort
  ' - "$HERE" "$@"
}
expect_completed() {
  local want=$1 got
  shift
  got=$(completed "$@" | xargs)
  [[ $got == "$want" ]] || fail "$*: '$got' instead of '$want'"
}

test_commands_and_options() {
  expect_completed reshard ckptfs re
  expect_completed "--include= --index=" ckptfs mount --in
  expect_completed "io=direct,allow_missing io=direct,allow_other io=direct,allow_root" \
    ckptfs mount -o io=direct,allo
  expect_completed "--values" ckptfs diff --v
}

test_values() {
  expect_completed bf16 ckptfs mount --dtype = b
  expect_completed hyperparallel ckptfs reshard --format = hy
  [[ $(completed ckptfs cat --recipe = megatron-m) == megatron-mixtral ]] || fail "no recipe"
}

# What the program says that a value may be, in its sentence about one that it may not.
choices() {
  { "${@:2}" --"$1"='?' --recipe=/nowhere --index=:memory: 2>&1 || :; } | sed -nE "s/.*option '$1'.* is not one of //p" | sed -E "s/ \(try .*//; s/,/ /g"
}

test_values_are_those_that_the_program_takes() {
  local command word want n=0
  mkdir "a directory"
  touch here.layout
  for command in mount reshard; do
    while read -r word; do
      want=$(choices "$word" ckptfs "$command" "$(zoo)" "a directory")
      if [[ -n $want ]]; then
        expect_completed "$(xargs -n 1 <<<"$want" | sort | xargs)" ckptfs "$command" "--$word" = ""
        [[ $word == master ]] || n=$((n + 1))
      fi
    done < <(ckptfs help "$command" | sed -nE 's/^ +(-., )?--([a-z_]+)=.*/\2/p')
  done
  rm -f '?' # a file is what --log takes
  is 9 "$n" # dtype, experts, gguf_dtype of both; io, sandbox, format
  expect_completed "a directory here.layout" ckptfs mount --layout = ""
  expect_completed "a directory" ckptfs mount --assets = ""
}

test_names_of_tensors() {
  expect_completed w ckptfs info "$(big)/ckpt" w
  expect_completed tensors/w ckptfs cat "$(big)/ckpt" tensors/w
  expect_completed npy/v.npy ckptfs cat "$(big)/ckpt" npy/v
  expect_completed v ckptfs cat --fqn "$(big)/ckpt" v
  expect_completed "" ckptfs ls "$(big)/ckpt" '[w'
  expect_completed "" ckptfs ls /nowhere w
}

test_files_and_mounts() {
  touch "a file" other
  expect_completed "a file" ckptfs ls 'a'
  mount_at m "$(big)/ckpt"
  expect_completed "$PWD/m" ckptfs umount "$PWD/"
}

run_suite "$@"
