"""`weft bisect`: the first turn after which a check fails."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from weft.kernel.errors import InvalidInput, NotApplicable, NotFound
from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.default_session import place_in_latest, require_named_or_latest
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.history import Reader, short
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.thread_turns import read_turn, thread_turns
from weft.surfaces.cli.turn_lines import one_line
from weft.surfaces.plain_text import safe

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.runtime.invoke.invocation import InvocationContext
    from weft.runtime.thread_bisection import BisectResult, BisectStep, Check, Checked

DEFAULT_SECONDS = 600.0
VERDICTS = {
    "good": Span("is good", "good"), "bad": Span("is bad", "bad"), "skip": Span("cannot be checked", "dim"),
}  # fmt: skip


@weft_command("bisect")
@arguments.rev(required=False)
@click.option(
    "--check", "check_line", metavar="CMD", help="A line for the shell: 0 is good, 125 skips, else it is bad."
)
@click.option("--model-check", "question", metavar="QUESTION", help="A model answers: yes is good, no is bad.")
@click.option("--model", metavar="NAME", help="With --model-check: which, as `weft chat --model` names it.")
@click.option("--restore", is_flag=True, help="With --check: run CMD in a folder with the files of each turn.")
@click.option("--good", metavar="REV", help="A turn that is good. Default: the first of the thread.")
@click.option("--bad", metavar="REV", help="A turn that is bad. Default: the last of the thread.")
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    default=DEFAULT_SECONDS,
    show_default=True,
    help="How long one check may take.",
)
def command(
    call: Call,
    rev: str | None,
    check_line: str | None,
    question: str | None,
    model: str | None,
    restore: bool,
    good: str | None,
    bad: str | None,
    timeout: float,
) -> None:
    """Find the first turn after which a check fails.

    REV is a session or a turn; without it, the latest session. CMD gets the thread up to a turn on standard input, as
    `weft read --json` prints it. The first turn must be good and the last bad: both are checked first. Then each check
    halves what is left.

    \b
    weft bisect main --check './still-green.sh'
    weft bisect main --model-check 'Does the agent still work on what was asked?'
    """
    if (check_line is None) == (question is None):
        raise click.UsageError("give one of --check and --model-check")
    if model is not None and question is None:
        raise click.UsageError("--model goes with --model-check")
    if restore and check_line is None:
        raise click.UsageError("--restore goes with --check")
    with call.reading() as ledger:
        thread = _ThreadDocuments(ledger, require_named_or_latest(call, ledger, rev))
        names = [None if end is None else ledger.resolve(place_in_latest(call, ledger, end)) for end in (good, bad)]
        thread.limit(*names)
        lines = _SearchLines(call, ledger, thread)
        if question is None:
            files = _FolderOfTurns(ledger, thread.turns) if restore else None
            result = _by_command(thread, str(check_line), timeout, lines.step, files)
        else:
            result = _by_model(call, thread, question, model, lines.step)
        if call.json:
            call.document(result)
        else:
            lines.end(result)


class _ThreadDocuments:
    """The turns of a thread, and the JSON of it up to any of them."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        from weft.surfaces.wire.forms import form

        full = list(thread_turns(ledger, name)[1])
        self._forms = [form(read_turn(turn)) for turn in full]
        self._turns = [turn.turn.id for turn in full]
        self._first, self._end = 0, len(full)

    def limit(self, good: str | None, bad: str | None) -> None:
        """Search only from a good turn to a bad one. Raises InvalidInput where they are no turns of the thread, in this
        order."""
        for turn in (good, bad):
            if turn is not None and turn not in self._turns:
                raise InvalidInput(f"turn {turn} is no turn of this thread", "name one that the thread goes through")
        self._first = 0 if good is None else self._turns.index(good)
        self._end = len(self._turns) if bad is None else self._turns.index(bad) + 1
        if self._end <= self._first:
            raise InvalidInput("the good turn comes after the bad one", "name a good turn before it")

    @property
    def turns(self) -> list[str]:
        return self._turns[self._first : self._end]

    def document(self, place: int) -> bytes:
        """All turns of the thread up to and with the one at a place of the search."""
        from weft.surfaces.wire.json_text import document

        return f"{document(self._forms[: self._first + place + 1], indent=False)}\n".encode()


class _SearchLines:
    """What people read while it is searched, and at the end."""

    def __init__(self, call: Call, ledger: Ledger, thread: _ThreadDocuments) -> None:
        self._call, self._ledger, self._thread = call, ledger, thread

    def step(self, step: BisectStep, left: int) -> None:
        remark = f" ({safe(step.remark)})" if step.remark else ""
        self._call.note(
            Span(short(step.turn), "id"), " ", VERDICTS[step.verdict], f"{remark}; {counted(left, 'turn')} left"
        )

    def end(self, result: BisectResult) -> None:
        screen, reader = self._call.screen, Reader(self._ledger)
        checks = f"{counted(len(result.steps), 'check')} of {counted(result.turns, 'turn')}"
        if result.first_bad is not None:
            screen.show(Span(short(result.first_bad), "id"), f" is the first bad turn ({checks})")
        else:
            screen.show(f"only turns are left that cannot be checked ({checks}); the first bad turn is one of")
        for turn in result.candidates:
            screen.show("  ", *one_line(self._ledger.turn(turn), reader, screen.columns - 2))


def _by_command(
    thread: _ThreadDocuments,
    line: str,
    seconds: float,
    on_step: Callable[[BisectStep, int], None],
    files: _FolderOfTurns | None,
) -> BisectResult:
    from weft.runtime.thread_bisection import bisect, command_check

    with files or nullcontext(Path.cwd()) as folder:
        check = command_check(line, thread.document, environment=os.environ, folder=folder, seconds=seconds)
        if files is not None:
            check = files.before(check)
        return asyncio.run(bisect(thread.turns, check, on_step))


class _FolderOfTurns:
    """A folder of its own that has the files of whichever turn is checked; it is removed at the end."""

    def __init__(self, ledger: Ledger, turns: list[str]) -> None:
        from weft.surfaces.cli.turn_files_call import turn_files

        self._files, self._turns = turn_files(ledger), turns
        self._folder = tempfile.TemporaryDirectory(prefix="weft-bisect-")

    def __enter__(self) -> Path:
        return Path(self._folder.name) / "files"

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def before(self, check: Check) -> Check:
        """The same check, after the files were brought back. A turn of which none are known cannot be checked."""

        async def restored(place: int) -> Checked:
            from weft.runtime.thread_bisection import CheckVerdict

            try:
                snapshot = self._files.snapshot_of(self._turns[place])
            except NotApplicable as error:
                return CheckVerdict.SKIP, str(error)
            await asyncio.to_thread(self._files.copy_into, snapshot, Path(self._folder.name) / "files")
            return await check(place)

        return restored


def _by_model(
    call: Call,
    thread: _ThreadDocuments,
    question: str,
    model: str | None,
    on_step: Callable[[BisectStep, int], None],
) -> BisectResult:
    from weft.runtime.thread_bisection import bisect, model_check
    from weft.surfaces.cli.program_call import with_invocations

    async def work(context: InvocationContext) -> BisectResult:
        check: Check = model_check(question, thread.document, _judge(context, model))
        return await bisect(thread.turns, check, on_step)

    return with_invocations(call, call.actor, work)


def _judge(context: InvocationContext, name: str | None) -> Callable[[str, str], Awaitable[str]]:
    """Asks a model by itself; every answer is a turn of the session `model:NAME`."""
    from weft.runtime.broker.broker import OutgoingMessage, invoke_model
    from weft.surfaces.cli.chat.models import other_models

    configured = other_models(context.programs, os.environ.get)(name, None, context.execution_context)
    if configured is None:
        raise NotFound("model", name or "the default one", "name another one")

    async def ask(prompt: str, thread: str) -> str:
        outgoing = OutgoingMessage(message=thread, model=configured.model, system=prompt)
        sent = await invoke_model(context.ledger, context.inference, outgoing, context=configured.context)
        return sent.reply.text

    return ask
