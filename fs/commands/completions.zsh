#compdef onepot
# Completion of onepot for zsh, made by 'onepot completions zsh'.
_onepot() {
    local -a lines open
    lines=("${(@f)$(timeout 2 onepot completions zsh -- "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null | sed '1002,${$!d;}')}")
    case $lines[1] in
    files|directories) compset -P 1 '--*='; _files ${${lines:#files}:+-/} ;;
    programs) local dashes=${words[(i)--]}; shift $dashes words; (( CURRENT -= dashes )); _normal ;;
    *)
        lines=(${${${lines[2,-1]//\\/\\\\}//:/\\:}/$'\t'/:})
        open=(${(M)lines:#*[=/](|:*)}) lines=(${lines:|open})
        _describe word lines -- open -S ''
        ;;
    esac
}
if [[ $funcstack[1] == _onepot ]]; then _onepot "$@"; else compdef _onepot onepot; fi
