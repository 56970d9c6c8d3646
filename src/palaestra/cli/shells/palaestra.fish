# Completion of palaestra for fish: ~/.config/fish/completions/palaestra.fish
set -g __palaestra_program 'PROGRAM'
function __palaestra
    set -l current (commandline -ct)
    test -n "$current"; or set current ""
    set -l typed (commandline -opc)
    set -l found (printf "%s\n" $__palaestra_program | sh -s -- $typed[2..] $current)
    if test (count $found) -gt 0
        printf "%s\n" $found
    else
        __fish_complete_path $current
    end
end
complete -c palaestra -f -a "(__palaestra)"
