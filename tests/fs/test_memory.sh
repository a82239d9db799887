#!/bin/bash
# JSON files of many megabytes, filled with whatever takes most memory (bombs.py), get an answer or an error message.
# The process's memory, however it is allocated, stays within bounds.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
long="what_says_much_takes_less_than_a_gibibyte json_of_any_kind_takes_its_text_and_256_mib"

bombs() { python3 "$HERE/bombs.py" "$@"; }

# peak MIB COMMAND...: it must not use more memory than that, and must exit with 0 or 2
peak() {
  local mib=$1 rc=0
  [[ ${VARIANT:-release} == release ]] || mib=100000 # sanitizers keep what was freed
  bombs peak "$mib" timeout 300 "${@:2}" >out 2>err || rc=$?
  [[ $rc == [02] ]] || fail "status $rc: $(head -c 1000 err)"
  ! grep -q '^more than' err || fail "$(tail -n 2 err)"
}

# Every bomb, and every kind of file that may contain any JSON value; then the bytes of text, and the MiB allowed.
cases_json_of_any_kind_takes_its_text_and_256_mib() {
  sed "s/ *#.*//" <<END
shape duplicates 20000000 190
sharding numbers 20000000 190 # JSON in a string of the JSON
index objects 20000000 190
layout deep 20000000 190
megatron objects 1000000 150
END
  full_only <<END
shape numbers 20000000 190
shape objects 20000000 190
shape arrays 20000000 190
shape strings 20000000 190
shape members 20000000 190
shape keys 20000000 190
shape deep 20000000 190
shape deep_objects 20000000 190
shape string 20000000 190
shape escapes 20000000 190
shape blanks 20000000 190
shape digits 20000000 190
shape cut 20000000 190
shape numbers 60000000 330
offsets objects 20000000 190
metadata objects 20000000 190
torch_index objects 20000000 190
layout numbers 20000000 190
layout keys 20000000 190
END
}
test_json_of_any_kind_takes_its_text_and_256_mib() {
  local layout=()
  [[ $1 != layout ]] || layout=(-o layout=c/l.layout)
  bombs "$1" "$2" "$3" c
  peak "$4" "$CKPTFS" info --index=:memory: c "${layout[@]}"
}

# Files that describe as much as possible in as many bytes as allowed. The last word is in the message.
cases_what_says_much_takes_less_than_a_gibibyte() {
  echo "notes 30000000 200 complete.*yes"
  full_only <<END
names 30000000 350 complete.*yes
dimensions 70000000 700 .
weight_map 60000000 300 more.than.4194304
layout_params 30000000 400 complete.*yes
layout_params 60000000 500 l.layout:.the.names.or.placements.of.the.layout.take.more.than.192.MiB
layout_specs 60000000 700 l.layout:.the.names.or.placements.of.the.layout.take.more.than.192.MiB
END
}
test_what_says_much_takes_less_than_a_gibibyte() {
  local layout=()
  [[ ${VARIANT:-release} == release ]] || [[ $1 == layout* ]] || return 0 # millions of rows take minutes
  [[ $1 != layout* ]] || layout=(-o layout=c/l.layout)
  bombs "$1" - "$2" c
  peak "$3" "$CKPTFS" info --index=:memory: c "${layout[@]}"
  grep -q -- "$4" out err || fail "$(head -c 1000 out err)"
}

# In a mount the daemon reads the files from which a GGUF is made, when somebody looks for it. Objects in a
# tokenizer.json are never looked at.
cases_a_mount_reads_what_a_gguf_needs_within_bounds() {
  cat <<END
tokenizer.json deep 20000000 190 maximum.parsing.depth
chat_template.json numbers 16000000 150
END
  full_only <<END
tokenizer.json numbers 55000000 300 tokenizer.json.*more.than.25165824.values
tokenizer.json objects 20000000 190
tokenizer.json keys 20000000 190
merges - 20000000 250 appears.a.second.time
config.json objects 16000000 150
tokenizer_config.json numbers 16000000 150
generation_config.json numbers 16000000 150
END
}
test_a_mount_reads_what_a_gguf_needs_within_bounds() {
  local pid
  bombs "$1" "$2" "$3" c
  mkdir m
  "$CKPTFS" mount -f c m 2>log &
  pid=$!
  wait_until is_mounted m || fail "$(cat log)"
  ls m/gguf >names 2>&1 || true
  [[ $# != 4 ]] || grep -qx model.gguf names || fail "$(cat names log m/.ckptfs/info.json)"
  [[ ${VARIANT:-release} != release ]] ||
    (($(awk '/^VmHWM/ { print $2 }' "/proc/$pid/status") <= $4 << 10)) ||
    fail "$(grep VmHWM "/proc/$pid/status")"
  [[ $# != 5 ]] || grep -q -- "$5" m/.ckptfs/info.json || fail "$(cat names m/.ckptfs/info.json)"
  ckptfs umount m
  wait_until gone "$pid"
}

run_suite "$@"
