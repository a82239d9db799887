#!/bin/bash
# check-layers.sh - check that includes point down, never up or sideways, that private headers stay private,
# and that banned functions are not used. The table is that of core/README.md. Silent if all is well.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

# These functions are called for each include and return their result in $allowed and $to; a subshell for each call
# would take minutes.

# allow FOLDER: sets $allowed to the folders that it may include besides itself
allow() {
  local values="base model" bytes="base model parse codec"
  case $1 in
    base) allowed="" ;;
    model | comm) allowed="base" ;;
    parse | codec) allowed="$values" ;;
    source) allowed="$bytes" ;;
    index | remote) allowed="$bytes source" ;;
    format) allowed="$bytes source index" ;;
    format/dcp | format/deepspeed | format/fsdp | format/megatron_ranks)
      allowed="$bytes source index format format/torch"
      ;;
    format/hyperparallel) allowed="$bytes source index format format/dcp" ;;
    format/megatron) allowed="$bytes source index format format/dcp format/zarr" ;;
    format/orbax) allowed="$bytes source index format format/zarr" ;;
    format/*) allowed="$bytes source index format" ;;
    tensor) allowed="$bytes index" ;;
    recipe) allowed="$bytes tensor" ;;
    layout) allowed="$bytes" ;;
    file) allowed="$bytes tensor" ;;
    gguf) allowed="$bytes tensor file" ;;
    read | read/derived) allowed="$bytes index source format tensor read" ;;
    tree) allowed="$bytes index tensor recipe layout file gguf" ;;
    save) allowed="$bytes" ;;
    store) allowed="$bytes source tensor file save comm" ;;
    ckpt | ckpt/*)
      allowed="$bytes index source format format/gguf format/megatron tensor recipe layout file gguf read read/derived tree save comm store page"
      allowed+=" ckpt ckpt/open ckpt/model ckpt/computed ckpt/run" # nothing else needs ckpt/scan and ckpt/reshard
      ;;
    page) allowed="base model codec ckptfs" ;;
    fs/mount | fs/cmd) allowed="base ckptfs fs/mount fs/cmd" ;;
    *) allowed="?" ;;
  esac
}

# The folder to which a public header belongs.
home_of() {
  to=
  case $1 in
    ckptfs/ckpt_base.h) to=base ;;
    ckptfs/ckpt_tensor.h) to=model ;;
    ckptfs/ckpt_numbers.h) to=codec ;;
    ckptfs/ckpt_comm.h) to="comm" ;;
    ckptfs/ckpt_state.h | ckptfs/ckpt_plan.h) to=save ;;
    ckptfs/ckpt_storage.h) to=store ;;
    ckptfs/ckpt_report.h) to=page ;;
    ckptfs/*) to=ckpt ;;
    cmd/* | mount/*) to="fs/${1%/*}" ;;
    */*) to="${1%/*}" ;;
  esac
}

bad=0
say() {
  echo "$1"
  bad=1
}

# Private headers: *_internal.h, and those whose first comment names a folder, which includes its subfolders.
declare -A private_to
while IFS=: read -r file folder; do
  private_to[${file#core/}]=${folder%/}
done < <(git ls-files 'core/*.h' | xargs grep -oE 'Private to core/[a-z/]+' | sed 's|:Private to core/|:|')

while IFS=: read -r file line include; do
  from=${file#core/}
  from=${from%/*}
  [[ $from != include/ckptfs ]] || { [[ $include != */* ]] || say "$file:$line: $include is not a public header"; continue; }
  home_of "$include"
  # fs/ and page use the library as any other program would: to them, the public headers are one layer.
  [[ ($from != fs/* && $from != page) || $include != ckptfs/* ]] || to=ckptfs
  [[ -n $to ]] || { say "$file:$line: \"$include\" names no folder"; continue; }
  [[ $from == "$to" ]] && continue
  allow "$from"
  case " $allowed " in
    *" $to "*) ;;
    *) say "$file:$line: $from/ may not include $include" ;;
  esac
  private=${private_to[$include]:-}
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
grep -nHE '\<(strcpy|strcat|sprintf|strtok|atoi|atol|gets|alloca|rand|system|popen)\(' "${sources[@]}" |
  grep -vE '^\S+:[0-9]+:\s*(\*|/\*)' && say "banned function"
# n + 1u, computed in 32 bits where (size_t)n + 1 is meant.
grep -nHE '(malloc|calloc|realloc|reallocarray|arena_alloc|arena_array|pool_charge)\(.*\+ [0-9]+u[^l0-9a-z]' "${sources[@]}" &&
  say "a size is computed in 32 bits"
dup=$(printf '%s\n' "${sources[@]##*/}" | sort | uniq -d)
[[ -z $dup ]] || say "file names used twice: $dup"
exit $bad
