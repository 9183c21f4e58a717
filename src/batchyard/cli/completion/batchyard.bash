# Completion of `batchyard` in bash. Use: source <(batchyard completion bash)

_batchyard() {
    local current="${COMP_WORDS[COMP_CWORD]}" kind="" line
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ -z $kind ]]; then
            kind=$line
        else
            COMPREPLY+=("${line%%$'\t'*}")
        fi
    done < <("${COMP_WORDS[0]}" __complete "${KUBECONFIG-}" "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    [[ $current == = ]] && current=""
    case $kind in
        files | folders)
            compopt -o filenames 2>/dev/null
            while IFS= read -r line; do
                COMPREPLY+=("$line")
            done < <(compgen "$([[ $kind == files ]] && echo -f || echo -d)" -- "$current")
            ;;
        parts)
            compopt -o nospace 2>/dev/null
            ;;
    esac
}

complete -F _batchyard batchyard
