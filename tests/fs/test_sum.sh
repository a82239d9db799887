#!/bin/bash
# The sum command: hashes of tensors.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
long="the_cut_does_not_matter"

# compare_with_files LIST MOUNT ALGORITHM: compares the lines of a list with the files of a mount
compare_with_files() {
  local hash fqn n=0
  while read -r hash _ _ fqn; do
    [[ $hash != '#' ]] || continue
    is "$("$3" <"$2/tensors/$fqn" | cut -d ' ' -f 1)" "$hash"
    n=$((n + 1))
  done <"$1"
  is "$(find "$2/tensors" -type f | wc -l)" $n
}

test_hashes_are_those_of_the_files() {
  mount_at m "$(zoo)"
  ckptfs sum "$(zoo)" >list
  is '# ckptfs sum sha256' "$(head -n 1 list)"
  compare_with_files list m sha256sum
  ckptfs sum --xxh "$(zoo)" >fast
  is '# ckptfs sum xxh3' "$(head -n 1 fast)"
  is "$(wc -l <list)" "$(wc -l <fast)"
}

# A tensor of several blocks has the same hash however it is cut, and with any number of threads.
test_the_cut_does_not_matter() {
  local what
  mount_at m "$(big)/ckpt"
  for what in '' --xxh; do
    ckptfs sum $what --jobs=1 "$(big)/ckpt" >list
    ckptfs sum $what --jobs=3 "$(big)/ckpt" | cmp - list
    rm -rf other
    ckptfs reshard "$(big)/ckpt" other --ranks=3 --format=safetensors -q
    ckptfs sum $what other | cmp - list
    [[ -n $what ]] || compare_with_files list m sha256sum
  done
}

test_a_list_is_compared() {
  ckptfs sum "$(zoo)" >list
  ckptfs sum --check=list "$(zoo)" >out
  is "$(grep -vc '^#' list) equal, 0 differ, 0 missing, 0 not in the list" "$(cat out)"
  ckptfs diff "$(zoo)" list | cmp - out
  # Change a hash and a shape, remove a line and add one.
  sed -e '2s/^./0/' -e '3s/\[/[1,/' -e 4d list >other
  [[ $(sed -n 2p list) != 0* ]] || fail "the hash is the same"
  printf '%064d  float32 [1]  new\n' 0 >>other
  status_of 1 ckptfs sum --check=other "$(zoo)"
  is 2 "$(grep -c '^differs ' out)"
  is 1 "$(grep -c '^not in it ' out)"
  is 'missing    new' "$(grep '^missing ' out)"
  status_of 1 ckptfs diff "$(zoo)" other 'n*'
  grep -q '^missing    new$' out
  refused 'leave out --values' ckptfs diff --values "$(zoo)" list
  refused "^ckptfs: 'list' is a list of hashes, which comes after the checkpoint, as in 'ckptfs diff CKPT list'$" \
    ckptfs diff list "$(zoo)"
}

# One name is empty, and others ("\1" and "%01") could be confused in the list.
test_lists_of_odd_names_are_compared() {
  python3 -c 'import json, struct, sys
names = ["\1", "%01", "%2501", "", "a  b"]
header = json.dumps({name: {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i, name in enumerate(names)}).encode()
sys.stdout.buffer.write(struct.pack("<Q", len(header)) + header + b"abcde")' >x.safetensors
  status_of 0 ckptfs sum x.safetensors
  mv out list
  is 6 "$(wc -l <list)"
  status_of 0 ckptfs sum --check=list x.safetensors
  is "5 equal, 0 differ, 0 missing, 0 not in the list" "$(cat out)"
  grep -q '  %01$' list
  grep -q '  %2501$' list
  # Globs match the names, not the text in which they are shown.
  status_of 1 ckptfs sum --check=list "$(zoo)" '%01'
  is "missing    %2501" "$(grep '^missing' out)"
}

test_lists_that_are_none() {
  echo hello >other
  refused 'does not begin like a list' ckptfs sum --check=other "$(zoo)"
  printf '# ckptfs sum md5\n' >other
  refused 'does not begin like a list' ckptfs sum --check=other "$(zoo)"
  printf '# ckptfs sum sha256\n00 x\n' >other
  refused 'line 2: expected a hash' ckptfs sum --check=other "$(zoo)"
  ckptfs sum "$(zoo)" >list
  sed -E '2s/^(.{8})[0-9a-f]*/\1/' list >other
  refused 'line 2: expected a hash of 64 digits' ckptfs sum --check=other "$(zoo)"
  sed '2s/^./x/' list >other
  refused 'line 2: expected a hash of 64 digits' ckptfs sum --check=other "$(zoo)"
  sed '1s/sha256/xxh3/' list >other
  refused 'line 2: expected a hash of 32 digits' ckptfs sum --check=other "$(zoo)"
  printf '# ckptfs sum sha256\n%064d  a []  x\n%064d  a []  x\n' 0 1 >other
  refused "two lines for 'x'" ckptfs sum --check=other "$(zoo)"
  : >other
  refused 'does not begin like a list' ckptfs sum --check=other "$(zoo)"
  refused 'No such file' ckptfs sum --check=absent "$(zoo)"
  refused "no tensor matches 'nothing'" ckptfs sum "$(zoo)" nothing
}

# Dtype and shape of its tensors are unknown, so they are no tensors here; the others are printed.
test_a_missing_file_is_an_error() {
  local c
  cp -r "$(fixture hf_rank0)/ckpt" ck
  rm ck/model-00002-of-00002.safetensors
  for c in sum stat; do
    status_of 2 ckptfs $c ck
    grep -q model.embed.weight out
    grep -qx "ckptfs: $c: 'count' and 3 more cannot be opened: a tensor of 'model-00002.*', which is missing" err
    refused "^ckptfs: $c: 'scalar' cannot be opened: a tensor of " ckptfs $c ck 's*'
    status_of 0 ckptfs $c ck 'model.e*'
    status_of 0 ckptfs $c --include='model.e*' ck
  done
}

test_what_cannot_be_read_is_an_error() {
  local file
  big_copy ck
  ckptfs sum ck >list
  file=$(find ck -name '*.distcp' -printf '%f\n' | sort | tail -n 1)
  rm "ck/$file"
  status_of 2 ckptfs sum ck
  grep -q "tensor '[vw]': .*$file" err
  status_of 2 ckptfs sum --check=list ck
}

run_suite "$@"
