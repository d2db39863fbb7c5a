"""One command line: find the command, load it alone, run it, and end with the exit code its error stands for."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import takewhile
from types import FrameType

import click

from weft import __version__
from weft.kernel.errors import WeftError, without_credentials
from weft.surfaces.cli.command_line import (
    ALL_COMMANDS,
    BUG,
    COMPLETION_VARIABLE,
    EXIT_CODES,
    INTERRUPTED,
    MOVED,
    OK,
    OWNER,
    Call,
    again_of,
    error_document,
    exit_code,
    hint_of,
    lines_of,
    shared_options,
    take_shared,
)
from weft.surfaces.plain_text import safe

COMMANDS = {
    "start": {
        "init": "Make a ledger in a folder, or as a file.",
        "import": "Import the sessions that other tools left behind.",
        "record": "Record a turn, from JSON or from options.",
        "compact": "Summarise a session's past, or switch between summaries.",
        "substitute": "Substitute what is shown of a message or a tool's result.",
    },
    "look": {
        "read": "Read a whole conversation: prompts and answers in full.",
        "log": "Show turns, the newest first.",
        "search": "Find messages and tool calls by their words.",
        "show": "Show one turn: messages, tool calls, usage.",
        "tree": "Show the whole tree that a turn belongs to.",
        "graph": "Ask what relates to what: turns, events, tools, resources, policies, forks.",
        "diff": "Show where two threads diverge, or how their files differ.",
        "bisect": "Find the first turn after which a check fails.",
        "context": "Show what an agent saw at a turn, or would see next.",
        "sessions": "List sessions and where they stand.",
        "story": "Show what was worked on in a period, project by project.",
        "projects": "List projects: sessions, agents, tokens and cost of each.",
        "reflog": "Show where a session has stood.",
        "files": "List the turns that read or wrote a file.",
        "blame": "Show which turn last wrote each line of a file.",
        "usage": "Show tokens and cost, by day, model, project and more.",
        "audit": "Show what agents used against what they were allowed.",
        "export": "Write threads as Markdown, HTML, JSON lines or message lists.",
        "stats": "Show how big the ledger is, and of what.",
    },
    "move": {
        "fork": "Start a new session at any turn.",
        "move": "Move a session's head to another turn.",
        "undo": "Take back the last turn of a session, and its files.",
        "checkout": "Bring back the files of a turn.",
        "restore": "Move a session back, or bring a deleted one back.",
        "rename": "Rename a session.",
        "alias": "Give a session a second name, or list such names.",
        "archive": "Archive a session; its turns stay.",
        "delete": "Delete a session's label; its turns stay.",
        "settle": "Settle a session that several ledgers moved: join its branches.",
    },
    "share": {
        "clone": "Make a new ledger with everything of another one.",
        "pull": "Bring in what another ledger has and this one lacks.",
        "push": "Send what this ledger has and another one lacks.",
        "pending": "Show what other ledgers decided, and take it over or refuse it.",
        "remote": "Manage remotes: other ledgers, remembered by a name.",
        "replica": "Show or change the id of this ledger among its copies.",
        "sync-stdio": "Serve a ledger over standard input and output.",
        "bundle": "Bundle threads into a file that others can verify.",
        "key": "Manage the keys that bundles are signed with, and trust others'.",
    },
    "carry": {
        "resume": "Write a session that another tool can resume, up to any turn.",
        "cherry-pick": "Apply turns of another branch to a session.",
        "summarize": "Tell a session what another branch found.",
        "merge": "Bring a branch back into a session: what it found, and its files.",
    },
    "work": {
        "provider": "Manage model providers: gateways, vendors, local servers.",
        "model": "Manage models: the provider's name of each, and its parameters.",
        "session": "Create sessions, send to them, pause, resume, unify and complete them.",
        "agent": "Create agents, give them tasks, and see what they are doing.",
        "toolset": "Manage toolsets: named lists of tools, each with a sandbox profile.",
        "tools": "List the tools that a turn of an agent or a session would have.",
        "task": "Create tasks, and complete them when their success criteria hold.",
        "trigger": "Manage triggers: messages sent by time, webhook, event or file.",
        "code": "Manage code programs, which agents can use as tools.",
        "info": "Manage information: checked against schemas, found by words, tags and paths.",
        "human": "Manage people: describe them, ask them, record their answers.",
        "policy": "Manage approval policies: propose, test, activate and roll back.",
        "program": "List, show, compare and retire programs of every kind.",
        "tag": "Tag nodes of any kind: programs, sessions, rooms, turns, messages, events, resources.",
        "nodes": "List everything that has a tag.",
        "embed": "Compute vectors of nodes, so that similar ones are found.",
        "similar": "Find nodes that mean nearly the same, the nearest first.",
        "route": "Find the thread that a text belongs to, and say why.",
        "embed-stats": "Show how many nodes have vectors, by model.",
        "apply": "Create and change programs as files say.",
        "resource": "Manage resources: folders, files, addresses, containers, and their snapshots.",
        "sandbox": "Run commands in the sandbox, as agents' tools do.",
        "config": "Show the effective configuration of a session's next turn.",
    },
    "keep": {
        "trust": "Manage trust in ledgers, in folders' rules and in folders for work.",
        "doctor": "Explain what is wrong with a ledger, and what to do.",
        "verify": "Check every fact, every view, and the kept files of turns.",
        "rebuild": "Rebuild every view from the facts.",
        "facts": "Export every fact as a JSON line, or import such lines.",
        "backup": "Copy the ledger while it is in use, with the files of turns.",
        "copy": "Copy a ledger to a new address, on any backend.",
        "recover": "Recover what was lost: a backup, or what still verifies.",
    },
    "forget": {
        "erase": "Erase contents for good; the record still verifies.",
        "secrets": "Find credentials in what was recorded, look at them, and erase them.",
        "pack": "Compress what is cold, or decompress it again.",
    },
    "ask": {
        "send": "Send a message to a session, an agent or a turn; show the answer.",
        "inbox": "List the messages that wait, and those that failed.",
        "broker": "Serve the messages of every session until stopped.",
        "serve": "Serve this ledger over HTTP until stopped.",
        "approvals": "List the tool calls that wait for approval.",
        "approve": "Approve a tool call that waits for a person.",
        "reject": "Reject a tool call that waits for a person.",
        "interrupt": "Interrupt the turn that runs in a session.",
        "retry": "Try a failed turn again.",
        "replay": "Replay a recorded thread with another model, prompt or policy.",
        "room": "Talk in rooms: people and agents together.",
        "chat": "Chat with a model; every exchange is a turn.",
        "follow": "Follow a session: its messages, turns and tools, and answers while they are written.",
        "token": "Manage tokens, by which other processes act for you, with less, until a time.",
        "credential": "Manage credentials: where keys are found.",
        "mcp": "Manage MCP servers, approve their tools, and serve this ledger as one.",
    },
    "help": {
        "completion": "Print the completion script of a shell.",
        "help": "Explain a command or a topic.",
    },
}
_MODULES = {
    "ledgers.ledger_copies": "init stats backup copy recover pack doctor verify rebuild",
    "ledgers.import_command": "import",
    "sessions.recording": "record compact substitute",
    "reading.read": "read",
    "reading.search": "search embed similar route embed-stats",
    "reading.turns": "log show tree diff context files blame",
    "reading.graph": "graph",
    "work.replay": "bisect replay",
    "sessions.sessions": "sessions reflog move restore rename alias archive delete settle session"
    " fork undo checkout cherry-pick summarize merge",
    "reading.reports": "story projects usage audit",
    "ledgers.exports": "export resume bundle",
    "ledgers.sync": "clone pull push pending remote replica sync-stdio facts",
    "trust_commands": "key trust token credential",
    "programs.programs": "provider model code info program tag nodes apply trigger",
    "programs.agents": "agent toolset tools config",
    "work.tasks": "task",
    "work.messages": "human inbox approvals approve reject interrupt follow",
    "programs.policies": "policy",
    "programs.resources": "resource sandbox",
    "ledgers.erasing": "erase secrets",
    "work.send": "send retry broker",
    "work.serve": "serve",
    "chat.chat": "chat room",
    "programs.mcp_servers": "mcp",
    "command_help": "completion help",
}
MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}
"""By command the module below `weft.surfaces.cli` that has it, as NAME_command, or that shows its verb's answer."""
OWNER_COMMANDS = frozenset("trust doctor recover copy credential key init clone sandbox".split())
"""Work on files of the person who runs them, or on a ledger as a file: in nobody else's name."""
COMMON = {
    "start": "init import chat".split(),
    "look": "sessions log read show search diff usage".split(),
    "go on": "send fork undo merge resume".split(),
    "run agents": "provider agent approve broker room".split(),
    "share": "clone pull export".split(),
    "keep": "trust verify backup".split(),
}
"""What `weft --help` shows, by what people want to do; `weft help --all` shows every command."""
COMMON_OPTIONS = frozenset({"ledger", "json", "actor", "version"})
SUMMARIES = {name: summary for group in COMMANDS.values() for name, summary in group.items()}


MEANT = {
    "commit": "record",
    "add": "record",
    "branch": "sessions or fork",
    "switch": "sessions or fork",
    "list": "sessions",
    "ls": "sessions",
    "status": "sessions or doctor",
    "history": "log",
    "grep": "search",
    "find": "search",
    "reset": "move",
    "revert": "undo",
    "rm": "delete",
    "remove": "delete",
    "ask": "send",
    "run": "agent run",
    "login": "credential",
    "sync": "pull or push",
}
"""What other tools call it, and the command of Weft that is meant."""
SENTENCE = "Version control for AI agents: every turn is a commit to verify and fork from."


class Commands(click.Group):
    """Knows every command by name and loads only the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUMMARIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in MODULE_OF:
            return None
        module = import_module(f"weft.surfaces.cli.{MODULE_OF[cmd_name]}")
        named_command: click.Command | None = getattr(module, f"{cmd_name.replace('-', '_')}_command", None)
        if named_command is None:
            from weft.surfaces.cli.verb_commands import command_named

            named_command = command_named(cmd_name)
        return named_command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        args = [*MOVED.get(args[0], args[:1]), *args[1:]]
        if args[0] not in SUMMARIES and not args[0].startswith("-") and not ctx.resilient_parsing:
            from difflib import get_close_matches

            meant = MEANT.get(args[0])
            near = meant.split(" or ") if meant else get_close_matches(args[0], SUMMARIES)
            ctx.fail(f"there is no command {args[0]!r}" + (f"; did you mean {' or '.join(near)}?" if near else ""))
        if args[0] in OWNER_COMMANDS:
            ctx.ensure_object(Call).ensure_owner(args[0])
        return super().resolve_command(ctx, args)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if ctx.meta.get(ALL_COMMANDS):
            super().format_help_text(ctx, formatter)
        else:
            formatter.write_paragraph()
            formatter.write_text(SENTENCE)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options, then the commands: click calls this for both."""
        if ctx.meta.get(ALL_COMMANDS):
            super().format_options(ctx, formatter)
            return
        shown = [option for option in self.get_params(ctx) if option.name in COMMON_OPTIONS]
        with formatter.section("Options"):
            formatter.write_dl([row for option in shown if (row := option.get_help_record(ctx))])
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups = {group: list(commands) for group, commands in COMMANDS.items()}
        for group, names in (groups if ctx.meta.get(ALL_COMMANDS) else COMMON).items():
            with formatter.section(group.capitalize()):
                formatter.write_dl([(name, SUMMARIES[name]) for name in names])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`--help` answers as soon as it is read: `--all` beside it counts in either order."""
        ctx.meta[ALL_COMMANDS] = "--all" in takewhile(lambda word: word.startswith("-"), args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        call = take_shared(ctx)
        if ctx.params.pop("version"):
            show_version(call)
            return OK
        call.act_as(ctx.params.pop("actor"), ctx.params.pop("token_file"))
        return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if ctx.meta.get(ALL_COMMANDS):
            with formatter.section("Exit codes"):
                formatter.write_dl([(str(code), meaning) for code, meaning in EXIT_CODES.items()])
        else:
            formatter.write_paragraph()
            formatter.write_text("`weft help --all` lists every command, `weft help COMMAND` explains one.")


def show_version(call: Call) -> None:
    if not call.json:
        click.echo(f"weft {__version__}")
        return
    from weft.surfaces.wire.forms import WIRE_VERSION
    from weft.verbs.program_answers import ProgramVersion

    call.document(ProgramVersion(version=__version__, wire_version=WIRE_VERSION))


@click.group(
    cls=Commands,
    invoke_without_command=True,
    params=shared_options(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--all", "all_commands", is_flag=True, hidden=True, help="With --help: list every command.")
@click.option("-V", "--version", is_flag=True, help="Show the version and exit.")
@click.option("--as", "actor", metavar="NAME", default=OWNER, help="Act as this person or agent of the ledger.")
@click.option(
    "--token-file",
    type=click.Path(),
    metavar="FILE",
    help="Act with the token in FILE, or in /dev/fd/N, and nothing more; else with WEFT_TOKEN.",
)
@click.pass_context
def weft(ctx: click.Context, all_commands: bool) -> None:
    """Version control for AI agents: every turn is a commit you can address, verify and fork from.

    A turn is named by a session's label (main), places relative to it (main~2, main@{1}, main@{yesterday}), the last
    6 letters or more of its id, or the first 7 digits or more of its digest. `weft help revisions` has the details.
    """
    if all_commands and ctx.invoked_subcommand is not None:
        raise click.UsageError(f"--all lists every command; name {ctx.invoked_subcommand!r} without it")
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run(arguments: Sequence[str]) -> int:
    """Run one command line and answer its exit code; errors are on stderr by then."""
    if COMPLETION_VARIABLE in os.environ:
        from weft.surfaces.cli.command_help import register_shells

        register_shells()
    try:
        ended = weft.main(list(arguments), prog_name="weft", standalone_mode=False)
        return ended if isinstance(ended, int) else OK
    except click.Abort:
        _report(KeyboardInterrupt("interrupted"), as_json="--json" in arguments)
        return INTERRUPTED
    except click.NoSuchOption as error:
        from weft.surfaces.cli.command_help import explained

        _report(explained(error, COMMANDS), as_json="--json" in arguments)
        return exit_code(error)
    except (WeftError, click.ClickException, OSError) as error:
        _report(error, as_json="--json" in arguments)
        return exit_code(error)
    except Exception as error:  # a fault of our own: it must not end with 1, which means that problems were found
        import traceback

        click.echo(without_credentials(traceback.format_exc()), err=True, nl=False)
        _report(error, as_json="--json" in arguments)
        return BUG


def _report(error: BaseException, *, as_json: bool) -> None:
    if as_json:
        from weft.surfaces.wire.forms import document, form

        click.echo(document(form(error_document(error))), err=True)
        return
    for line in lines_of(error):
        click.echo(line, err=True)
    if hint := hint_of(error):
        click.echo(f"hint: {safe(hint)}", err=True)
    if again := again_of(error):
        click.echo(f"hint: `{safe(again)}` asks again", err=True)


def main() -> int:
    """The command `weft`. A reader that goes away ends it quietly, as it ends any other tool of a pipe."""
    signal.signal(signal.SIGPIPE, _end_without_reader)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    return run(sys.argv[1:])


def _end_without_reader(signal_number: int, _: FrameType | None) -> None:
    """End by the signal where nobody reads the output any longer. Another pipe or connection that was closed is an
    error of whoever wrote to it: a check, a tool or a server that ends early does not end the program."""
    outputs = select.poll()
    for descriptor in (1, 2):
        outputs.register(descriptor, 0)
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in outputs.poll(0)):
        signal.signal(signal_number, signal.SIG_DFL)
        os.kill(os.getpid(), signal_number)
