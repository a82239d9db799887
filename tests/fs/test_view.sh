#!/bin/bash
# The page in a mount, .ckptfs/view: its files byte for byte, and in Chromium. Pictures go to shots/ beside the program.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
browser=yes
long="slices_and_keys what_comes_late every_kind_of_tensor two_steps_of_a_run through_a_server \
  no_picture_without_data the_mounts_options"

SHOTS=${SHOTS-$(shots "$@")}
export SHOTS

# view WHAT ARGUMENT...: a function of view.py
view() {
  python3 "$HERE/view.py" "$CKPTFS" "$SHOTS" "$@"
}

make_tiled() {
  view tiled
  make_dcp ckpt k 300x530 2x3:k.f32 v 3000 2:v.f32 x 4x6x10 2x1x1:x.f32
}
make_seen() {
  local step
  mkdir run
  for step in 1 2; do
    view make "$step"
    make_dcp --nested "run/step-$step" model.layers.0.q.weight 700x900 2x3:w.f32 model.layers.1.v 3000 2:v.f32 \
      model.x 4x6x10 2x1x1:x.f32 model.norm 24:bfloat16 2 model.half 5x7:float16 1x2 model.mask 4x4:bool 1x1 model.scale - - \
      model.ids 11:int64 3 model.empty 0x4 1x1 model.d 3x4:float64 1x1
    mkdir "files-$step"
    mv ./*.f32 "files-$step"
  done
  aged run
}
seen() { once seen make_seen; }

# The tensors are numbered in natural order of their names.
tensor_number() { ckptfs ls "$1" | grep -nxF "$2" | cut -d : -f 1 | awk '{ print $1 - 1 }'; }

test_every_tile_is_what_the_elements_are() {
  local dir k
  dir=$(once tiled make_tiled)
  mount_at m "$dir/ckpt"
  view tiles m "$(tensor_number "$dir/ckpt" k)" 300 530 "$dir/k.f32" | grep -xF '9 tiles' >/dev/null
  is_full || k=$((SEED % 3 + SEED % 3 / 2)) # 0, 1 or 3
  view tiles m "$(tensor_number "$dir/ckpt" v)" 1 3000 "$dir/v.f32"
  for k in ${k:-0 1 3}; do
    view tiles m "$(tensor_number "$dir/ckpt" x)" 6 10 "$dir/x.f32" "$k"
  done
}

# Without a mount, `cat` gives the same files.
test_cat_prints_the_same() {
  local dir f
  dir=$(seen)
  mount_at m "$dir/run"
  is 'index.html data.js' "$(entries m/.ckptfs/view)"
  is 'index.html data.js' "$(entries m/step-1/.ckptfs/view)"
  is info.json "$(entries m/.ckptfs)"
  is info.json "$(entries m/step-1/.ckptfs)"
  for f in {step-1/,}.ckptfs/view/{index.html,data.js} step-2/.ckptfs/view/t{0.s0.l0.r0.c0.js,2.s0.l0.r0.c0.e-3.png}; do
    cmp <(ckptfs cat "$dir/run" "$f") "m/$f"
  done
  is ../../.. "$(realpath --relative-to m/step-1/.ckptfs/view m)"
  refused 'No such file|does not exist|no such' ckptfs cat "$dir/run" step-1/.ckptfs/view/t1.s0.l9.r0.c0.js
}

test_a_page() {
  local dir
  dir=$(seen)
  mount_at m "$dir/run/step-1"
  view page m "$dir/run/step-1" model.layers.0.q.weight
}

# The commands on the page must have the mount's options, to read what it shows.
test_the_mounts_options() {
  local dir
  dir=$(seen)
  printf 's/^model[.]x$/model.y/\n' >rules
  mount_at m "$dir/run/step-1" -o dtype=bf16,rename=rules,exclude='model.layers.*',exclude=model.d
  view options m exclude='model.layers.*' exclude=model.d rename="$PWD/rules" dtype=bf16
  mount_at r "$dir/run" -o dtype=fp16,shard_size=1MB,allow_missing
  view options r dtype=fp16 shard_size=1000000
  view options r/step-1 dtype=fp16 shard_size=1000000
}

test_slices_and_keys() {
  local dir
  dir=$(seen)
  mount_at m "$dir/run/step-1"
  view slices m "$dir/run/step-1" model.x
}

test_what_comes_late() {
  mount_at m "$(seen)/run/step-1"
  view races m model.x model.norm
}

test_every_kind_of_tensor() {
  mount_at m "$(seen)/run/step-1"
  view kinds m model.norm=yes model.half=yes model.mask=yes model.scale=yes model.ids=yes model.d=yes model.empty=no \
    model.layers.1.v=yes
}

test_two_steps_of_a_run() {
  local dir
  dir=$(seen)
  mount_at m "$dir/run"
  RUN=$dir/run view beside m step-2 step-1 model.layers.0.q.weight
}

test_through_a_server() {
  mount_at m "$(seen)/run/step-1"
  view served m model.layers.0.q.weight
}

# Data that cannot be read gives an error, never a picture.
test_no_picture_without_data() {
  local file
  cp -r "$(seen)/run/step-1" ck
  rm ck/__model.layers.1.v_0.distcp
  mount_at m ck -o allow_missing
  file=m/.ckptfs/view/t$(tensor_number "$(seen)/run/step-1" model.layers.1.v).s0.l0.r0.c0.js
  [[ -f $file ]]
  status_of 1 cat "$file"
  grep -q 'Input/output error' "$T/err"
  view kinds m model.layers.1.v=no model.layers.0.q.weight=yes
}

run_suite "$@"
