# Completion of onepot for bash, made by 'onepot completions bash'.
_onepot() {
    local unsafe words kind end=${2#[\'\"]}
    # xargs splits the line at the cursor as a shell does. An open quote is closed for it; some
    # characters can't stand there.
    for unsafe in '' "'" '"$`!'; do
        words=$(xargs printf '%s\n' <<<"${COMP_LINE:0:COMP_POINT}.${unsafe:0:1}" 2>/dev/null) && break
    done || return
    mapfile -t words <<<"${words%.}"
    # The kind, 1,000 names, and the last one: with it, only the start that all share is completed.
    mapfile -t COMPREPLY < <(timeout 2 onepot completions bash -- "${words[@]:1}" 2>/dev/null |
        sed $'s/\t.*//; 1002,${$!d;}; '"${unsafe:+/[$unsafe\\\\]/d}")
    kind=${COMPREPLY-} COMPREPLY=("${COMPREPLY[@]:1}")
    COMPREPLY=("${COMPREPLY[@]#"${words[${#words[@]} - 1]%"${end//\\/}"}"}")
    if [[ ! $unsafe && ${#COMPREPLY[@]} -gt 0 ]]; then mapfile -t COMPREPLY < <(printf '%q\n' "${COMPREPLY[@]}"); fi
    case $kind in
    files) compopt -o default ;;
    directories) compopt -o dirnames ;;
    programs) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -c -f -- "$2") ;;
    esac
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=/] ]]; then compopt -o nospace; fi
}
complete -F _onepot onepot
