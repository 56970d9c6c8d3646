#compdef palaestra
# Completion of palaestra for zsh: a file _palaestra in a folder of $fpath
_palaestra_program='PROGRAM'
_palaestra() {
  local -a found
  found=(${(f)"$(printf "%s\n" $_palaestra_program | sh -s -- "${(@)words[2,CURRENT]}")"})
  if (( $#found )); then compadd -a found; else _files; fi
}
if [ "$funcstack[1]" = _palaestra ]; then _palaestra "$@"; else compdef _palaestra palaestra; fi
