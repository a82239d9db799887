# ckptfs.bash - completion for bash. What there is to offer the program itself knows: `ckptfs __complete`.

# Sets PLAIN to what each WORD stands for: without quotes and backslashes. Nothing is expanded.
_ckptfs_unquote() {
  local word quote char
  plain=()
  for word; do
    plain+=('') quote=''
    while [[ -n $word ]]; do
      char=${word:0:1} word=${word:1}
      if [[ $char == \\ && $quote != "'" && ($quote != '"' || $word == [\\\"\$\`]*) ]]; then
        plain[-1]+=${word:0:1} word=${word:1}
      elif [[ $char == "$quote" ]]; then
        quote=''
      elif [[ -z $quote && $char == [\'\"] ]]; then
        quote=$char
      else
        plain[-1]+=$char
      fi
    done
  done
}

# What readline replaces is what is behind the last of COMP_WORDBREAKS, not all of CUR.
_ckptfs() {
  local cur words cword line kind prefix rest front='' break plain
  _get_comp_words_by_ref -n =: cur words cword || return
  for break in = :; do
    rest=${cur##*"$break"}
    if [[ $COMP_WORDBREAKS == *"$break"* && $cur == *"$break"* ]] && ((${#cur} - ${#rest} > ${#front})); then
      front=${cur%"$rest"}
    fi
  done
  _ckptfs_unquote "${words[@]:1:cword}"
  COMPREPLY=()
  while IFS= read -r line; do
    case $line in
      ":files "* | ":dirs "*)
        kind=-f
        [[ $line == ":dirs "* ]] && kind=-d
        prefix=${line#* }
        compopt -o filenames 2>/dev/null
        while IFS= read -r line; do
          COMPREPLY+=("${prefix#"$front"}$line")
        done < <(compgen "$kind" -- "${plain[-1]#"$prefix"}")
        ;;
      *)
        # Names come from a checkpoint: what they hold means nothing to the shell.
        if [[ $cur == [\'\"]* ]]; then
          [[ $line != *[\\\"\'\$\`!]* ]] || continue # could end the quotes
        elif [[ ! ${line#"$front"} =~ ^[A-Za-z0-9_./,=:@%+-]*$ ]]; then
          printf -v line '%s%q' "$front" "${line#"$front"}"
        fi
        COMPREPLY+=("${line#"$front"}")
        [[ $line == *[=/] ]] && compopt -o nospace 2>/dev/null
        ;;
    esac
  done < <("${words[0]}" __complete "${plain[@]}" 2>/dev/null)
} && complete -F _ckptfs ckptfs
