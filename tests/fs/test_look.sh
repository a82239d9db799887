#!/bin/bash
# What ls and info show of a checkpoint, to people on a terminal and to programs.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
long="ls_trees_hold_everything ls_has_a_header_and_totals_on_a_terminal color_is_for_terminals_that_want_it"

# A model with layers of three kinds, and training state.
make_layers() {
  local i args=()
  for i in 0 1 2 4 5 6 10; do
    args+=("model.layers.$i.mlp.w" 7x7:bfloat16 1x1 "model.layers.$i.q.weight" 13x24 2x3)
  done
  for i in 7 9 11; do
    args+=("model.layers.$i.moe.w" 7x7:bfloat16 1x1)
  done
  make_dcp --nested ckpt "${args[@]}" model.layers.3.half 55x7:float16 1x2 model.lm_head.weight 64x16 4x1 \
    optim.state.exp_avg 13x24 2x1 optim.step -:int64 -
}
layers() { echo "$(once layers make_layers)/ckpt"; }

shown_on_terminal() { TERM=xterm on_terminal "$CKPTFS" "$@"; }

test_ls_has_a_header_and_totals_on_a_terminal() {
  shown_on_terminal ls -l "$(big)/ckpt" --color=never
  diff - out <<'END'
DTYPE    SHAPE           BYTES  CHUNKS  NAME
float32  [1023,777]    3179484       6  v
float32  [2048,4096]  33554432       8  w
2 tensors, 9.18 M parameters (float32), 35.0 MiB
END
  shown_on_terminal ls "$(layers)" 'optim.*'
  diff - out <<'END'
optim.state.exp_avg
optim.step
2 tensors, 313 elements (float32 x1, int64 x1), 1.2 KiB
END
  shown_on_terminal ls "$(layers)"
  is "21 tensors, 4,083 parameters and 313 other elements (bfloat16 x10, float32 x9, float16 x1, int64 x1), 15.5 KiB" \
    "$(tail -1 out)"
  shown_on_terminal ls --json "$(layers)"
  python3 -m json.tool out >/dev/null
}

test_ls_in_a_pipe_has_neither() {
  diff - <(ckptfs ls -l "$(big)/ckpt") <<'END'
float32  [1023,777]    3179484  6  v
float32  [2048,4096]  33554432  8  w
END
}

test_ls_has_sizes_for_people() {
  diff - <(ckptfs ls -lh "$(big)/ckpt") <<'END'
float32  [1023,777]    3.0 MiB  6  v
float32  [2048,4096]  32.0 MiB  8  w
END
  ckptfs ls -h "$(big)/ckpt" | cmp - <(ckptfs ls -lh "$(big)/ckpt")
  # Without another argument -h asks for help, as for every command.
  ckptfs ls -h | cmp - <(ckptfs ls --help)
  ckptfs info -h | cmp - <(ckptfs info --help)
}

test_color_is_for_terminals_that_want_it() {
  local how
  shown_on_terminal ls -l "$(big)/ckpt"
  grep -q $'^\e\\[1mDTYPE .*NAME\e\\[0m$' out || fail "no color: $(cat -v out)"
  for how in NO_COLOR=1 TERM=dumb TERM=; do
    TERM=xterm on_terminal env "$how" "$CKPTFS" ls -l "$(big)/ckpt"
    ! grep -q $'\e' out || fail "color in spite of $how: $(cat -v out)"
  done
  NO_COLOR='' shown_on_terminal ls -l "$(big)/ckpt"
  grep -q $'\e' out || fail "an empty NO_COLOR is none"
  shown_on_terminal ls -l --color=never "$(big)/ckpt"
  ! grep -q $'\e' out || fail "color: $(cat -v out)"
  TERM=xterm ckptfs ls --tree "$(layers)" >plain
  TERM=xterm ckptfs ls --tree --color=always "$(layers)" >colored
  ! grep -q $'\e' plain || fail "color in a pipe"
  grep -q $'\e\\[1mmodel\e\\[0m$' colored || fail "no color: $(cat -v colored)"
  sed 's/\x1b\[[0-9]*m//g' colored | cmp - plain
  refused "option 'color': 'perhaps' is not one of auto, always, never" ckptfs ls --color=perhaps "$(big)/ckpt"
}

test_ls_sorts() {
  is "w v" "$(ckptfs ls --sort=size "$(big)/ckpt" | xargs)"
  is "v w" "$(ckptfs ls --sort=name "$(big)/ckpt" | xargs)"
  ckptfs ls -l --sort=dtype "$(layers)" >out
  LC_ALL=C sort -s -k 1,1 out | cmp - out
  ckptfs ls --sort=dtype "$(layers)" 'model.layers.*.w' | cmp - <(ckptfs ls "$(layers)" 'model.layers.*.w')
  ckptfs ls -l --sort=size "$(zoo)" | awk '{ print $3 }' >sizes
  sort -rn sizes | cmp - sizes
  ckptfs ls --json --sort=size "$(zoo)" | jq -r '.[].fqn' | cmp - <(ckptfs ls --sort=size "$(zoo)")
  is "$(ckptfs ls "$(zoo)" | wc -l)" "$(wc -l <sizes)"
  refused "option 'sort': 'mtime' is not one of name, size, dtype" ckptfs ls --sort=mtime "$(zoo)"
}

test_ls_folds_equal_layers() {
  diff - <(ckptfs ls --tree "$(layers)") <<'END'
14582  4083  19  model
10486  3059  18    layers
 9422  2527  14      {0..2,4..6,10} x7
  686   343   7        mlp.w  bfloat16 [7,7]
 8736  2184   7        q.weight  float32 [13,24]
  770   385   1      3.half  float16 [55,7]
  294   147   3      {7..11..2}.moe.w x3  bfloat16 [7,7]
 4096  1024   1    lm_head.weight  float32 [64,16]
 1256   313   2  optim
 1248   312   1    state.exp_avg  float32 [13,24]
    8     1   1    step  int64 []
END
  diff - <(ckptfs ls --tree --depth=2 --sort=size -h "$(layers)") <<'END'
14.2 KiB  4,083  19  model
10.2 KiB  3,059  18    layers
 4.0 KiB  1,024   1    lm_head.weight  float32 [64,16]
 1.2 KiB    313   2  optim
 1.2 KiB    312   1    state.exp_avg  float32 [13,24]
     8 B      1   1    step  int64 []
END
  diff - <(ckptfs ls --tree "$(layers)" 'model.layers.[0124].q.*') <<'END'
4992  1248  4  model.layers.{0..2,4}.q.weight x4  float32 [13,24]
END
  # A billion elements are not to be taken for a byte.
  printf '\x49\0\0\0\0\0\0\0{"w":{"dtype":"U8","shape":[2,1000000000],"data_offsets":[0,2000000000]}}' >w.safetensors
  truncate -s $((8 + 73 + 2000000000)) w.safetensors
  is "1.9 GiB  2.00 G  1  w  uint8 [2,1000000000]" "$(ckptfs ls --tree -h w.safetensors)"
  shown_on_terminal ls --tree --depth=1 "$(layers)" --color=never
  diff - out <<'END'
BYTES  ELEMENTS  TENSORS  NAME
14582      4083       19  model
 1256       313        2  optim
21 tensors, 4,083 parameters and 313 other elements (bfloat16 x10, float32 x9, float16 x1, int64 x1), 15.5 KiB
END
}

# Nested numbers, other shapes, other names, words that only look like numbers, objects.
test_ls_folds_what_is_the_same_and_nothing_else() {
  local l x args=()
  for l in 0 1 2 3; do
    for x in 0 1 2 3 4 5 6 7; do
      args+=("m.$l.experts.$x.w" 2x2 1x1)
    done
  done
  make_dcp c "${args[@]}" m.4.experts.0.w 2x3 1x1 m.5.experts.0.v 2x3 1x1 m.06.experts.0.w 2x3 1x1 \
    m.7.experts.0.w 2x3:float64 1x1 a..b 1 1 .c 1 1 d. 1 1
  diff - <(ckptfs ls --tree c) <<'END'
  4    1   1  .c  float32 [1]
  4    1   1  a..b  float32 [1]
  4    1   1  d.  float32 [1]
632  152  36  m
512  128  32    {0..3}.experts.{0..7}.w x32  float32 [2,2]
 24    6   1    4.experts.0.w  float32 [2,3]
 24    6   1    5.experts.0.v  float32 [2,3]
 24    6   1    06.experts.0.w  float32 [2,3]
 48    6   1    7.experts.0.w  float64 [2,3]
END
  need_fixture plain
  ckptfs ls --tree "$(fixture plain)/ckpt" >out
  grep -qE '^ *[0-9]+ +- +- +lr  object$' out || fail "$(cat out)"
}

# Whatever the names, the totals at the top must count all tensors and bytes.
cases_ls_trees_hold_everything() { every_fixture; }
test_ls_trees_hold_everything() {
  local f=$DATA/$1/ckpt how
  ckptfs ls -q --json "$f" 2>/dev/null >all || return 0
  for how in name size; do
    ckptfs ls -q --tree --sort=$how "$f" >out 2>err || fail "$(cat err)"
    ! LC_ALL=C grep -q '[[:cntrl:]]' out || fail "control bytes: $(cat -v out)"
    is "$(jq -r '"\(map(.bytes) | add // 0) \(map(select(.type == "tensor")) | length)"' all)" \
      "$(ckptfs ls -q --tree --depth=1 --sort=$how "$f" | awk '{ bytes += $1; n += $3 } END { print bytes + 0, n + 0 }')"
  done
}
test_ls_trees_escape_names() {
  need_fixture weird_fqns
  ckptfs ls --tree "$(fixture weird_fqns)/ckpt" >out
  grep -q 'new%0Aline' out
}

test_ls_refuses_what_says_nothing_together() {
  refused "option 'depth' is for --tree" ckptfs ls --depth=2 "$(big)/ckpt"
  refused "option 'tree' is for text, not for --json" ckptfs ls --tree --json "$(big)/ckpt"
  refused "option 'human_readable' is for text, not for --json" ckptfs ls -h --json "$(big)/ckpt"
  refused "options 'long' and 'tree' cannot be combined" ckptfs ls -l --tree "$(big)/ckpt"
  refused "option 'sort': a tree is sorted by name or by size" ckptfs ls --tree --sort=dtype "$(big)/ckpt"
  mkdir run
  cp -r "$(big)/ckpt" run/step-1
  aged run
  refused "option 'tree' is for the tensors of a checkpoint, and 'run' is a run of checkpoints" ckptfs ls --tree run
  ckptfs ls -l --color=always run >out
  grep -q $'^\e\\[32mcomplete *\e\\[0m  step-1  (latest)$' out || fail "$(cat -v out)"
}

test_info_leads_with_parameters() {
  ckptfs info "$(layers)" >out
  head -3 out | tail -2 | diff - <(
    cat <<'END'
model       4,083 parameters, 19 tensors, 14.2 KiB (14,582 bytes), under 'model.'
dtypes      float32 3,208, bfloat16 490, float16 385
END
  )
  ckptfs info --dtype=fp16 "$(big)/ckpt" >out
  grep -qxF 'model       9.18 M parameters (9,183,479), 2 tensors, 17.5 MiB (18,366,958 bytes)' out || fail "$(cat out)"
  grep -qxF 'dtypes      float16' out || fail "$(cat out)"
  need_fixture mp4_fsdp2_adamw
  ckptfs info "$(fixture mp4_fsdp2_adamw)/ckpt" >out
  grep -qE '^files +4, .*, written by 4 ranks$' out || fail "$(cat out)"
  is 4 "$(ckptfs info --json "$(fixture mp4_fsdp2_adamw)/ckpt" | jq .ranks)"
}

test_info_names_the_family() {
  mkdir assets
  echo '{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}' >assets/config.json
  ckptfs info "$(big)/ckpt" --assets=assets >out
  grep -qxF 'family      qwen3 (Qwen3ForCausalLM), as config.json says' out || fail "$(cat out)"
  is 'qwen3 (Qwen3ForCausalLM)' "$(ckptfs info --json "$(big)/ckpt" --assets=assets | jq -r .family)"
  printf '{"model_type": "a\\u001b[31mb"}' >assets/config.json
  ckptfs info "$(big)/ckpt" --assets=assets >out
  grep -qxF 'family      a%1B[31mb, as config.json says' out || fail "$(cat -v out)"
  for config in '{"architectures": 7, "model_type": []}' '{' '' '[]'; do
    echo "$config" >assets/config.json
    ckptfs info -q "$(big)/ckpt" --assets=assets >out
    ! grep -q '^family' out || fail "$(cat out)"
  done
}

test_info_has_color_on_a_terminal() {
  shown_on_terminal info "$(big)/ckpt"
  grep -q $'^complete *\e\\[32myes\e\\[0m$' out || fail "$(cat -v out)"
  shown_on_terminal info --color=never "$(big)/ckpt" v
  grep -q '^complete *yes$' out || fail "$(cat -v out)"
  TERM=xterm ckptfs info "$(big)/ckpt" v >out
  if grep -q $'\e' out; then fail "colour in a file"; fi
  ckptfs info --color=always "$(big)/ckpt" v >out
  grep -q $'^complete *\e\\[32myes\e\\[0m$' out || fail "$(cat -v out)"
  refused "option 'color' is for text, not for --json" ckptfs info --json --color=always "$(big)/ckpt"
}

run_suite "$@"
