# ckptfs.bash - completion for bash: commands, options, the words of -o, FQNs.
#
# What there is to complete is what the program says in `ckptfs help` and `ckptfs COMMAND --help`.

# The words of a command with two dashes, a value's "=" included.
_ckptfs_words() {
  "$1" "$2" --help 2>/dev/null | sed -nE 's/^ +(-[a-z], )? *(--[a-z_]+=?).*/\2/p'
}

# _ckptfs_value PROGRAM COMMAND WORD START: how a value of WORD is completed.
_ckptfs_value() {
  local cur=$4
  case $("$1" "$2" --help 2>/dev/null | sed -nE "s/^ +(-[a-z], )? *--$3=([A-Z]+).*/\\2/p") in
    FILE | PATH) compopt -o filenames && mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
    DIR) compopt -o filenames && mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
  esac
  case $3 in
    recipe)
      mapfile -t COMPREPLY < <(compgen -f -W "$("$1" help recipes 2>/dev/null |
        sed -nE 's/^  ([a-z0-9_-]+) .*/\1/p')" -- "$cur")
      ;;
    dtype) mapfile -t COMPREPLY < <(compgen -W 'bf16 fp16 fp32' -- "$cur") ;;
    gguf_dtype) mapfile -t COMPREPLY < <(compgen -W 'f32 f16 bf16 q8_0' -- "$cur") ;;
    experts) mapfile -t COMPREPLY < <(compgen -W 'fused split stored' -- "$cur") ;;
    master) mapfile -t COMPREPLY < <(compgen -W 'yes no' -- "$cur") ;;
    io) mapfile -t COMPREPLY < <(compgen -W 'auto direct cached' -- "$cur") ;;
    sandbox) mapfile -t COMPREPLY < <(compgen -W 'auto on off' -- "$cur") ;;
    format) mapfile -t COMPREPLY < <(compgen -W 'dcp hyperparallel safetensors' -- "$cur") ;;
  esac
}

# _ckptfs_fqns PROGRAM CKPT START [FRONT END]: FQNs that begin with START, with FRONT and END around
# each. An index that is not there yet may take too long.
_ckptfs_fqns() {
  local escaped
  # shellcheck disable=SC2001 # every one of a set of characters
  escaped=$(sed 's/[][*?\\]/\\&/g' <<<"$3")
  timeout 2 "$1" ls -q "$2" "$escaped*" 2>/dev/null | head -n 2000 | sed "s|^|$4|; s|\$|$5|"
}

# Paths of the tree, as far as one can tell without a mount.
_ckptfs_paths() {
  case $3 in
    tensors/*) _ckptfs_fqns "$1" "$2" "${3#tensors/}" tensors/ ;;
    npy/*) _ckptfs_fqns "$1" "$2" "${3#npy/}" npy/ .npy ;;
    *)
      compopt -o nospace
      compgen -W 'tensors/ npy/ objects/ hf/ hf/model.safetensors pt/model.pt gguf/model.gguf ranks/' -- "$3"
      ;;
  esac
}

_ckptfs() {
  local cur prev words cword split program command what i args=()
  _init_completion -s -n : || return
  program=${words[0]}
  if [ "$cword" = 1 ]; then
    mapfile -t COMPREPLY < <(compgen -W "--help --version help $("$program" help 2>/dev/null |
      sed -nE 's/^  ([a-z]+) .*/\1/p')" -- "$cur")
    return
  fi
  command=${words[1]}
  if [ "$command" = help ]; then
    mapfile -t COMPREPLY < <(compgen -W "recipes $("$program" help 2>/dev/null |
      sed -nE 's/^  ([a-z]+) .*/\1/p')" -- "$cur")
    return
  fi
  if [ "$prev" = -o ]; then # WORD,WORD=VALUE: the last one is completed
    local front=
    [[ $cur == *,* ]] && front=${cur%,*},
    mapfile -t COMPREPLY < <(compgen -P "$front" -W \
      "$(_ckptfs_words "$program" "$command" | sed 's/^--//')" -- "${cur##*,}")
    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace
    return
  fi
  if [[ $prev == --* ]]; then
    _ckptfs_value "$program" "$command" "${prev#--}" "$cur"
    [ ${#COMPREPLY[@]} -gt 0 ] && return
    $split && compopt -o filenames && mapfile -t COMPREPLY < <(compgen -f -- "$cur") && return
  fi
  if [[ $cur == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(_ckptfs_words "$program" "$command")" -- "$cur")
    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace
    return
  fi
  for ((i = 2; i < cword; i++)); do
    [[ ${words[i]} == -* ]] || args+=("${words[i]}")
  done
  case $command in
    ls | info | cat)
      if [ ${#args[@]} -gt 0 ]; then
        what=_ckptfs_fqns
        [[ $command == cat && " ${words[*]} " != *' --fqn '* ]] && what=_ckptfs_paths
        mapfile -t COMPREPLY < <("$what" "$program" "${args[0]}" "$cur")
        __ltrim_colon_completions "$cur"
        return
      fi
      ;;
    umount | stats)
      mapfile -t COMPREPLY < <(compgen -W "$(sed -nE 's/^[^ ]+ ([^ ]+) fuse\.ckptfs .*/\1/p' \
        /proc/self/mounts 2>/dev/null)" -- "$cur")
      return
      ;;
  esac
  _filedir
} && complete -F _ckptfs ckptfs
