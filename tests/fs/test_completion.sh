#!/bin/bash
# What shells complete for ckptfs. Each shell is driven as by somebody who presses Tab.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
long="zsh they_are_installed_and_uninstalled"
always="options_are_those_of_help"

# offered WORD...: what `ckptfs __complete`, which all shells call, offers for the unfinished last word; sorted
offered() { ckptfs __complete "$@" | sort; }
expect_offered() {
  local want=$1
  shift
  is "$want" "$(offered "$@" | paste -sd ' ')"
}

test_commands_and_options() {
  expect_offered "report reshard" re
  expect_offered "help" hel
  expect_offered "--help" --h
  expect_offered "--include= --index=" mount --in
  expect_offered "--values" diff --v
  expect_offered "io=direct,allow_missing io=direct,allow_other io=direct,allow_root" mount -o io=direct,allo
  expect_offered 'a\,b=c,io= a\,b=c,io_uring' mount -o 'a\,b=c,io'
  expect_offered "--allow-constant= --allow-inf= --allow-nan= --allow-zero=" check --allow
  expect_offered "--allow-nan=" check --allow-n # as in the manual
  expect_offered "--allow_nan=" check --allow_n
  expect_offered "--gguf-dtype=q8_0" mount --gguf-dtype=q8
  expect_offered "gguf_dtype=" mount -o gguf
  expect_offered "a,gguf-dtype=" mount -o a,gguf-
  expect_offered "" mount -o a,foregr # is no word of -o
  expect_offered "" ls --weig         # would change nothing
  expect_offered "--zstd" reshard --zs # may go without a value
  expect_offered "" frob x
}

# Every option of every help text, and nothing else.
cases_options_are_those_of_help() { commands; }
test_options_are_those_of_help() {
  ckptfs help "$1" | sed -nE 's/^ +(-., )?--([a-z-]+).*/--\2/p' | sort >want
  offered "$1" -- | tr -d = | sort | diff want -
  offered "$1" - | tr -d = | sort | diff want -
  expect_offered "$(ckptfs help | sed -nE "s/^  ($1[a-z]*) .*/\1/p" | sort | xargs)" help "$1"
}

# values_of COMMAND OPTION OFFERED: what should be offered as its value: FILE, DIR and the like as in the help text,
# otherwise the choices that the program lists when it refuses a wrong value.
values_of() {
  local said how
  # Some commands need more arguments; and options that shape the tree are checked only by commands that show it.
  for how in "$1 ck x" "$1 ck x y" "$1 ck x --model" "cat ck x"; do
    # shellcheck disable=SC2086 # words
    said=$({ ckptfs $how --"$2"='?' --index=:memory: 2>&1 || :; } |
      sed -nE "s/.*option '${2//-/_}'.* is not one of //p" | sed -E "s/ \(try .*//; s/,//g")
    [[ -z $said && -n $3 ]] || break
  done
  case $(ckptfs help "$1" | sed -nE "s/^ +(-., )?--($2=[A-Z]*).*/\2/p") in
    recipe=*) echo ":files $(ckptfs help recipes | sed -nE 's/^  ([^ ]+) .*/\1/p' | xargs)" ;;
    index=*) echo ":files :memory:" ;;
    *=FILE) echo :files ;;
    *=PATH) echo :files ;;
    *=DIR) echo :dirs ;;
    *) echo "$said" ;;
  esac
}

# The names of the commands, one per line.
commands() { ckptfs help | sed -nE 's/^  ([a-z]+) .*/\1/p' | grep -vx help; }

# For every option of a command.
cases_values_are_those_that_the_program_takes() { commands; }
test_values_are_those_that_the_program_takes() {
  local command=$1 word want got
  ln -s "$(zoo)" ck
  while read -r word; do
    got=$(offered "$command" "--$word" "" | xargs)
    want=$(values_of "$command" "$word" "$got" | xargs -n 1 | sort | xargs)
    is "--$word: $want" "--$word: $got"
    [[ $want == *:* ]] && continue
    expect_offered "$(xargs -n 1 <<<"$want" | sed "s/^./--$word=&/" | xargs)" "$command" "--$word="
  done < <(ckptfs help "$command" | sed -nE 's/^ +(-., )?--([a-z-]+)=.*/\2/p')
}

# Were both the program's list of choices and the completion lost, the test above would still pass.
test_options_with_choices_offer_them() {
  local word command
  for word in by color dequantize dtype experts format gguf_dtype io master sandbox sort; do
    for command in mount reshard diff ls stat; do
      [[ -z $(offered "$command" "--$word=") ]] || continue 2
    done
    fail "--$word has no choices"
  done
  printf '%s\n' ":files --recipe=" --recipe=megatron-mixtral | sort | diff - <(offered mount --recipe=megatron-mi)
  expect_offered ":files layout=" mount -o layout=a
  expect_offered ":dirs --assets=" mount --assets=a
  expect_offered ":files " mount --rename ""
}

# The first argument of every command is a path or a mount.
cases_the_first_argument() { commands; }
test_the_first_argument() {
  local status=0
  ckptfs __complete "$1" /nowhere/x >out || status=$?
  is 0 $status
  case $1 in
    umount | stats) is "" "$(<out)" ;;
    *) is ":files " "$(<out)" ;;
  esac
}

test_arguments() {
  expect_offered ":files " ls ""
  expect_offered ":files " ls -l --dtype bf16 x
  expect_offered ":dirs " mount a ""
  expect_offered "" mount a b ""
  expect_offered ":files " export "$(big)/ckpt" hf ""
  expect_offered w info "$(big)/ckpt" w
  expect_offered "v w" ls "$(big)/ckpt" -- ""
  expect_offered w diff "$(big)/ckpt" /nowhere w
  expect_offered v cat --fqn "$(big)/ckpt" v
  expect_offered "tensors/" cat "$(big)/ckpt" te
  expect_offered tensors/w cat "$(big)/ckpt" tensors/w
  expect_offered npy/v.npy export "$(big)/ckpt" npy/v
  expect_offered hf/model.safetensors cat "$(big)/ckpt" hf/
  expect_offered "" ls "$(big)/ckpt" '[w'
  expect_offered "" ls /nowhere w
  expect_offered "" cat "$(big)/ckpt" nowhere/x
  mkdir run
  old_copy "$(big)/ckpt" run/step-1
  expect_offered "latest/ step-1/" cat run ""
  expect_offered step-1/tensors/w cat run step-1/tensors/w
  mount_at m "$(big)/ckpt"
  expect_offered "$PWD/m" umount "$PWD/"
  expect_offered "$PWD/m" stats "$PWD/"
  mount_at 'm n' "$(big)/ckpt"
  expect_offered "$PWD/m n" umount "$PWD/m "
}

# Instead of a path, "RUN NAME" can be given.
# shellcheck disable=SC2088 # a shell passes it on
test_the_checkpoints_of_a_run() {
  make_dcp run/step-1 v 2 1
  make_dcp run/step-2 w 2 1
  expect_offered "latest step-1 step-2" info run ""
  expect_offered "step-1 step-2" check run st
  expect_offered ":files  step-1 step-2" diff run st
  expect_offered ":files  step-1 step-2" diff run step-1 st
  expect_offered "" ls run step-1 st
  expect_offered v diff run step-1 step-2 ""
  expect_offered v head run step-1 ""
  expect_offered w ls run latest ""
  expect_offered tensors/v cat run step-1 tensors/
  expect_offered ":files " export run step-1 hf ""
  expect_offered "" check run step-1 ""
  expect_offered w ls run/step-2 step-1 "" # a glob
  mkdir home
  mv run home/
  HOME=$PWD/home expect_offered v head '~/run' step-1 ""
}

# Shells do not expand it before they complete.
# shellcheck disable=SC2088
test_a_tilde_is_the_home_directory() {
  mkdir home '~'
  ln -s "$(big)/ckpt" home/c
  HOME=$PWD/home expect_offered w info '~/c' w
  HOME=$PWD/home expect_offered tensors/w cat '~/c' tensors/w
  ln -s "$(big)/ckpt" '~/d'
  HOME=$PWD/home expect_offered w info './~/d' w
  HOME='' expect_offered '' info '~/c' w
}

test_hostile_names_are_no_commands() {
  need_fixture weird_fqns
  offered ls "$(fixture weird_fqns)/ckpt" "" >out
  [[ -s out ]] || fail "nothing is offered"
  tr -d '\n' <out >flat
  ! LC_ALL=C grep -q '[[:cntrl:]]' flat || fail "control bytes"
  # shellcheck disable=SC2016 # the names are like that
  make_dcp c 'a$(touch evil)' 2 1 'b;touch evil' 2 1 'c d' 2 1
  is 'a\$\(touch\ evil\)' "$(in_bash ckptfs info c a)"
  is 'b\;touch\ evil' "$(in_bash ckptfs info c b)"
  is 'ckptfs info c a\$\(touch\ evil\) ' "$(in_zsh 'ckptfs info c a')"
  is "c d" "$(in_fish 'ckptfs info c c')"
}

# ---- the shells ----

# in_bash WORD...: the completions of the last word. Words are cut as readline does it, with '=' as a word of its own.
in_bash() {
  PATH=$(dirname "$CKPTFS"):$PATH bash --norc -c '
    . /usr/share/bash-completion/bash_completion
    . "$1/../../fs/ckptfs.bash"
    shift
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE=$*
    COMP_LINE=${COMP_LINE// = /=} COMP_LINE=${COMP_LINE/% =/=} COMP_POINT=${#COMP_LINE}
    _ckptfs
    printf "%s\n" "${COMPREPLY[@]}" | sort
  ' - "$HERE" "$@"
}

test_bash() {
  local b
  b=$(big)/ckpt
  mkdir "a directory"
  touch here.layout
  is reshard "$(in_bash ckptfs resh)"
  is "--include= --index=" "$(in_bash ckptfs mount --in | paste -sd ' ')"
  is bf16 "$(in_bash ckptfs mount --dtype = b)"
  is bf16 "$(in_bash ckptfs mount --dtype b)"
  is "auto cached direct" "$(in_bash ckptfs mount --io = "" | xargs)"
  is "dtype=" "$(in_bash ckptfs mount -o dt)"
  is bf16 "$(in_bash ckptfs mount -o dtype = b)"
  is "direct,allow_other" "$(in_bash ckptfs mount -o io = direct,allow_ot)"
  is "a directory here.layout" "$(in_bash ckptfs mount --layout = "" | grep -v '^err$\|^out$' | xargs)"
  is "a directory" "$(in_bash ckptfs mount -o assets = a)"
  is "a directory" "$(in_bash ckptfs ls a)"
  is tensors/w "$(in_bash ckptfs cat "$b" tensors/w)"
  is w "$(in_bash ckptfs info "$b" w)"
}

# When bash completes, it has not removed the quotes yet.
test_bash_words_with_quotes() {
  mkdir 'a "b' "it's"
  ln -s "$(big)/ckpt" 'a "b/c'
  ln -s "$(big)/ckpt" "it's/c d"
  make_dcp n 'x y' 2 1 x\$y 2 1
  is w "$(in_bash ckptfs info 'a\ \"b/c' w)"
  is w "$(in_bash ckptfs info '"a \"b/c"' w)"
  is w "$(in_bash ckptfs info "'a \"b/c'" w)"
  is w "$(in_bash ckptfs info "it\\'s/c\\ d" w)"
  is w "$(in_bash ckptfs info "\"it's/c d\"" w)"
  is 'a "b' "$(in_bash ckptfs ls 'a\ ')"
  is "it's/c d" "$(in_bash ckptfs ls "it\\'s/")"
  is "it's/c d" "$(in_bash ckptfs mount -o assets = "it\\'s/")"
  is 'x\ y' "$(in_bash ckptfs info n 'x\ ')"
  is 'x y' "$(in_bash ckptfs info n '"x')"
  is 'x y' "$(in_bash ckptfs info n "'x")"
}

# in_zsh LINE: the line after Tab is pressed
in_zsh() {
  cp "$HERE/../../fs/ckptfs.zsh" _ckptfs
  PATH=$(dirname "$CKPTFS"):$PATH zsh -f -c '
    zmodload zsh/zpty
    zpty z zsh -f -i
    zpty -w z "PS1=; PROMPT_EOL_MARK=; unsetopt prompt_cr prompt_sp; setopt no_beep; fpath=(\$PWD \$fpath)
      autoload -Uz compinit; compinit -u -D; show() { print -r -- \"<<\$BUFFER>>\" }; zle -N show
      bindkey \"^I\" complete-word; bindkey \"^X\" show; print READY\$((1 + 1))"
    zpty -r z out "*READY2*"
    zpty -n -w z "$1"$'"'\t'\$'\x18'"'
    zpty -r z out "*<<*>>*"
    print -r -- ${${out#*<<}%>>*}
    zpty -d z' - "$1"
}

test_zsh() {
  local b
  b=$(big)/ckpt
  mkdir assets
  touch here.layout
  is "ckptfs reshard " "$(in_zsh "ckptfs resh")"
  is "ckptfs mount --include=" "$(in_zsh "ckptfs mount --inc")"
  is "ckptfs mount --dtype=bf16 " "$(in_zsh "ckptfs mount --dtype=b")"
  is "ckptfs mount -o io=direct,allow_other " "$(in_zsh "ckptfs mount -o io=direct,allow_ot")"
  is "ckptfs mount --assets=assets/" "$(in_zsh "ckptfs mount --assets=as")"
  is "ckptfs mount -o layout=here.layout " "$(in_zsh "ckptfs mount -o layout=he")"
  is "ckptfs ls assets/" "$(in_zsh "ckptfs ls as")"
  is "ckptfs cat $b tensors/w " "$(in_zsh "ckptfs cat $b tensors/w")"
  is "ckptfs cat $b tensors/" "$(in_zsh "ckptfs cat $b te")"
  is "ckptfs info $b w " "$(in_zsh "ckptfs info $b w")"
}

# An empty last word, and a file without an option in front of it.
test_zsh_with_few_files() {
  ln -s "$(big)/ckpt" ck
  is "ckptfs cat ck hf/model.safetensors " "$(in_zsh "ckptfs cat ck hf/")"
  is "ckptfs reshard ck d --format zarr " "$(in_zsh "ckptfs reshard ck d --format z")"
  make_dcp one w 2 1
  is "ckptfs info one w " "$(in_zsh "ckptfs info one ")"
  is "ckptfs ls ck/" "$(in_zsh "ckptfs ls ck" 2>&1)"
}

# in_fish LINE: what fish offers for the last word
in_fish() {
  # shellcheck disable=SC2016 # fish's variables
  PATH=$(dirname "$CKPTFS"):$PATH HOME=$PWD fish --no-config -c \
    'source $argv[1]; complete -C $argv[2]' "$HERE/../../fs/ckptfs.fish" "$1" | sort
}

test_fish() {
  local b
  b=$(big)/ckpt
  mkdir assets
  touch here.layout
  is reshard "$(in_fish "ckptfs resh")"
  is "--include= --index=" "$(in_fish "ckptfs mount --in" | paste -sd ' ')"
  is --dtype=bf16 "$(in_fish "ckptfs mount --dtype=b")"
  is "io=direct,allow_other" "$(in_fish "ckptfs mount -o io=direct,allow_ot")"
  is --assets=assets/ "$(in_fish "ckptfs mount --assets=as")"
  is layout=here.layout "$(in_fish "ckptfs mount -o layout=he")"
  is assets/ "$(in_fish "ckptfs ls as")"
  is tensors/w "$(in_fish "ckptfs cat $b tensors/w")"
  is w "$(in_fish "ckptfs info $b w")"
}

test_they_are_installed_and_uninstalled() {
  make -s -C "$HERE/../.." -n install-program PREFIX=/usr DESTDIR="$PWD/d" >out 2>/dev/null
  local f
  for f in bash-completion/completions/ckptfs zsh/site-functions/_ckptfs fish/vendor_completions.d/ckptfs.fish; do
    grep -q "fs/ckptfs\.[a-z]* $PWD/d/usr/share/$f$" out || fail "$f is not installed"
    make -s -C "$HERE/../.." -n uninstall PREFIX=/usr DESTDIR="$PWD/d" | grep -F "$PWD/d/usr/share/$f" >/dev/null ||
      fail "$f stays"
  done
}

run_suite "$@"
