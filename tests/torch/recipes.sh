#!/bin/bash
# tests/torch/recipes.sh [SEED [MODEL...]]
#
# Every built-in recipe: three ranks save random models with the names, shapes and rows of the framework that a
# recipe is for (recipes.py). `info` must suggest the right recipe, and transformers must load the original model
# from hf/ of their mounts: no key missing or unexpected, equal logits. Run backwards on hf/, the recipe must make
# a checkpoint from which the same hf/ can be made, byte for byte, and whose tensors equal those that recipes.py
# saved. SEED (random when not given, always printed) decides the weights; MODEL...: only these of recipes.py. Must
# be root, for the chroot that transformers lives in (scripts/chroot.sh).
#
# $CKPTFS is the program, default build/release/ckptfs.
set -euo pipefail

cd "$(dirname "$0")/../.."
# shellcheck source=lib.sh
. tests/torch/lib.sh
seed=${1:-$RANDOM}
names=()

# verdict NAME [OPTION...]: the verdict on hf/, from `info`.
verdict() {
  "$ckptfs" info "$tmp/models/$1/ckpt" -o "assets=$tmp/models/$1/hf" "${@:2}" | sed -n 's|^serves  *hf/: ||p'
}

# expect NAME GLOB [OPTION...]: one check, that the verdict matches.
expect() {
  local said
  said=$(verdict "$1" "${@:3}")
  # shellcheck disable=SC2053 # a pattern
  if [[ $said == $2 ]]; then pass; else fail "$1: '$said' instead of '$2'"; fi
}

# no_more WHAT A B FILTER: one check, that `ckptfs diff` finds only equal tensors and those that FILTER selects.
no_more() {
  "$ckptfs" diff --json "$2" "$3" >"$tmp/diff" || [ $? = 1 ]
  if jq -e "[.tensors[] | select(.result != \"equal\") | select($4 | not)] == []" "$tmp/diff" >/dev/null; then
    pass
  else
    fail "$1"
    head -c 2000 "$tmp/diff"
  fi
}

# backwards NAME RECIPE: makes a checkpoint from hf/ by the recipe run backwards, and hf/ from that.
backwards() {
  local dir=$tmp/models/$1
  try "$1: backwards" "$ckptfs" reshard "$dir/hf" "$tmp/stored" --format=megatron "--recipe=$2" --ranks=2 || return 0
  try "$1: there and back" "$ckptfs" reshard "$tmp/stored" "$tmp/again" --format=safetensors "--recipe=$2" \
    "--assets=$dir/hf" || return 0
  # A head that is tied to the embedding is then stored under its own name, too.
  no_more "$1: the same again" "$dir/hf" "$tmp/again" '.result == "only_b" and .fqn == "lm_head.weight"'
  # The original may have separate layers, a prefix, padded vocabularies and more tensors.
  no_more "$1: as it was saved" "$tmp/stored" "$dir/ckpt" '.result | IN("only_a", "only_b", "shape")'
  rm -rf "$tmp/stored" "$tmp/again"
}

echo "seed $seed"
if ! in_chroot python3 /mnt/tests/recipes.py make "$seed" /mnt/out/models "${@:2}" >"$tmp/made" 2>&1; then
  fail "recipes.py make $seed"
  tail -n 40 "$tmp/made" | sed 's/^/  /'
else
  for dir in "$tmp"/models/*; do
    name=${dir##*/}
    names+=("$name")
    read -r recipe known <"$dir/recipe"
    if [[ $known ]]; then
      expect "$name" "not loadable as *: *; its names look like those of *: try recipe=$recipe"
      expect "$name" "complete for * (config.json from assets)" -o "recipe=$recipe,strict"
    else
      expect "$name" "not checked: *; its names look like those of *: try recipe=$recipe"
    fi
    mkdir -p "$tmp/mnt/$name"
    # Recipes of MaxText compute, so they cannot be run backwards.
    [[ $recipe == maxtext-* ]] || backwards "$name" "$recipe"
    # The framework's name is enough: model_type then selects the recipe.
    try "$name: mount" "$ckptfs" mount "$dir/ckpt" "$tmp/mnt/$name" -o "recipe=${recipe%%-*},assets=$dir/hf" || true
  done
  counted "transformers" in_chroot python3 /mnt/tests/recipes.py check /mnt/out/models /mnt/out/mnt
fi
for name in "${names[@]}"; do unmount "$name" "$tmp/mnt/$name"; done

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
