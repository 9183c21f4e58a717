# Completion of `batchyard` in fish. Use: batchyard completion fish > ~/.config/fish/completions/batchyard.fish

function __batchyard_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l answer ($words[1] __complete "$KUBECONFIG" $words[2..-1] "$current" 2>/dev/null)
    switch "$answer[1]"
        case files
            __fish_complete_path (string replace -r '^--[^=]*=' '' -- "$current")
        case folders
            __fish_complete_directories (string replace -r '^--[^=]*=' '' -- "$current") ''
        case values parts
            printf '%s\n' $answer[2..-1]
    end
end

complete -c batchyard -f -a '(__batchyard_complete)'
