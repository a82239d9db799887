# ckptfs.fish - completion for fish. What there is to offer the program itself knows: `ckptfs __complete`.

function __ckptfs_offers
    set -l words (commandline -opc) (commandline -ct)
    for line in ($words[1] __complete $words[2..-1] 2>/dev/null)
        set -l front (string replace -r '^:\w+ ' '' -- $line)
        switch $line
            case ':files *'
                string replace -r '^' -- $front (__fish_complete_path (string sub -s (math (string length -- $front) + 1) -- $words[-1]))
            case ':dirs *'
                string replace -r '^' -- $front (__fish_complete_directories (string sub -s (math (string length -- $front) + 1) -- $words[-1]) '')
            case '*'
                printf '%s\n' $line
        end
    end
end

complete -c ckptfs -f -a '(__ckptfs_offers)'
