"""The command line explained: `weft help` and `weft completion`, what shells run to complete
a line and what they are answered, and which option was meant by one that a command does not
have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)

from weft.kernel.typed_names import shell_line, shell_word
from weft.surfaces.cli.command_line import ALL_COMMANDS, COMPLETION_VARIABLE, EXIT_CODES, MOVED, Call
from weft.surfaces.cli.command_line import command as weft_command
from weft.verbs.program_answers import HelpText, ShellScript

# --- `weft help`: commands and topics explained.

REVISIONS = """\
How to name a turn:
  main              the head of a session, by its label or an alias
  ses_0345          the same by 6 letters or more that only its label begins with
  main~2            two turns before it; main^ is main~1
  main@{3}          where the session stood three moves ago; `weft reflog main` lists them
  main@{yesterday}  where it stood then; also {2.hours.ago}, {last week}, {2026-11-15}, {2026-11-15 09:30}
  @{3}              the same of the latest session where a command reads, and of main where it writes
  main#7            the turn that the session made at depth 7
  6X2ZK4PD          the last 6 letters or more of a turn's id, or all 26
  7q2k4m/main       where another replica's branch of a session stands, as `weft sessions` shows it
  4f9c2a1           the first 7 digits or more of a turn's digest, or of an event inside it
Times are read in your own zone; --json answers in UTC."""
ENVIRONMENT = """\
What the environment says:
  WEFT_LEDGER      the ledger to use when --ledger does not name one
  WEFT_TOKEN       act with this token, and nothing more, when --token-file names none
  XDG_DATA_HOME    where your own ledger lies (weft/ledger.db); default ~/.local/share
  XDG_STATE_HOME   where it is kept which ledgers you trust (weft/trust.json); default ~/.local/state
  XDG_CONFIG_HOME  where your prices (weft/prices.toml), keys (weft/keys/) and credentials
                   (weft/credentials.json) lie; default ~/.config
  WEFT_KEY_PASSPHRASE  of the key to sign with, where nobody is there to be asked
  WEFT_SANDBOX     strict: run no program where the sandbox lacks something that `weft doctor` names
  NO_COLOR         any value: no colours
  COLUMNS, LINES   the size of the terminal, where it is not what the terminal says
  PAGER, LESS      how long output is shown on a terminal
  TZ               the zone that times are shown and read in
The variables by which other tools keep their sessions elsewhere hold for `weft import` too:
  AIDER_CHAT_HISTORY_FILE, CLAUDE_CONFIG_DIR, CODEX_HOME, COPILOT_HOME, FACTORY_DIR, FILE_STORE_PATH, GEMINI_CLI_HOME,
  KIRO_HOME, LLM_USER_PATH, MSWEA_GLOBAL_CONFIG_DIR, OPENCLAW_STATE_DIR, OPENCODE_DB, OPENHANDS_CONVERSATIONS_DIR,
  PI_CODING_AGENT_DIR, PI_CODING_AGENT_SESSION_DIR, SWE_AGENT_TRAJECTORY_DIR"""


def exit_codes() -> str:
    return "\n".join(["Exit codes:", *(f"  {code:<4} {meaning}" for code, meaning in EXIT_CODES.items())])


TOPICS = {"revisions": REVISIONS, "exit-codes": exit_codes(), "environment": ENVIRONMENT}


@weft_command("help")
@click.argument("topic", nargs=-1)
@click.option("--all", "all_commands", is_flag=True, help="List every command.")
@click.pass_context
def help_command(ctx: click.Context, call: Call, topic: tuple[str, ...], all_commands: bool) -> None:
    """Explain a command or a topic.

    Topics: revisions, exit-codes, environment. A command of a group is named as it is typed: `weft help agent run`.
    """
    if all_commands and topic:
        raise click.UsageError(f"--all lists every command; name {' '.join(topic)!r} without it")
    root = ctx.find_root()
    root.meta[ALL_COMMANDS] = all_commands
    text = _help_text(root, topic)
    if call.json:
        call.document(HelpText(topic=" ".join(topic) or None, text=text))
    else:
        click.echo(text)


def _help_text(root: click.Context, topic: tuple[str, ...]) -> str:
    """The help of a command, or of a command of a group; a topic; without words what `weft --help` shows."""
    if len(topic) == 1 and topic[0] in TOPICS:
        return TOPICS[topic[0]]
    context = root
    for word in (*MOVED.get(topic[0], topic[:1]), *topic[1:]) if topic else ():
        group = context.command
        named_command = group.get_command(context, word) if isinstance(group, click.Group) else None
        if named_command is None:
            raise click.UsageError(_unknown_topic(context, word), ctx=context)
        context = click.Context(named_command, parent=context, info_name=word)
    return context.get_help()


def _unknown_topic(context: click.Context, word: str) -> str:
    group = context.command
    if not isinstance(group, click.Group):
        return f"`{context.command_path}` has no commands of its own"
    is_root = context.parent is None
    names = [*group.list_commands(context), *(TOPICS if is_root else ())]
    near = get_close_matches(word, names)
    return (
        (f"there is no command or topic {word!r}" if is_root else f"{context.command_path} has no command {word!r}")
        + (f"; did you mean {' or '.join(near)}?" if near else "")
        + (f"; topics are {', '.join(TOPICS)}" if is_root and not near else "")
    )


# --- `weft completion`: what a shell needs to complete commands, options and sessions.

SHELLS = ("bash", "zsh", "fish")


@weft_command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion_command(ctx: click.Context, call: Call, shell: str) -> None:
    """Print the completion script of a shell.

    For bash add `eval "$(weft completion bash)"` to ~/.bashrc; for zsh the same with zsh to ~/.zshrc; for fish write
    the output to ~/.config/fish/completions/weft.fish.

    It completes commands, options, files and the labels of sessions. A name is completed as one word that the shell
    does not expand, whatever stands in it.
    """
    from click.shell_completion import get_completion_class

    register_shells()
    script_class = get_completion_class(shell)
    assert script_class is not None, "click completes for every shell of the choice"
    script = script_class(ctx.find_root().command, {}, "weft", COMPLETION_VARIABLE).source()
    if call.json:
        call.document(ShellScript(shell=shell, script=script))
    else:
        click.echo(script)


# --- What shells run to complete a line, and what they are answered.

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


# --- An option that a command does not have: the one of its own that was meant, or other commands that have it.

NAMED = 3
"""So many commands that have the option are named."""


def explained(error: click.NoSuchOption, groups: Mapping[str, Mapping[str, str]]) -> click.UsageError:
    """The same error in words that help; `groups` has the names of all commands, under what they are for."""
    if error.ctx is None:
        return error
    name, ctx = error.option_name, error.ctx
    message = f"{ctx.command_path} has no option {name!r}"
    if near := _near_options(ctx.command, name):
        message += f"; did you mean {' or '.join(near)}?"
    elif others := _commands_with(ctx, name, groups):
        owners = [f"`weft {shell_line((*other.split(), name))}`" for other in others]
        *first, last = owners
        message += f"; {', '.join(first)} and {last} have it" if first else f"; {last} has it"
    return click.NoSuchOption(name, message, ctx=ctx)


def _near_options(command: click.Command, name: str) -> list[str]:
    """Compared without their dashes, which make any two short ones look alike."""
    bare = {option.lstrip("-"): option for option in _long_options(command)}
    return [bare[match] for match in get_close_matches(name.lstrip("-"), bare)]


def _long_options(command: click.Command) -> Iterator[str]:
    for param in command.params:
        if isinstance(param, click.Option) and not param.hidden:
            yield from (option for option in (*param.opts, *param.secondary_opts) if option.startswith("--"))


def _commands_with(ctx: click.Context, name: str, groups: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The first commands that have the very option, those for the same purpose before all others."""
    root = ctx.find_root()
    if not name.startswith("--") or not isinstance(root.command, click.Group):
        return []
    words = ctx.command_path.split()
    alike = [group for group in groups.values() if len(words) > 1 and words[1] in group]
    names = dict.fromkeys(command for group in (*alike, *groups.values()) for command in group)
    owners = (other for command in names for other in _owners(root.command.get_command(root, command), command, name))
    return [other for other, _ in zip(owners, range(NAMED), strict=False)]


def _owners(command: click.Command | None, path: str, option: str) -> Iterator[str]:
    if command is None:
        return
    if option in _long_options(command):
        yield path
    for name, verb in command.commands.items() if isinstance(command, click.Group) else ():
        yield from _owners(verb, f"{path} {name}", option)
