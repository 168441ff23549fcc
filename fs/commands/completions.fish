# Completion of onepot for fish, made by 'onepot completions fish'.
function __onepot
    set -l words (commandline -opc)[2..-1]
    set -l word (commandline -ct)
    set -l lines (timeout 2 onepot completions fish -- $words (string unescape -- $word) 2>/dev/null | sed '1002,${$!d;}')
    switch "$lines[1]"
        case files
            complete -C "'' $word"
        case directories
            complete -C "'' $word" | string match '*/'
        case programs
            set -e words[1..(contains -i -- -- $words)]
            complete -C (string join ' ' -- (string escape -- $words) $word)
        case '*'
            printf '%s\n' $lines[2..-1]
    end
end
complete -c onepot -f -a '(__onepot)'
