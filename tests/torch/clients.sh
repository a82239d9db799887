#!/bin/bash
# tests/torch/clients.sh [SEED] [MODEL...]
#
# Real programs on live mounts. PyTorch saves tiny models (see make_models.py; all five by default) as
# sharded checkpoints; these are mounted and opened by transformers, safetensors, torch and numpy like
# any other model; shards of other meshes are compared with DTensor's, casts with torch's.
# cp, rsync, tar and sha256sum then read the same mounts, and `ckptfs cat`, `export` and `diff` have
# to agree with them. SEED (random when not given, always printed) decides everything about the
# checkpoints. Must be root, for the chroot that PyTorch lives in (scripts/chroot.sh).
#
# $CKPTFS is the program, default build/release/ckptfs.
set -euo pipefail

cd "$(dirname "$0")/../.."
# shellcheck source=lib.sh
. tests/torch/lib.sh
seed=${1:-$RANDOM}
shift || true
models=("$@")
((${#models[@]})) || models=(llama qwen2 qwen3 mixtral gpt2)
declare -A ckpts options # for each mount in $tmp/mnt: its checkpoint, and WORD=VALUE...

# generate SCRIPT ARG...: runs it in the chroot; if it fails, the end of its output is shown.
generate() {
  if ! in_chroot python3 "/mnt/tests/$1" "${@:2}" >"$tmp/generated" 2>&1; then
    fail "$*"
    tail -n 40 "$tmp/generated" | sed 's/^/  /'
    return 1
  fi
  cat "$tmp/generated"
}

# show NAME CKPT [WORD=VALUE...]: mounts CKPT at $tmp/mnt/NAME with these options.
show() {
  local o words=()
  for o in "${@:3}"; do words+=(-o "$o"); done
  mkdir -p "$tmp/mnt/$1"
  try "$1: mount ${*:3}" "$ckptfs" mount "$2" "$tmp/mnt/$1" "${words[@]}" || return 1
  ckpts[$1]=$2
  options[$1]=${*:3}
}

# job NAME MODEL DTYPE PREFIX LIMIT CKPT [WORD=VALUE...]: mounts CKPT, and adds a line for clients.py.
job() {
  if show "$1" "$tmp/models/$6" "${@:7}"; then
    echo "/mnt/out/mnt/$1 /mnt/out/models/$2 $3 $4 $5" >>"$tmp/jobs"
  fi
}

# Mounts every model in its own type and cast to the other one; one of the two is in many files.
mount_models() {
  local name dtype other prefix m limits=(0 60000)
  for name in "${models[@]}"; do
    prefix=model.
    [ "$name" = gpt2 ] && prefix=-
    for dtype in fp32 bf16; do
      if [ "$dtype" = fp32 ]; then other=bf16; else other=fp32; fi
      m=$name-$dtype
      show_model "$m" "$m" "$dtype" "$prefix" "${limits[0]}" "assets=$tmp/models/$m/hf"
      show_model "$m-as-$other" "$m" "$other" "$prefix" "${limits[1]}" \
        "assets=$tmp/models/$name-$other/hf" "dtype=$other"
      limits=("${limits[1]}" "${limits[0]}")
      if [ "$name" = llama ]; then # these checkpoints have their configuration beside them
        job "$m-tp" "$m" "$dtype" - 0 "$m/tp"
        printf '%s\n' '# the way back' 's/trunk\.block-([0-9]+)/model.layers.\1/' \
          >"$tmp/models/$m/rename"
        job "$m-wrapped" "$m" "$dtype" skip 0 "$m/wrapped/ckpt" weights=actor \
          "rename=$tmp/models/$m/rename"
      fi
    done
  done
}

# show_model NAME MODEL DTYPE PREFIX LIMIT [WORD=VALUE...]
show_model() {
  if [ "$5" = 0 ]; then
    job "${@:1:5}" "$2/fsdp" "${@:6}"
  else
    job "${@:1:5}" "$2/fsdp" "${@:6}" shard_size=60KB
  fi
}

# copied WHAT FROM TO COMMAND...: COMMAND must make TO a copy of FROM, with the same names, links and bytes.
copied() {
  if try "$1" "${@:4}"; then
    try "$1: the copy" diff -r --no-dereference "$2" "$3" || true
  fi
}

# copies NAME DIR: several programs copy the tree below a mount's DIR.
copies() {
  local what=$1/$2 from=$tmp/mnt/$1/$2 to=$tmp/copy tar
  # shellcheck disable=SC2016 # expanded by the inner shell
  tar='set -o pipefail; tar -C "$1" $3 -cf - . | tar -C "$2" -xf -'
  rm -rf "$to" && mkdir -p "$to"/{tar,sparse}
  copied "$what: cp -r" "$from" "$to/cp" cp -r "$from" "$to/cp"
  copied "$what: rsync" "$from" "$to/rsync" rsync -a "$from/" "$to/rsync"
  copied "$what: tar" "$from" "$to/tar" bash -c "$tar" tar "$from" "$to/tar" ''
  copied "$what: tar -S" "$from" "$to/sparse" bash -c "$tar" tar "$from" "$to/sparse" -S
}

# no_mount NAME DIR: export and cat must write what the mount shows.
no_mount() {
  local name=$1 dir=$2 words=() o sum path
  for o in ${options[$name]}; do words+=("--$o"); done
  rm -rf "$tmp/copy" && mkdir "$tmp/copy"
  copied "$name: export $dir" "$tmp/mnt/$name/$dir" "$tmp/copy/export" \
    "$ckptfs" export "${ckpts[$name]}" "$dir" "$tmp/copy/export" "${words[@]}"
  (cd "$tmp/mnt/$name" && find "$dir" -type f -exec sha256sum {} +) >"$tmp/sums" ||
    fail "$name: sha256sum $dir"
  [ -s "$tmp/sums" ] || fail "$name: nothing in $dir"
  while read -r sum path; do
    o=$(timeout 300 "$ckptfs" cat "${ckpts[$name]}" "$path" "${words[@]}" 2>"$tmp/out" |
      sha256sum) || true
    if [ "${o%% *}" = "$sum" ]; then pass; else fail "$name: cat $path: $(cat "$tmp/out")"; fi
  done <"$tmp/sums"
}

# differ STATUS A B [OPTION...]: `ckptfs diff --model` of two checkpoints must exit with STATUS.
differ() {
  local status=0
  timeout 300 "$ckptfs" diff --model "${@:4}" "$tmp/models/$2" "$tmp/models/$3" \
    >"$tmp/out" 2>&1 || status=$?
  if [ "$status" = "$1" ]; then
    pass
  else
    fail "diff --model ${*:2}: exit status $status, not $1"
    head -n 10 "$tmp/out" | sed 's/^/  /'
  fi
}

tests_of_layouts() {
  local dir i args=()
  generate save_layouts.py "$seed" /mnt/out/layouts || return 0
  for dir in "$tmp"/layouts/layout*; do
    i=${dir##*/}
    if show "$i" "$tmp/layouts/ckpt" "layout=$dir/mesh.txt"; then
      args+=("/mnt/out/mnt/$i" "/mnt/out/layouts/$i")
    fi
  done
  counted "DTensor's shards" in_chroot python3 /mnt/tests/test_layouts.py "${args[@]}"
  copies layout0 ranks
  no_mount layout0 ranks/00000
}

tests_of_casts() {
  local want path name to
  local -A torch=([fp32]=float32 [fp16]=float16 [bf16]=bfloat16)
  generate cast.py "$seed" /mnt/out/cast || return 0
  for to in "${!torch[@]}"; do
    show "cast-$to" "$tmp/cast/ckpt" "dtype=$to" || continue
    for want in "$tmp"/cast/expected/*."${torch[$to]}".bin; do
      name=$(basename "$want" ".${torch[$to]}.bin")
      path=tensors/$name
      timeout 300 "$ckptfs" cat "$tmp/cast/ckpt" "$path" --dtype="$to" >"$tmp/cast.bin" || true
      try "$name to $to: cat" cmp "$tmp/cast.bin" "$want" || true
      odd_reads "$name to $to" "$tmp/mnt/cast-$to/$path" "$want"
    done
  done
}

tests_of_values() {
  local step
  generate values.py make "$seed" /mnt/out/values || return 0
  for step in 1 2; do
    "$ckptfs" stat -q --json --hist "$tmp/values/run/step-$step" >"$tmp/values/$step.json" || true
  done
  "$ckptfs" stat -q --json "$tmp/values/run" >"$tmp/values/run.json" || true
  counted "values" in_chroot python3 /mnt/tests/values.py check /mnt/out/values
}

# odd_reads WHAT FILE WANT: reads odd ranges directly, so that they reach the daemon as such and not as pages.
odd_reads() {
  local bs skip
  for bs in 4099 65537; do
    timeout 300 dd if="$2" of="$tmp/odd" bs=$bs iflag=direct status=none || true
    try "$1: by $bs bytes" cmp "$tmp/odd" "$3" || true
  done
  for skip in 1 2 3 1001; do
    timeout 300 dd if="$2" of="$tmp/odd" bs=1021 skip=$skip count=3 iflag=direct status=none || true
    dd if="$3" of="$tmp/want" bs=1021 skip=$skip count=3 status=none
    try "$1: from $((1021 * skip))" cmp "$tmp/odd" "$tmp/want" || true
  done
}

# Mounts the same models from Megatron-core's layout.
mount_recipes() {
  local name m dirs=()
  for name in "${models[@]}"; do
    [ "$name" = gpt2 ] || dirs+=("/mnt/out/models/$name-fp32" "/mnt/out/models/$name-bf16")
  done
  generate make_megatron.py "$seed" "${dirs[@]}" || return 0
  for m in "${dirs[@]}"; do
    m=${m##*/}
    job "$m-megatron" "$m" "${m##*-}" recipe 0 "$m/megatron" recipe=megatron \
      "assets=$tmp/models/$m/hf"
  done
}

tests_of_models() {
  local first=${models[0]} m dir
  generate make_models.py "$seed" /mnt/out/models "${models[@]}" || return 0
  : >"$tmp/jobs"
  mount_models
  mount_recipes
  counted "clients" in_chroot python3 /mnt/tests/clients.py /mnt/out/jobs
  m=$first-bf16
  for dir in hf pt npy; do copies "$m" "$dir"; done
  for dir in hf pt safetensors tensors; do
    no_mount "$m" "$dir"
    no_mount "$m-as-fp32" "$dir"
  done
  if [ "$first" != gpt2 ]; then
    for dir in hf safetensors; do no_mount "$first-bf16-megatron" "$dir"; done
  fi
  differ 1 "$first-fp32/fsdp" "$first-bf16/fsdp"
  differ 0 "$first-fp32/fsdp" "$first-bf16/fsdp" --dtype=bf16
  if [ "$first" = llama ]; then
    differ 0 llama-bf16/fsdp llama-bf16/tp
    differ 0 llama-fp32/tp llama-fp32/fsdp
    differ 1 llama-fp32/tp llama-bf16/fsdp
  fi
}

echo "seed $seed, ${models[*]}"
tests_of_models
tests_of_layouts
tests_of_casts
tests_of_values
for name in "${!ckpts[@]}"; do unmount "$name" "$tmp/mnt/$name"; done

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
