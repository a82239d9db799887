# ckptfs.bash - completion for bash. What there is to offer the program itself knows: `ckptfs __complete`.

# What readline replaces is what is behind the last of COMP_WORDBREAKS, not all of CUR.
_ckptfs() {
  local cur words cword line kind prefix rest front='' break
  _get_comp_words_by_ref -n =: cur words cword || return
  for break in = :; do
    rest=${cur##*"$break"}
    if [[ $COMP_WORDBREAKS == *"$break"* && $cur == *"$break"* ]] && ((${#cur} - ${#rest} > ${#front})); then
      front=${cur%"$rest"}
    fi
  done
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
        done < <(compgen "$kind" -- "${cur#"$prefix"}")
        ;;
      *)
        # Names come from a checkpoint: what they hold means nothing to the shell.
        [[ ${line#"$front"} =~ ^[A-Za-z0-9_./,=:@%+-]*$ ]] || printf -v line '%s%q' "$front" "${line#"$front"}"
        COMPREPLY+=("${line#"$front"}")
        [[ $line == *[=/] ]] && compopt -o nospace 2>/dev/null
        ;;
    esac
  done < <("${words[0]}" __complete "${words[@]:1:cword}" 2>/dev/null)
} && complete -F _ckptfs ckptfs
