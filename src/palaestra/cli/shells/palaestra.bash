# Completion of palaestra for bash: ~/.local/share/bash-completion/completions/palaestra
_palaestra_program='PROGRAM'
_palaestra() {
  local line=${COMP_LINE:0:COMP_POINT} words current=
  read -r -a words <<< "$line"
  case $line in *[[:space:]]) words+=("") ;; esac
  current=${words[${#words[@]} - 1]}
  local IFS=$'\n' found
  set -f
  found=($(printf "%s\n" "$_palaestra_program" | sh -s -- "${words[@]:1}"))
  set +f
  COMPREPLY=("${found[@]#"${current%"${current##*:}"}"}")  # bash replaces what follows the last colon
}
complete -o default -F _palaestra palaestra
