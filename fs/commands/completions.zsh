#compdef onepot
# Completion of onepot for zsh, made by 'onepot completions zsh'.
_onepot() {
    local -a lines open
    lines=("${(@f)$(onepot completions zsh -- "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
    case $lines[1] in
    files) compset -P 1 '--*='; _files ;;
    directories) compset -P 1 '--*='; _files -/ ;;
    programs)
        (( CURRENT -= ${words[(i)--]} ))
        shift ${words[(i)--]} words
        _normal
        ;;
    names)
        shift lines
        compadd -qS / -- ${${(M)lines:#*/}%/}
        compadd -- ${lines:#*/}
        ;;
    words)
        lines=(${lines[2,-1]/$'\t'/:}) open=(${(M)lines:#*=:*}) lines=(${lines:|open})
        _describe word lines -- open -S ''
        ;;
    esac
    (( compstate[nmatches] ))
}
if [[ $funcstack[1] == _onepot ]]; then _onepot "$@"; else compdef _onepot onepot; fi
