#!/bin/bash
# check-layers.sh - check that includes point down, never up or sideways, that private headers stay private,
# and that banned functions are not used. The table is that of core/README.md. Silent if all is well.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

# folder: what it may include besides itself
allowed() {
  local values="base model" bytes="base model parse codec"
  case $1 in
    base) echo "" ;;
    model | comm) echo "base" ;;
    parse | codec) echo "$values" ;;
    source) echo "$bytes" ;;
    index | remote) echo "$bytes source" ;;
    format) echo "$bytes source index" ;;
    format/dcp | format/deepspeed | format/fsdp | format/megatron_ranks)
      echo "$bytes source index format format/torch"
      ;;
    format/hyperparallel) echo "$bytes source index format format/dcp" ;;
    format/megatron) echo "$bytes source index format format/dcp format/zarr" ;;
    format/orbax) echo "$bytes source index format format/zarr" ;;
    format/*) echo "$bytes source index format" ;;
    tensor) echo "$bytes index" ;;
    recipe) echo "$bytes tensor" ;;
    layout) echo "$bytes" ;;
    file) echo "$bytes tensor" ;;
    gguf) echo "$bytes tensor file" ;;
    read) echo "$bytes index source format tensor" ;;
    tree) echo "$bytes index tensor recipe layout file gguf" ;;
    save) echo "$bytes" ;;
    store) echo "$bytes source tensor file save comm" ;;
    ckpt) echo "$bytes index source format format/gguf format/megatron tensor recipe layout file gguf read tree save comm store page" ;;
    page) echo "base model codec ckptfs" ;;
    fs/mount | fs/cmd) echo "base ckptfs fs/mount fs/cmd" ;;
    *) echo "?" ;;
  esac
}

# Prints the folder to which a public header belongs.
home_of() {
  case $1 in
    ckptfs/ckpt_base.h) echo base ;;
    ckptfs/ckpt_tensor.h) echo model ;;
    ckptfs/ckpt_numbers.h) echo codec ;;
    ckptfs/ckpt_comm.h) echo comm ;;
    ckptfs/ckpt_state.h | ckptfs/ckpt_plan.h) echo save ;;
    ckptfs/ckpt_storage.h) echo store ;;
    ckptfs/ckpt_report.h) echo page ;;
    ckptfs/*) echo ckpt ;;
    cmd/* | mount/*) echo "fs/${1%/*}" ;;
    */*) echo "${1%/*}" ;;
  esac
}

bad=0
say() {
  echo "$1"
  bad=1
}

while IFS=: read -r file line include; do
  from=${file#core/}
  from=${from%/*}
  [[ $from != include/ckptfs ]] || { [[ $include != */* ]] || say "$file:$line: $include is not a public header"; continue; }
  to=$(home_of "$include")
  # For what is written as a program that uses the installed library would be, the public headers are one layer.
  [[ ($from != fs/* && $from != page) || $include != ckptfs/* ]] || to=ckptfs
  [[ -n $to ]] || { say "$file:$line: \"$include\" names no folder"; continue; }
  [[ $from == "$to" ]] && continue
  # The messages between ckptfs-fetch and those who start it.
  [[ $file != core/source/remote_internal.h || $include != remote/wire.h ]] || continue
  case " $(allowed "$from") " in
    *" $to "*) ;;
    *) say "$file:$line: $from/ may not include $include" ;;
  esac
  # Private headers: *_internal.h, and those whose first comment names a folder, which includes its subfolders.
  private=$(grep -osE 'Private to core/[a-z/]+' "core/$include" | sed -E 's|.* core/||; s|/$||')
  [[ $include != *_internal.h ]] || private=${private:-$to}
  [[ -z $private || $from/ == "$private"/* ]] || say "$file:$line: $include is private to core/$private"
done < <(git ls-files '*.c' '*.h' | grep -E '^(core|fs)/' | xargs grep -nHE '^#include ("|<ckptfs/)' |
  sed -E 's/#include ["<]([^">]*)[">].*/\1/')

mapfile -t sources < <(git ls-files 'core/*.[ch]' 'fs/*.[ch]')
mapfile -t core < <(git ls-files 'core/*.[ch]')
mapfile -t placeless < <(printf '%s\n' "${core[@]}" | grep -E '^core/(format/|index/|read/|source/files)')
mapfile -t codeless < <(printf '%s\n' "${core[@]}" | grep -E '^core/(format|index|read|tree)/')
mapfile -t local_only < <(printf '%s\n' "${sources[@]}" | grep -v '^core/remote/')
mapfile -t no_index < <(printf '%s\n' "${sources[@]}" | grep -v '^core/index/')
grep -nH '#include <fuse' "${core[@]}" && say "core/ never includes FUSE"
grep -nHE 'pthread_(mutex|spin|rwlock)_[a-z]*(lock|rdlock|wrlock)\(' "${sources[@]}" |
  grep -v '^core/base/cleanup\.h:' && say "mutexes are taken with base/cleanup.h"
grep -nHwE 'dirfd|openat|fstatat|fdopendir|io_open_beneath' "${placeless[@]}" &&
  say "only core/source/place.h knows where a checkpoint is"
grep -nHi 'zstd' "${codeless[@]}" &&
  say "only core/source/item_source.h knows how items are encoded
"
grep -nH 'sqlite3\.h' "${no_index[@]}" && say "SQL lives in core/index"
grep -nHE '<(curl/|expat)' "${local_only[@]}" && say "only core/remote, which is ckptfs-fetch, uses the network"
grep -nHwE '(strcpy|strcat|sprintf|strtok|atoi|atol|gets|alloca|rand|system|popen)\(' "${sources[@]}" |
  grep -vE '^\S+:[0-9]+:\s*(\*|/\*)' && say "banned function"
# Additions to 32-bit counts in 32 bits, where (size_t)n + 1 is meant.
grep -nHE '(malloc|calloc|realloc|reallocarray|arena_alloc|arena_array|pool_charge)\(.*\+ [0-9]+u[^l0-9a-z]' "${sources[@]}" &&
  say "a size is computed in 32 bits"
dup=$(printf '%s\n' "${sources[@]##*/}" | sort | uniq -d)
[[ -z $dup ]] || say "file names used twice: $dup"
exit $bad
