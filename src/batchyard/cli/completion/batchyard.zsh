#compdef batchyard
# Completion of `batchyard` in zsh. Use: batchyard completion zsh > FOLDER/_batchyard, with FOLDER in $fpath

_batchyard() {
    local -a answer values
    local line help
    answer=("${(@f)$("${words[1]}" __complete "${KUBECONFIG-}" "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    case "${answer[1]}" in
        files)
            compset -P '--*='
            _files
            ;;
        folders)
            compset -P '--*='
            _files -/
            ;;
        values | parts)
            for line in "${(@)answer[2,-1]}"; do
                help=${line#*$'\t'}
                values+=("${${line%%$'\t'*}//:/\\:}${help:+:$help}")
            done
            if [[ "${answer[1]}" == parts ]]; then
                _describe batchyard values -S ''
            else
                _describe batchyard values
            fi
            ;;
    esac
}

if [[ "${funcstack[1]}" == _batchyard ]]; then
    _batchyard "$@"
else
    compdef _batchyard batchyard
fi
