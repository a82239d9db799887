#!/bin/bash
# README.md and the manual pages: every command that they show works, and prints what they show.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"

TOP=$(realpath "$HERE/../..")
MAN=$TOP/fs/man

# Makes world/, with all that the examples name: a run, a Megatron-core checkpoint, configurations.
make_world() {
  local args step
  mkdir -p world/run world/mnt world/hf-config world/Qwen3-8B
  args=$(python3 "$HERE/gguf.py" model llama world/hf-config)
  # shellcheck disable=SC2086 # words
  make_dcp world/run/step-1000 $args optim.state.exp_avg 13x24 2x1 optim.step -:int64 -
  # In the next step, every other element of the norm is twice as large.
  python3 -c 'import array
norm = array.array("f", open("data/model.norm.weight", "rb").read())
norm[::2] = array.array("f", (2 * x for x in norm[::2]))
open("data/model.norm.weight", "wb").write(norm)'
  # shellcheck disable=SC2086 # words
  make_dcp world/run/step-2000 $args optim.state.exp_avg 13x24 2x1 optim.step -:int64 -
  rm -rf data world/run/*.bin
  aged world/run
  ckptfs cat world/run/step-1000 gguf/model.gguf --assets=world/hf-config --gguf_dtype=q4_k_m >world/model-q4_k_m.gguf
  cp -r "$DATA/mcore_gpt_dense/ckpt" world/iter_0001000
  chmod -R u+w world/iter_0001000
  python3 -c 'import json, sys
arch = json.load(open(sys.argv[1]))["arch"]
json.dump(arch | {"model_type": "qwen3"}, sys.stdout)' "$DATA/mcore_gpt_dense/expected_hf.json" >world/Qwen3-8B/config.json
  printf '%s\n' 'mesh dp=2 tp=4' '*.q_proj.weight tp:0' '*.o_proj.weight tp:1' '* replicate' >world/tp4.txt
  python3 "$HERE/merge.py" norm world/adapter
  for step in 1000 2000; do
    mkdir "$step"
    ckptfs cat "world/run/step-$step" safetensors/model.safetensors >"$step/model.safetensors"
  done
  python3 "$HERE/merge.py" patch patch 1000 2000
  mv patch/prime world/step1
  mv patch/trl.safetensors world/step2.safetensors
  ln -s "$TOP/tests" world/tests
  mkdir bin
  make_programs
}

# Stand-ins for other programs that examples start: each checks that it is given what it needs.
program() {
  { echo '#!/bin/bash -eu' && cat; } >"bin/$1"
  chmod +x "bin/$1"
}
# shellcheck disable=SC2016 # those of the programs
make_programs() {
  local library preload
  for library in "$(dirname "$CKPTFS")"/libckpt.so.*; do :; done
  # The sanitizer's library must be loaded before a libckpt that was built with it.
  preload=$(ldd "$library" | awk '/lib(a|t)san/ { print $3 }')
  ln -s "$CKPTFS" bin/ckptfs
  program sudo <<<'exec "$@"'
  program ssh <<<'exec bash -c "$2"'
  # Without MPI one process does it all.
  program mpirun <<<'shift 2; exec "$@"'
  program python3 <<<"export PYTHONPATH=$TOP/scripts/python PYTHONDONTWRITEBYTECODE=1 CKPTFS_LIBRARY=$library
    ${preload:+export LD_PRELOAD=$preload ASAN_OPTIONS=detect_leaks=0}
    "'exec /usr/bin/python3 "$@"'
  program model_dir <<<'jq -e .model_type "$1/config.json" && [[ $(tail -c +9 "$1/model.safetensors" | head -c 1) == "{" ]]'
  program vllm <<<'[[ $1 == serve ]] && exec model_dir "$2"'
  program lm_eval <<<'[[ $1 == --model_args ]] && exec model_dir "${2#pretrained=}"'
  program llama-server <<<'[[ $1 == -m && $(head -c 4 "$2") == GGUF ]]'
  # These check only that the page exists and that make knows the targets.
  program man <<<"exec mandoc -T ascii $MAN/\$1.*"
  program make <<<"exec $(command -v make) -s -n -C $TOP \"\$@\" >/dev/null"
}

cases_examples_work() { (cd "$TOP" && grep -lE '^(\.Dl )?\$ ' README.md fs/man/*); }
test_examples_work() {
  local dir
  [[ $EUID == 0 ]] || skip "not root"
  [[ -d $DATA/mcore_gpt_dense/ckpt ]] || skip "no fixture mcore_gpt_dense"
  dir=$(once manual make_world)
  PATH=$dir/bin:$PATH python3 "$HERE/manual.py" "$TOP/$1" "$dir/world"
}

# The examples of --help.
cases_examples_of_help_work() { ckptfs help | sed -nE 's/^  ([a-z]+) .*/\1/p' | grep -vx help; }
test_examples_of_help_work() {
  local dir first
  [[ $EUID == 0 ]] || skip "not root"
  [[ -d $DATA/mcore_gpt_dense/ckpt ]] || skip "no fixture mcore_gpt_dense"
  dir=$(once manual make_world)
  case $1 in
    umount | stats | warm) first='$ ckptfs mount run/step-1000 mnt' ;;
    *) first='$ true' ;;
  esac
  ckptfs help "$1" | sed -nE 's/^  (\$ .*)/\1/p' >examples
  [[ -s examples ]]
  # Each runs by itself, because two mounts in one place would not work. diff may exit with 1.
  while read -r line; do
    printf '```\n%s\n%s\n' "$first" "$line"
    [[ $1 != diff ]] || echo ...
    echo '```'
  done <examples >page.md
  PATH=$dir/bin:$PATH python3 "$HERE/manual.py" page.md "$dir/world"
}

test_readme_is_short_and_leads_somewhere() {
  local path
  (($(wc -c <"$TOP/README.md") <= 8192)) || fail "$(wc -c <"$TOP/README.md") bytes"
  grep -oE '\]\([^)]+\)' "$TOP/README.md" | tr -d '()]' >links
  (($(wc -l <links) > 5))
  while read -r path; do
    [[ -e $TOP/$path ]] || fail "there is no $path"
  done <links
}

# The tests that tests/README.md names exist.
test_attacks_are_tests() {
  local name
  sed -n '/^## Attacks/,$ { /^|/p }' "$TOP/tests/README.md" | grep -oE '`[a-z0-9_]+_[a-z0-9_]+' | tr -d '`' |
    sort -u >names
  (($(wc -l <names) > 40))
  while read -r name; do
    grep -rqE "START_[A-Z_]*TEST\($name|^test_$name" "$TOP/tests/core" "$TOP/tests/fs" || fail "there is no test $name"
  done <names
}

test_there_is_a_page_for_each_command() {
  local c
  ckptfs help | sed -nE 's/^  ([a-z]+) .*/\1/p' | grep -vx help >commands
  (($(wc -l <commands) > 10))
  while read -r c; do
    grep -q "^\$ .*ckptfs $c " "$MAN/ckptfs-$c.1" || fail "there is no page with an example of ckptfs $c"
    grep -q "^\.Xr ckptfs-$c 1" "$MAN/ckptfs.1" || fail "ckptfs(1) does not name $c"
  done <commands
}

test_pages_refer_to_pages() {
  local name section
  sed -nE 's/^\.Xr (ckpt[a-z-]*) ([1-9]).*/\1 \2/p' "$MAN"/* | sort -u >named
  (($(wc -l <named) > 10))
  while read -r name section; do
    [[ -s $MAN/$name.$section || -s $TOP/core/include/$name.$section ]] || fail "there is no $name($section)"
  done <named
}

run_suite "$@"
