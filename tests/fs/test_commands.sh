#!/bin/bash
# The commands that need no mount.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
always="every_command_has_help manual_and_help_name_the_same_options help_has_the_recipes"

test_version_and_help() {
  status_of 0 ckptfs --version
  grep -qE '^ckptfs [0-9]+\.[0-9]+' out
  status_of 0 ckptfs help
  grep -q 'mount CKPT MNT' out
  cp out overview
  status_of 0 ckptfs --help
  cmp out overview
}

cases_every_command_has_help() { ckptfs help | sed -nE 's/^  ([a-z]+) .*/\1/p' | grep -vx help; }
test_every_command_has_help() {
  status_of 0 ckptfs help "$1"
  grep -q "^usage: ckptfs $1 " out
  cp out help
  status_of 0 ckptfs "$1" --help
  cmp out help
  [[ ! -s err ]]
}

# options_of PAGE...: the options in lists of manual pages: .It Cm word, .It Fl f , -word
options_of() {
  sed -ne ':join; /\\$/{N; s/\\\n//; b join}' -e '/^\.It /p' "${@/#/$HERE/../../fs/man/}" | tr ' ' '\n' |
    sed 's/^-//; s/-/_/g'
}

cases_manual_and_help_name_the_same_options() { cases_every_command_has_help; }
test_manual_and_help_name_the_same_options() {
  ckptfs help "$1" | grep -oE '^ +(-., )?--[a-z-]+' | sed -E 's/.*--//; s/-/_/g' | sort -u >in_help
  # The options of all commands, those that decide what is shown, and this command's own.
  options_of ckptfs.1 ckptfs-mount.1 "ckptfs-$1.1" | sort -u >in_manual
  [[ -z $(comm -23 in_help in_manual) ]] || fail "not in the manual: $(comm -23 in_help in_manual | xargs)"
}

# Each command has its own.
test_help_tells_how_many_jobs_are_the_default() {
  local c
  for c in check diff stat sum report; do
    ckptfs help $c | grep -- '--jobs=N .*one per CPU, but at most 4)$' >/dev/null || fail "$c: $(ckptfs help $c)"
  done
  ckptfs help export | grep -- '--jobs=N .*(default 8)$' >/dev/null
  ckptfs help reshard | grep -- '--jobs=N .*(default one per CPU)$' >/dev/null
  ckptfs help warm | grep -- '--jobs=N .*(default 4, or 16 for an object store)$' >/dev/null
}

test_help_has_the_recipes() {
  status_of 0 ckptfs help recipes
  grep -q '^  megatron-llama ' out
  status_of 0 ckptfs help recipes megatron-llama
  cmp out "$HERE/../../core/recipe/recipes/megatron-llama.recipe"
  status_of 0 ckptfs help recipes torchtitan
  is "torchtitan is the recipe from torchtitan that config.json's model_type requires." "$(cat out)"
  refused "unknown recipe 'megatron-gpt'.*ckptfs help recipes" ckptfs help recipes megatron-gpt
}

# Each command is given the options of all commands: it must take those that its help names, and refuse the others with
# a sentence.
cases_options_are_taken_or_refused() { cases_every_command_has_help; }
test_options_are_taken_or_refused() {
  local c=$1 word value help said
  cases_every_command_has_help | while read -r x; do ckptfs help "$x"; done >all
  sed -nE 's/^ +(-., )?--([a-z-]+)(\[?=[^ ]*)?.*/\2 \3/p' all | sort -u >words
  (($(wc -l <words) > 30))
  help=$(ckptfs help "$c")$'\n'
  while read -r word value; do
    value=${value:+=?}
    status_of 2 ckptfs "$c" "--$word$value" "--no-such-option"
    mapfile -t said <err # in bash: starting a program hundreds of times would be slow
    is 1 "${#said[@]}"
    if [[ $'\n'$help =~ $'\n'\ +(-.,\ )?--$word(\[?=|\ |$'\n') ]]; then
      [[ ${said[0]} == *"unknown option '--no-such-option'"* || ${said[0]} == *"'${word//-/_}'"* ]] || fail "$c --$word: ${said[0]}"
    else
      [[ ${said[0]} == "ckptfs: unknown option '--$word'"*" (try 'ckptfs help $c')" ||
        ${said[0]} == "ckptfs: option '--$word' has no effect on this command (try 'ckptfs help $c')" ]] ||
        fail "$c --$word: ${said[0]}"
    fi
  done <words
}

# An option that a command takes must change what it prints.
test_options_that_are_taken_do_something() {
  local c a args
  mkdir assets
  echo '{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}' >assets/config.json
  printf '%s\n' 's/^model/m/' >rules
  printf '%s\n' 'mesh tp=2' '* replicate' >mesh
  c=$(zoo)
  while IFS='|' read -r command args; do
    # shellcheck disable=SC2086 # words
    status_of 0 ckptfs $command "$c"
    mv out without
    for a in $args; do
      # shellcheck disable=SC2086
      status_of 0 ckptfs $command "$c" "--$a"
      ! cmp -s out without || fail "$command --$a changes nothing"
    done
  done <<'END'
ls|include=model.* exclude=model.* rename=rules json long tree sort=size
ls -l|dtype=bf16 human_readable
ls --tree|depth=1 sort=size human_readable color=always
info|include=model.* exclude=model.* rename=rules weights=optim dtype=bf16 assets=assets color=always
info --json|shard_size=1K layout=mesh dtype=fp16
check|include=model.* data json
END
  for args in weights=optim assets=assets experts=split recipe=megatron-llama; do
    refused "option '${args%=*}' is for --model$" ckptfs diff "$c" "$c" --$args
  done
  mount_at m "$c"
  refused "option 'dtype' is for a checkpoint that is not mounted; a mount has its own" ckptfs warm m --dtype=bf16
}

test_unknown_commands_are_errors() {
  refused "unknown command 'frob'.*ckptfs help" ckptfs frob
  refused "unknown command 'frob'" ckptfs help frob
  refused "unknown option '--frob'" ckptfs --frob
  refused "unknown option '--verison': did you mean '--version'\?" ckptfs --verison
  refused "unknown command 'hlep': did you mean 'help'\?" ckptfs hlep
  refused "ckptfs help" ckptfs
  refused "unknown option '--frob'.*ckptfs help ls" ckptfs ls --frob "$(big)/ckpt"
  refused "unknown option '--dequantise': did you mean '--dequantize'\?.*ckptfs help ls" \
    ckptfs ls --dequantise=bf16 "$(big)/ckpt"
  refused "unknown option 'dequantise': did you mean 'dequantize'\?" ckptfs ls -o dequantise=bf16 "$(big)/ckpt"
  refused "unknown command 'mout': did you mean 'mount'\?" ckptfs mout "$(big)/ckpt" m
  refused "unknown option '--allow-nna': did you mean '--allow-nan'\?" ckptfs check --allow-nna=x "$(big)/ckpt"
  refused "unknown option '--gguf_dtpye': did you mean '--gguf-dtype'\?" ckptfs cat --gguf_dtpye=f16 "$(big)/ckpt" x
  refused "unknown option 'gguf_dtpye': did you mean 'gguf_dtype'\?" ckptfs cat -o gguf_dtpye=f16 "$(big)/ckpt" x
  refused "unknown option '--threads'" ckptfs ls --threads=3 "$(big)/ckpt"
  # Words that fstab may have are accepted only in the -o list of a mount.
  mkdir m
  refused "unknown option '--x-foo'" ckptfs ls --x-foo "$(big)/ckpt"
  refused "unknown option '--X-foo'" ckptfs info "$(big)/ckpt" --X-foo=1
  refused "unknown option 'x-foo'" ckptfs info "$(big)/ckpt" -o x-foo
  refused "unknown option '--x-foo'" ckptfs mount "$(big)/ckpt" m --x-foo
  refused "unknown option '--noatime'" ckptfs mount "$(big)/ckpt" m --noatime
  refused "unknown option '-x'" ckptfs ls -lx "$(big)/ckpt"
  refused "ls: usage: ckptfs ls CKPT \[GLOB" ckptfs ls
}

test_ls_lists_in_natural_order() {
  need_fixture plain
  status_of 0 ckptfs ls "$(fixture plain)/ckpt"
  diff - out <<'END'
betas
empty_list
lr
model.layers.0.w
model.layers.1.w
model.norm
model.tok.weight
name
step
tuple
END
}

test_ls_long_has_columns() {
  status_of 0 ckptfs ls -l "$(big)/ckpt"
  diff - out <<'END'
float32  [1023,777]    3179484  6  v
float32  [2048,4096]  33554432  8  w
END
}

test_ls_takes_globs() {
  need_fixture plain
  status_of 0 ckptfs ls "$(fixture plain)/ckpt" '*.w' st?p
  [[ $(xargs <out) == "model.layers.0.w model.layers.1.w step" ]]
  [[ $(ckptfs ls "$(fixture plain)/ckpt" 'model.{layers.[0-9].w,norm}' | xargs) == \
    "model.layers.0.w model.layers.1.w model.norm" ]]
  status_of 1 ckptfs ls "$(fixture plain)/ckpt" 'nothing.*'
  [[ ! -s out && $(cat err) == "ckptfs: ls: nothing matches 'nothing.*'" ]] || fail "$(cat err)"
  status_of 1 ckptfs ls "$(fixture plain)/ckpt" layers.0.w
  [[ ! -s out ]] && is "ckptfs: ls: nothing matches 'layers.0.w'; did you mean 'model.layers.0.w' or 'layers.1.w'?" "$(cat err)"
  status_of 1 ckptfs ls --json "$(fixture plain)/ckpt" 'nothing.*'
  [[ $(cat out) == "[]" ]]
}

test_ls_shows_no_control_bytes() {
  need_fixture weird_fqns
  status_of 0 ckptfs ls "$(fixture weird_fqns)/ckpt"
  tr -d '\n' <out >flat
  ! LC_ALL=C grep -q '[[:cntrl:]]' flat || fail "control bytes"
  grep -q '^new%0Aline$' out
}

# no_control_bytes WORDS FILE: it has the words, and no control bytes on which a terminal would act
no_control_bytes() {
  grep -qF -- "$1" "$2" || fail "$(cat -v "$2")"
  is "$(wc -l <"$2")" "$(LC_ALL=C tr -cd '[:cntrl:]' <"$2" | wc -c)"
}

test_paths_are_shown_without_control_bytes() {
  need_fixture plain
  mkdir run
  copy_of plain $'run/step-10\e'
  copy_of plain run/step-20
  aged run
  status_of 2 ckptfs info run/step-1
  no_control_bytes "did you mean 'step-10%1B'" err
  status_of 0 ckptfs reshard run/step-20 $'x\e[31m\ny'
  no_control_bytes 'x%1B[31m%0Ay: 5 tensors' out
  status_of 0 ckptfs report $'--output=y\e\n.html' run/step-20
  no_control_bytes 'y%1B%0A.html: ' err
  status_of 0 ckptfs index $'--index=i\e' run/step-20
  no_control_bytes '/i%1B: built' out
  is "$PWD/"$'i\e' "$(ckptfs index --print $'--index=i\e' run/step-20)"
}

test_include_and_exclude_hold_everywhere() {
  need_fixture plain
  local c
  c=$(fixture plain)/ckpt
  [[ $(ckptfs ls "$c" --include='model.*' --exclude '*.w' | xargs) == "model.norm model.tok.weight" ]]
  [[ $(ckptfs ls "$c" -o 'include=model.*,exclude=*.w' | xargs) == "model.norm model.tok.weight" ]]
  refused "no such|not found|absent|step" ckptfs cat "$c" tensors/step --exclude=step
}

test_globs_that_match_nothing_are_warned_about() {
  need_fixture plain
  local c
  c=$(fixture plain)/ckpt
  status_of 0 ckptfs ls "$c" --include='modle.*' --include='model.*' --exclude='*.bias' --exclude='*.w'
  is "model.norm model.tok.weight" "$(xargs <out)"
  is "ckptfs: warning: option 'include': 'modle.*' matches no FQN
ckptfs: warning: option 'exclude': '*.bias' matches no FQN" "$(cat err)"
  # A glob that matches only what another has matched already is not warned about.
  status_of 0 ckptfs ls "$c" --include='*' --include='model.{norm,x}' --include=lr --exclude=step
  [[ ! -s err ]] || fail "$(cat err)"
  mkdir m
  ckptfs mount "$c" m --include='modle.*' 2>err
  grep -q "^ckptfs: warning: option 'include': 'modle.\*' matches no FQN$" err || fail "$(cat err)"
}

test_names_that_are_not_there_have_neighbours() {
  need_fixture plain
  local c words="did you mean 'model.layers.0.w' or 'model.layers.1.w'"
  c=$(fixture plain)/ckpt
  refused "^ckptfs: info: 'model.layer.0.w': no tensor or object of that name; $words.$" ckptfs info "$c" model.layer.0.w
  refused "; $words.$" ckptfs cat --fqn "$c" model.layer.0.w
  refused "; $words.$" ckptfs export --fqn "$c" model.layer.0.w here
  status_of 2 ckptfs diff "$c" "$c" model.layer.0.w
  grep -q "; $words.$" err || fail "$(cat err)"
  refused "in the tree; did you mean 'tensors/model.norm'.$" ckptfs cat "$c" tensors/model.nrom
  refused "in the tree; did you mean 'tensors/model.norm'.$" ckptfs cat "$c" model.norm
  refused "in the tree; did you mean 'objects/betas'.$" ckptfs export "$c" betas here
  refused "in the tree; did you mean 'tensors'" ckptfs cat "$c" tensor/model.norm
  refused "of that name$" ckptfs info "$c" zzzzzz
}

# A tensor can be named as it is stored or as in the model. If both exist, the stored one is used, with a warning.
test_both_names_of_a_tensor_are_accepted() {
  need_fixture plain
  local c
  c=$(fixture plain)/ckpt
  ckptfs cat "$c" tensors/model.norm >want
  ckptfs cat --fqn "$c" norm | cmp - want
  ckptfs info "$c" norm | grep -x 'tensor    model.norm' >/dev/null
  ckptfs export -q --fqn "$c" norm x
  cmp x want
  make_dcp d model.w 3x2 1x1 w 2x5 1x1 model.v 4 1
  status_of 0 ckptfs info d w -o weights=model
  grep -qx 'shape     \[2,5\]' out || fail "$(cat out)"
  is "ckptfs: warning: 'w' is the name of a stored tensor, and the model's name for 'model.w'; the stored tensor is used" "$(cat err)"
}

test_info_describes_the_checkpoint() {
  status_of 0 ckptfs info "$(big)/ckpt"
  grep -qE '^format  *dcp$' out || fail "$(cat out)"
  grep -qE '^tensors  *2, .*\(36,733,916 bytes\)$' out || fail "$(cat out)"
  grep -qE '^chunks  *14$' out || fail "$(cat out)"
  grep -qE '^complete  *yes$' out || fail "$(cat out)"
  status_of 0 ckptfs info --json "$(big)/ckpt"
  python3 -m json.tool <out >/dev/null
}

test_info_describes_a_tensor() {
  status_of 0 ckptfs info "$(big)/ckpt" v
  grep -qE '^chunks  *6 in 3 files$' out || fail "$(cat out)"
  [[ $(grep -c '__v_[012]\.distcp' out) == 6 ]]
  status_of 0 ckptfs info --json "$(big)/ckpt" v
  python3 - out <<'END'
import json, sys
t = json.load(open(sys.argv[1]))
assert (t["dtype"], t["shape"], t["bytes"], t["files"]) == ("float32", [1023, 777], 1023 * 777 * 4, 3)
boxes = {(*c["offsets"], *c["sizes"]) for c in t["chunks"]}
assert boxes == {(r, c, 341, n) for r in (0, 341, 682) for c, n in ((0, 389), (389, 388))}, boxes
assert all(c["length"] > 4 * c["sizes"][0] * c["sizes"][1] for c in t["chunks"])
END
  refused "'absent'" ckptfs info "$(big)/ckpt" absent
}

test_info_describes_an_object() {
  need_fixture plain
  status_of 0 ckptfs info "$(fixture plain)/ckpt" lr
  grep -q '^object  *lr$' out
  status_of 0 ckptfs info --json "$(fixture plain)/ckpt" lr
  python3 -m json.tool <out >/dev/null
}

test_cat_concatenates() {
  ckptfs cat "$(big)/ckpt" tensors/v tensors/w tensors/v | cmp - <(cat "$(big)"/{v,w,v}.bin)
}

test_cat_of_npy_has_a_header() {
  ckptfs cat "$(big)/ckpt" npy/v.npy >v.npy
  [[ $(head -c 6 v.npy | od -An -tx1 | xargs) == "93 4e 55 4d 50 59" ]]
  tail -c "$(stat -c %s "$(big)/v.bin")" v.npy | cmp - "$(big)/v.bin"
}

test_cat_accepts_objects_by_fqn() {
  need_fixture plain
  ckptfs cat "$(fixture plain)/ckpt" --fqn lr >a
  ckptfs cat "$(fixture plain)/ckpt" objects/lr | cmp - a
  [[ $(sha256sum <a) == "a81ffd5d28e666290f1e014c3fc3e6f1bd0b6ad1013f2b53387ffbcbc9fc8550  -" ]]
}

test_cat_writes_nothing_binary_to_a_terminal() {
  on_terminal "$CKPTFS" cat "$(big)/ckpt" tensors/v </dev/null
  is 2 "$(cat rc)"
  grep -q "^ckptfs: cat: 'tensors/v': it is binary, and standard output is a terminal: redirect it" out || fail "$(cat -v out)"
  is 1 "$(wc -l <out)"
  on_terminal "$CKPTFS" cat "$(big)/ckpt" .ckptfs/info.json </dev/null
  is 0 "$(cat rc)"
  python3 -m json.tool out >/dev/null
}

test_cat_errors() {
  refused 'directory' ckptfs cat "$(big)/ckpt" tensors
  refused 'directory' ckptfs cat "$(big)/ckpt" .ckptfs
  refused "tensors/absent" ckptfs cat "$(big)/ckpt" tensors/absent
  refused "absent" ckptfs cat "$(big)/ckpt" absent/v
  refused "'absent'" ckptfs cat "$(big)/ckpt" --fqn absent
  refused "usage: ckptfs cat CKPT PATH" ckptfs cat "$(big)/ckpt"
}

test_cat_of_info_json() {
  ckptfs cat "$(big)/ckpt" .ckptfs/info.json | python3 -m json.tool >/dev/null
}

# Commands with much and with little output.
cases_write_errors_are_trouble() { printf '%s\n' 'cat CKPT tensors/w' 'ls CKPT' 'info CKPT' 'check CKPT' 'index CKPT' \
  'ls --json CKPT' 'info CKPT v' 'sum --xxh CKPT' 'head CKPT v' 'stat CKPT v' 'report --output=- CKPT' \
  'diff --report=- CKPT CKPT v' 'warm CKPT' 'help ls' 'help recipes megatron-llama' --version; }
test_write_errors_are_trouble() {
  local rc=0
  ckptfs "${@/CKPT/$(big)/ckpt}" >/dev/full 2>err || rc=$?
  ((rc == 2)) || fail "status $rc"
  grep -q '^ckptfs: write to standard output: No space left' err || fail "$(cat err)"
}

# A file that the program opens must not become its standard output.
cases_a_closed_output_is_trouble() { cases_write_errors_are_trouble; }
test_a_closed_output_is_trouble() {
  local rc=0
  ckptfs "${@/CKPT/$(big)/ckpt}" >&- 2>err || rc=$?
  ((rc == 2)) || fail "status $rc"
  grep -q '^ckptfs: write to standard output: Bad file descriptor$' err || fail "$(cat err)"
}

test_broken_pipe_ends_quietly_or_with_status_2() {
  local rc
  set +e
  (
    trap '' PIPE
    ckptfs cat "$(big)/ckpt" tensors/w 2>err
    echo $? >rc
  ) | head -c 10 >/dev/null
  set -e
  [[ $(cat rc) == 2 ]]
  grep -q 'Broken pipe' err
  ckptfs cat "$(big)/ckpt" tensors/w 2>err | head -c 10 >/dev/null || rc=$?
  [[ ! -s err ]]
}

test_check_of_a_good_checkpoint() {
  status_of 0 ckptfs check "$(big)/ckpt"
  [[ $(cat out) == "ok: 2 tensors"* && $(wc -l <out) == 1 ]] || fail "$(cat out)"
  status_of 0 ckptfs check --data "$(big)/ckpt"
  grep -qE '[1-9][0-9]* CRCs verified' out || fail "$(cat out)"
  status_of 0 ckptfs check --json --data "$(big)/ckpt"
  python3 - out <<'END'
import json, sys
r = json.load(open(sys.argv[1]))
assert r["faults"] == [] and r["fault_count"] == 0 and r["crcs"] >= 14 and r["bytes"] > 36733916, r
END
}

test_an_option_that_does_nothing_is_refused() {
  refused "option 'verbose' is for text: --json lists every fault anyway$" ckptfs check -v --json "$(zoo)"
}

test_check_finds_a_flipped_bit() {
  big_copy c
  printf '\001' | dd of=c/__v_1.distcp bs=1 seek=200000 conv=notrunc status=none
  status_of 0 ckptfs check c
  status_of 1 ckptfs check --data c
  grep -q '^fault: v: .*__v_1\.distcp' out || fail "$(cat out)"
  grep '^fault: w' out && fail "w is whole"
  status_of 1 ckptfs check --data --json c
  python3 - out <<'END'
import json, sys
r = json.load(open(sys.argv[1]))
faults = [f for f in r["faults"] if not f["warning"]]
assert r["fault_count"] == len(faults) == 1 and faults[0]["fqn"] == "v", r
END
}

test_check_does_not_depend_on_the_number_of_threads() {
  local f n=0 jobs
  big_copy c
  for f in c/*.distcp; do
    printf '\001' | dd of="$f" bs=1 seek=$((200000 + n)) conv=notrunc status=none
    n=$((n + 1))
  done
  ((n > 2)) || fail "only $n files"
  status_of 1 ckptfs check --data --json --jobs=1 c
  mv out one
  (($(jq .fault_count one) >= n)) || fail "$(cat one)"
  for jobs in 2 3 64; do
    status_of 1 ckptfs check --data --json --jobs=$jobs c
    cmp out one || fail "$jobs threads: $(cat out)"
  done
  refused "65 jobs are too many: at most 64 are possible$" ckptfs check --data --jobs=65 c
}

# crcs_of PATH...: how many records with a CRC zipfile finds in their archives
crcs_of() {
  python3 - "$@" <<'END'
import os, sys, zipfile
files = [f for a in sys.argv[1:] for f in
         ([a] if os.path.isfile(a) else [os.path.join(d, n) for d, _, v in os.walk(a) for n in v])]
print(sum(i.CRC != 0 for f in files if zipfile.is_zipfile(f) for i in zipfile.ZipFile(f).infolist()))
END
}

cases_check_verifies_what_torch_save_wrote() {
  printf '%s\n' torchsave_zip/ckpt/model.pt torchsave_sharded/ckpt fsdp_tp/ckpt ds_z2_fp32_w4_tiny/ckpt mranks_moe/ckpt
}
test_check_verifies_what_torch_save_wrote() {
  local from
  from=$(fixture "${1%%/*}")/${1#*/}
  [[ -e $from ]] || fail "no $from"
  cp -r "$from" "${1##*/}"
  from=${1##*/}
  status_of 0 ckptfs check --data --json --index=:memory: "$from"
  is "$(crcs_of "$from")" "$(jq .crcs out)"
  # One bit of the largest record of elements.
  python3 - "$from" >flipped <<'END'
import os, sys, zipfile
a = sys.argv[1]
files = [a] if os.path.isfile(a) else [os.path.join(d, n) for d, _, v in os.walk(a) for n in v]
size, path, name = max((i.file_size, f, i.filename) for f in files if zipfile.is_zipfile(f)
                       for i in zipfile.ZipFile(f).infolist() if "/data/" in i.filename)
at = zipfile.ZipFile(path).getinfo(name).header_offset
with open(path, "r+b") as f:
    f.seek(at)
    head = f.read(30)
    at += 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little") + size // 2
    f.seek(at)
    byte = f.read(1)[0]
    f.seek(at)
    f.write(bytes([byte ^ 1]))
assert zipfile.ZipFile(path).testzip() == name
print(path.split("/")[-1], name)
END
  status_of 0 ckptfs check --index=:memory: "$from"
  status_of 1 ckptfs check --data --json --index=:memory: "$from"
  jq -r '.faults[] | select(.warning | not).what' out >said
  grep -qF "record '$(cut -d' ' -f2 flipped)' has CRC" said || fail "$(cat said)"
  grep -qF "$(cut -d' ' -f1 flipped)'" said || fail "$(cat said)"
}

test_check_tells_that_nothing_was_verified() {
  local c
  for c in torchsave_legacy/ckpt/model.pt torchsave_tar/ckpt/model.pt hf_rank0/ckpt; do
    status_of 0 ckptfs check --data --index=:memory: "$(fixture "${c%%/*}")/${c#*/}"
    grep -q ' 0 CRCs verified (damaged values may go unnoticed)' out || fail "$c: $(cat out)"
  done
  status_of 0 ckptfs check --data --index=:memory: "$(fixture torchsave_zip)/ckpt/model.pt"
  grep -q ' [1-9][0-9]* CRCs verified, 0 faults' out || fail "$(cat out)"
}

test_what_has_one_cause_is_said_once() {
  local name=layers.0.attention.wq.weight what="data file '__0_0.distcp' is missing"
  local first="$name, ${name/0/1}, ${name/0/2}"
  need_fixture many_items
  cp -r "$(fixture many_items)/ckpt" c
  rm c/__0_0.distcp
  status_of 1 ckptfs check c
  is "fault: $first, 417 more and the file itself: $what" "$(head -n -1 out)"
  grep -q ', 421 faults of 1 kind, 0 warnings (-v shows each)$' out || fail "$(cat out)"
  status_of 1 ckptfs check -v c
  is 422 "$(wc -l <out)"
  is "fault: $what
fault: $name: $what" "$(head -n 2 out)"
  grep -q ', 421 faults, 0 warnings$' out || fail "$(cat out)"
  status_of 1 ckptfs check --json c
  is 420 "$(grep -c '"fqn": "' out)"
  is "  $first and 417 more: $what" "$(ckptfs info c | sed '1,/^complete/d')"
  # Up to three names are listed in full.
  status_of 1 ckptfs check --include='layers.[0-2].attention.wq.weight' c
  grep -qx "fault: $first and the file itself: $what" out || fail "$(cat out)"
}

# cp, git and object stores leave checkpoints whose newest file is not the metadata.
test_times_of_a_copied_checkpoint_are_one_line() {
  copy_of mp4_fsdp2_adamw c
  aged c
  find c -name '*.distcp' -exec touch {} +
  status_of 0 ckptfs check c
  is 2 "$(wc -l <out)"
  grep -q "^warning: data file '__[0-3]_0.distcp' is newer than .* (and 3 more like it)$" out || fail "$(cat out)"
  grep -q ', 4 warnings of 1 kind (-v shows each)$' out || fail "$(cat out)"
  status_of 0 ckptfs check -v c
  is 4 "$(grep -c '^warning: .* times$' out)"
  status_of 0 ckptfs check --json c
  is 4 "$(grep -c '"warning": true' out)"
}

# tells_what_it_lacks WORDS DIR: all commands say of this damaged checkpoint of a run that it is not complete, and why.
tells_what_it_lacks() {
  local words=$1 dir=$2
  status_of 0 ckptfs info "$dir"
  grep -q '^complete    no: ' out || fail "$(cat out)"
  grep -q "$words" out || fail "$(cat out)"
  status_of 0 ckptfs info --json "$dir"
  grep -q '"complete": false' out || fail "$(cat out)"
  grep -q "$words" out || fail "$(cat out)"
  ckptfs ls -l "$dir" | grep "  ($words" >/dev/null || fail "ls -l $dir"
  status_of 1 ckptfs check "$dir"
  grep -q "^FAULTY" out || fail "$(cat out)"
  grep -q "$words" out || fail "$(cat out)"
  ckptfs ls -l "${dir%/*}" | grep "^incomplete  ${dir##*/}  (.*$words" >/dev/null || fail "ls -l run"
}

test_complete_means_that_all_is_there() {
  mkdir run
  copy_of plain run/step-1
  copy_of plain run/step-2
  copy_of hole run/step-3
  copy_of missing_data_file run/step-4
  aged run
  truncate -s -3000 run/step-2/__0_0.distcp
  touch -d '1 hour ago' run/step-2/__0_0.distcp
  tells_what_it_lacks "data file '__0_0.distcp' has [0-9]* bytes, items in it reach up to [0-9]*" run/step-2
  tells_what_it_lacks 'no chunk holds the elements at \[0,0\]' run/step-3
  tells_what_it_lacks "data file '__1_0.distcp' is missing" run/step-4
  is "step-1 step-2 step-3 step-4" "$(ckptfs ls run | xargs)" # as in a mount
  is "complete step-1 (latest)" "$(ckptfs ls -l run | grep ^complete | xargs)"
  status_of 0 ckptfs info run
  grep -qx 'complete    1' out || fail "$(cat out)"
  grep -qx 'incomplete  3' out || fail "$(cat out)"
  grep -qx 'latest      step-1' out || fail "$(cat out)"
  status_of 0 ckptfs info --json run
  python3 - out <<'END'
import json, sys
r = json.load(open(sys.argv[1]))
assert (r["complete"], r["incomplete"]) == (1, 3), r
assert [c["complete"] for c in r["checkpoints"]] == [True, False, False, False], r
END
  # A mount knows only of checkpoints that have been entered whether they are complete, and looks for the latest.
  mount_at m run
  for i in 1 2 3; do ls m/step-$i >/dev/null 2>&1 || true; done
  is "true false false false" "$(grep -o '"complete": [a-z]*' m/.ckptfs/info.json | cut -d' ' -f2 | xargs)"
}

test_check_finds_holes_and_missing_files() {
  need_fixture hole
  status_of 1 ckptfs check "$(fixture hole)/ckpt"
  grep -q '^fault: s0s0: no chunk holds .*; similarly s0s1, uneven_s0s1$' out || fail "$(cat out)"
  big_copy c
  rm c/__v_0.distcp
  status_of 1 ckptfs check c
  grep -q '^fault: .*__v_0\.distcp' out || fail "$(cat out)"
}

test_index_builds_once() {
  cp -r "$(big)/ckpt" c
  status_of 0 ckptfs index c
  grep -q ': built, 2 tensors, 14 chunks$' out || fail "$(cat out)"
  status_of 0 ckptfs index c
  grep -q ': up to date' out || fail "$(cat out)"
  status_of 0 ckptfs index --rebuild c
  grep -q ': built' out || fail "$(cat out)"
  status_of 0 ckptfs index --print c
  [[ $(cat out) == "$XDG_CACHE_HOME"/ckptfs/index/* && -s $(cat out) ]] || fail "$(cat out)"
  [[ -z $(find c -newer out) ]]
}

test_index_goes_where_it_is_told() {
  status_of 0 ckptfs index --print --index="$T/here.idx" "$(big)/ckpt"
  [[ $(cat out) == "$T/here.idx" && -s here.idx ]]
  sqlite3 here.idx 'select count(*) from sqlite_master' >/dev/null
  status_of 0 ckptfs index --print --index=:memory: "$(big)/ckpt"
  [[ $(cat out) == ":memory:" ]]
  refused . ckptfs index --index=/proc/no/such/place "$(big)/ckpt"
}

test_without_a_cache_the_index_is_in_memory() {
  cp -r "$(big)/ckpt" c
  # shellcheck disable=SC2016
  XDG_CACHE_HOME=/proc/no/cache ckptfs ls c | cmp - <(printf 'v\nw\n')
  XDG_CACHE_HOME='' HOME=$T/nobody ckptfs ls c | cmp - <(printf 'v\nw\n')
  [[ ! -e nobody ]] || fail "it makes its user's home"
}

test_quiet_and_no_terminal_mean_no_bar() {
  cp -r "$(big)/ckpt" c
  status_of 0 ckptfs index -q --rebuild c
  [[ ! -s err ]]
  status_of 0 ckptfs check --data c
  [[ ! -s err ]]
}

run_suite "$@"
