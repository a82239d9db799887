#!/bin/bash
# Files of all kinds are read at random in every way and compared with the output of `ckptfs cat`.
# SEED=N repeats a failed run.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
long="every_file_of_a_model a_checkpoint_of"

OPERATIONS=${OPERATIONS:-300}
READERS=4
SEED=${SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
export SEED OPERATIONS

random_reads() { "$(dirname "$CKPTFS")/tests/random_reads" "$SEED" "$OPERATIONS" "$READERS" "$@"; }

# compare CKPT HOW [options of the tree]: mounts it and compares all files except those in .ckptfs
compare() {
  local ckpt=$1 how=$2 path plain n=0 pairs=() missing=0
  shift 2
  mount_at m "$ckpt" -o "$how" "$@"
  mkdir -p plain
  while read -r -d '' path; do
    plain=plain/$((++n))
    if ckptfs cat "$ckpt" "$path" "$@" >"$plain" 2>err; then
      pairs+=("m/$path" "$plain")
    else
      missing=$((missing + 1))
    fi
  done < <(cd m && find . -path ./.ckptfs -prune -o -type f -printf '%P\0')
  ((!missing)) || fail "$missing files cannot be read: $(cat err)"
  random_reads "${pairs[@]}"
}

# Two megabytes of weights that are cut by rows and columns, and tensors smaller than a page.
make_model() {
  make_dcp --nested c model.rows.weight 577x401 3x1 model.columns.weight 401x577 1x3 \
    model.both.weight 303x701:bfloat16 2x3 model.half 1001x77:float16 1x2 model.wide 9x33x55:float64 3x1x2 \
    model.norm 24 2 model.empty 0x4 1x1 model.step -:int64 - optim.exp_avg 577x401 2x2
}

# How it is mounted, and the type to which it is cast.
cases_every_file_of_a_model() {
  printf '%s\n' "io=auto bf16" "io=direct fp32" "io=cached fp16" "io=auto,threads=1 fp32"
}
test_every_file_of_a_model() {
  make_model
  printf '%s\n' 'mesh r=3' '*columns* r:1' '*step replicate' '* r:0' >mesh
  compare c "$1" -o "layout=mesh,dtype=$2"
}

cases_compressed() { printf '%s\n' 256MiB 1MiB; }
test_compressed() {
  make_model
  ckptfs reshard c z --zstd --ranks 3
  compare z "cache=$1"
}

cases_a_model_for_llama_cpp() { printf '%s\n' f32 q8_0; }
test_a_model_for_llama_cpp() {
  local args
  mkdir hf
  args=$(python3 "$HERE/gguf.py" model llama hf)
  # shellcheck disable=SC2086 # words
  make_dcp --flat c $args
  compare c io=auto -o "assets=hf,gguf_dtype=$1"
}

# Strides, byte orders, containers and cuts that only real frameworks write.
cases_a_checkpoint_of() {
  printf '%s\n' bigendian shapes shuffled dtypes mp4_fsdp2_adamw mp4_zstd torchsave_zip/model.pt hp_a_collective \
    mcore_flat mcore_zarr fsw_safetensors
}
test_a_checkpoint_of() {
  local name=${1%%/*}
  need_fixture "$name"
  compare "$(fixture "$name")/ckpt${1#"$name"}" io=auto
}

test_one_wrong_byte_is_found() {
  make_dcp c t 300x300 2x2
  mount_at m c
  random_reads m/tensors/t c.t.bin
  printf '\377' | cat - <(tail -c +2 c.t.bin) >off
  cmp -s off c.t.bin && fail "the byte is the same"
  if random_reads m/tensors/t off >said; then fail "not found: $(cat said)"; fi
  grep -q 'byte 0 is .. instead of ff' said || fail "$(cat said)"
  head -c -1 c.t.bin >short
  if random_reads m/tensors/t short >said; then fail "not found: $(cat said)"; fi
  grep -q '360000 bytes$' said || fail "$(cat said)"
}

run_suite "$@"
