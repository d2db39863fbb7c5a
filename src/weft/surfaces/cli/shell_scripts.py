"""What shells run to complete a line, and what they are answered.

Names come from other people's sessions: a shell must put each of them into the line as one word that it does not
expand. Zsh and fish quote what they insert. Bash inserts what it is given, so it is given words quoted for a shell.
Names with characters that cannot be printed are not offered.
"""

from __future__ import annotations

from typing import Any

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)

from weft.kernel.typed_names import shell_word

BASH_SCRIPT = r"""
%(complete_func)s() {
    local IFS=$'\n' word="${COMP_WORDS[COMP_CWORD]}" response type value
    # After a quote inside the word bash puts the answer in another place than this function thinks.
    [[ "${word:1}" == *[\'\"]* ]] && return 0
    response=$(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD="$COMP_CWORD" %(complete_var)s=bash_complete "$1")
    while IFS=, read -r type value; do
        if [[ $type == dir ]]; then
            compopt -o dirnames
        elif [[ $type == file ]]; then
            compopt -o default
        elif [[ $type == plain && $value == \'* && $word == \"* ]]; then
            COMPREPLY+=("\"\"$value\"\"")
        elif [[ $type == plain ]]; then
            COMPREPLY+=("$value")
        fi
    done <<< "$response"
    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""

FISH_SCRIPT = r"""
function %(complete_func)s
    set -l response (env %(complete_var)s=fish_complete COMP_WORDS=(commandline -cp) \
COMP_CWORD=(commandline -t) %(prog_name)s)
    for completion in $response
        set -l metadata (string split -m 1 "," -- $completion)
        if test $metadata[1] = dir
            __fish_complete_directories $metadata[2]
        else if test $metadata[1] = file
            __fish_complete_path $metadata[2]
        else if test $metadata[1] = plain
            printf '%%s\n' $metadata[2]
        end
    end
end

complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""


class PrintableNames(ShellComplete):
    """Offers nothing that a line of the answer, or a terminal, would take for something else."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        return [item for item in super().get_completions(args, incomplete) if str(item.value).isprintable()]


class BashWords(PrintableNames, BashComplete):
    source_template = BASH_SCRIPT

    def format_completion(self, item: CompletionItem[Any]) -> str:
        return f"{item.type},{shell_word(item.value) if item.type == 'plain' else item.value}"


class ZshWords(PrintableNames, ZshComplete):
    """The script of click: `compadd` quotes what it inserts."""


class FishWords(PrintableNames, FishComplete):
    source_template = FISH_SCRIPT


def register_shells() -> None:
    """Lets click answer these shells by these classes."""
    for completion in (BashWords, ZshWords, FishWords):
        add_completion_class(completion)
