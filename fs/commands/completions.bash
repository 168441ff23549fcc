# Completion of onepot for bash, made by 'onepot completions bash'.
_onepot() {
    local line=${COMP_LINE:0:COMP_POINT} end=${2//\\/} i words lines
    local pair="'[^']*'|\"[^\"]*\"" open=${line//\\?/}
    while [[ $open =~ $pair ]]; do open=${open/"${BASH_REMATCH[0]}"/}; done
    open=${open#"${open%%[\'\"]*}"}
    line=${line//\\\'/$'\1'} line=${line//\\\"/$'\2'}
    IFS=$' \t\n' read -a words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=('')
    words=("${words[@]//[\'\"]/}")
    words=("${words[@]//$'\1'/\'}")
    words=("${words[@]//$'\2'/\"}")
    mapfile -t lines < <(onepot completions bash -- "${words[@]:1}" 2>/dev/null)
    [[ $2 == [\'\"]* ]] && end=${end:1}
    line=${words[${#words[@]} - 1]}
    COMPREPLY=("${lines[@]:1}") line=${line%"$end"}
    COMPREPLY=("${COMPREPLY[@]%%$'\t'*}")
    COMPREPLY=("${COMPREPLY[@]#"$line"}")
    for i in "${!COMPREPLY[@]}"; do
        case $open in
        \'*) [[ ${COMPREPLY[i]} == *[\'\\]* ]] && unset "COMPREPLY[i]" ;;
        \"*) [[ ${COMPREPLY[i]} == *[\"\$\`\\!]* ]] && unset "COMPREPLY[i]" ;;
        *) printf -v "COMPREPLY[i]" %q "${COMPREPLY[i]}" ;;
        esac
    done
    case ${lines[0]} in
    files) compopt -o default ;;
    directories) compopt -o dirnames ;;
    programs) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -c -f -- "$2") ;;
    esac
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=/] ]]; then compopt -o nospace; fi
}
complete -F _onepot onepot
