#!/bin/bash
# check-layers.sh - includes point down, never up or sideways; private headers stay private;
# banned functions stay out. The table is that of core/README.md. Silent when all is well.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

# folder: what it may include besides itself
allowed() {
  case $1 in
    base) echo "" ;;
    model) echo "base" ;;
    parse | codec) echo "base model" ;;
    catalog) echo "base model parse codec" ;;
    format | view) echo "base model parse codec catalog" ;;
    comm) echo "base" ;;
    read | save) echo "base model parse codec catalog format view" ;;
    store) echo "base model parse codec catalog format view save comm" ;;
    api) echo "base model parse codec catalog format view read save comm store" ;;
    fs) echo "base api" ;;
    *) echo "?" ;;
  esac
}

bad=0
say() {
  echo "$1"
  bad=1
}

while IFS=: read -r file line include; do
  from=${file#core/}
  from=${from%%/*}
  to=${include%%/*}
  [[ $include == */* ]] || { [[ $from == fs ]] && continue; say "$file:$line: \"$include\" names no folder"; continue; }
  [[ $from == "$to" ]] && continue
  case " $(allowed "$from") " in
    *" $to "*) ;;
    *) say "$file:$line: $from/ may not include $include" ;;
  esac
  # Private headers: *_internal.h, and those that say so in their head.
  if [[ $include == *_internal.h ]] || grep -q 'Private to core/' "core/$include" 2>/dev/null; then
    say "$file:$line: $include is private to core/$to"
  fi
done < <(grep -nH '^#include "' core/*/*.[ch] fs/*.[ch] | sed -E 's/#include "([^"]*)".*/\1/')

grep -nH '#include <fuse' core/*/*.[ch] && say "core/ never includes FUSE"
grep -nH 'sqlite3\.h' core/[!c]*/*.[ch] fs/*.[ch] core/codec/*.[ch] 2>/dev/null && say "SQL lives in core/catalog"
grep -nHwE '(strcpy|strcat|sprintf|strtok|atoi|atol|gets|alloca|rand|system|popen)\(' core/*/*.[ch] fs/*.[ch] |
  grep -vE '^\S+:[0-9]+:\s*(\*|/\*)' && say "banned function"
dup=$(find core fs -name '*.[ch]' -printf '%f\n' | sort | uniq -d)
[[ -z $dup ]] || say "file names used twice: $dup"
exit $bad
