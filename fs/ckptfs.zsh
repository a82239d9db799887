#compdef ckptfs
# Completion for zsh. What there is to offer the program itself knows: `ckptfs __complete`.

local line
local -a offered unfinished
# With (qq) and in quotes, or zsh drops the last word if it is empty.
for line in ${(f)"$(_call_program offers ${(q)words[1]} __complete "${(@qq)${(@Q)words[2,CURRENT]}}" 2>/dev/null)"}; do
  case $line in
    (:files\ *|:dirs\ *)
      [[ -z ${line#* } ]] || compset -P ${(b)line#* } # the option in front of the file
      if [[ $line == :dirs* ]]; then _files -/; else _files; fi
      ;;
    (*[=/]) unfinished+=($line) ;;
    (*) offered+=($line) ;;
  esac
done
(( $#offered )) && compadd -- $offered
(( $#unfinished )) && compadd -S '' -- $unfinished
