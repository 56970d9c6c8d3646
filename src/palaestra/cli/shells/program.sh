# What can be typed at the end of a line: its words after palaestra, the last one unfinished.
command= algorithm= option= root=runs number=1
while [ $# -gt 1 ]; do
  case $1 in
  -*) option=$1 ;;
  *)
    case "$number $command $1" in
    COMMANDS) command="$command${command:+ }$1" ;;
    *)
      case $option in
      "") [ $number = 1 ] && algorithm=$1; number=$((number + 1)) ;;
      --root) root=$1 ;;
      esac ;;
    esac ;;
  esac
  shift
done
runs() {
  echo last
  for file in "$root"/*/config.yaml "$root"/*/group.json "$root"/*/*/config.yaml; do
    if [ -f "$file" ]; then file=${file%/*}; printf "%s\n" "${file#"$root"/}"; fi
  done
}
words() {
  case $1 in
ENTRIES
  esac
}
case $1 in
-*) words "$command --"; words "$command -- $algorithm" ;;
*)
  if [ -n "$option" ]; then words "$command $option"; else words "$command"; words "$command $number"; fi ;;
esac | while IFS= read -r word; do
  case $word in "$1"*) printf "%s\n" "$word" ;; esac
done
