"""A replay as it goes: which models it runs with and whether these have a price, what
becomes of calls without a recorded result, and what people read of it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

import click
import msgspec

from weft.kernel.clock import SystemClock
from weft.programs import Programs
from weft.runtime.assembly.turn_configuration import LayerReader, TurnRequest
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import ensure_priced
from weft.runtime.recorded_threads import NamedCall
from weft.runtime.thread_replay import RunTool, SkipTurn, StopReplay, UseResult
from weft.surfaces.cli.chat.models import other_models
from weft.surfaces.cli.programs.program_call import acting_person, json_or_text
from weft.surfaces.cli.progress import counted, dollar_text
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.turn_lists import short
from weft.surfaces.plain_text import cut_at_word, safe

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.ledger.model import ToolUsePart
    from weft.runtime.inference.model_requests import ModelSettings
    from weft.runtime.recorded_threads import Divergence, RecordedExchange, ReplaySpending
    from weft.runtime.thread_replay import (
        MissingAnswer,
        PolicyReplay,
        PolicyReplayReport,
        ReplayReport,
        ThreadRange,
        ThreadReplay,
    )
    from weft.surfaces.cli.command_line import Call


# --- Which models a replay will ask, looked up before anything is recorded or paid for.


def ensure_models(
    call: Call, ledger: Ledger, threads: Sequence[ThreadRange], name: str | None, *, has_budget: bool
) -> None:
    """Refuse a name that is no model's. Where there is a budget of money, refuse also models without a price: that of
    the name, or those that the threads are replayed with where there is none."""
    programs = Programs(ledger)
    models: list[ModelSettings] = []
    if name is not None:
        configured = other_models(programs, os.environ.get)(name, None, acting_person(call, programs))
        models += [] if configured is None else [configured.model]
    elif has_budget:
        models += _configured_models(call, programs, threads)
    now = SystemClock().now_ms()
    for model in models if has_budget else ():
        ensure_priced(model, now)


def _configured_models(call: Call, programs: Programs, threads: Sequence[ThreadRange]) -> list[ModelSettings]:
    """The models of new sessions of the agents of these threads, or of forks where only some of their turns are
    replayed."""
    ledger, acting = programs.ledger, acting_person(call, programs)
    reader = LayerReader(programs, Inference(), os.environ.get, acting, other_models(programs, os.environ.get))
    agents = {(ledger.turn(ledger.point(thread.last).turn_id).persona_id, thread.after) for thread in threads}
    requests = [TurnRequest(persona=agent, parent=after) for agent, after in agents]
    return [reader.configuration(request).require_model() for request in requests]


# --- What becomes of a replayed call that has no recorded result: as the options say, or as the person at the terminal
# answers.

CHOICES = "give its [r]esult, go on with the [n]ext turn, or [s]top? "
RESULT = "the result, as JSON or text: "
READ_BYTES = 65_536


class MissingMode(StrEnum):
    STOP = "stop"
    SKIP = "skip"
    ASK = "ask"
    RUN = "run"


class MissingResults:
    """Settles calls in one way; `file` is where a person types."""

    def __init__(self, mode: MissingMode, file: int) -> None:
        self._mode, self._file, self._typed = mode, file, b""

    async def settle(self, exchange: RecordedExchange, use: ToolUsePart) -> MissingAnswer:
        """See `OnMissing`."""
        match self._mode:
            case MissingMode.STOP:
                return StopReplay()
            case MissingMode.SKIP:
                return SkipTurn()
            case MissingMode.RUN:
                return RunTool()
            case MissingMode.ASK:
                return await self._ask_for_answer(exchange, use)

    async def _ask_for_answer(self, exchange: RecordedExchange, use: ToolUsePart) -> MissingAnswer:
        """Who types no answer stops the replay."""
        wanted = call_text(NamedCall(name=use.name, arguments=use.input))
        click.echo(f"turn {exchange.turn}: no result is recorded of {wanted}", err=True)
        while True:
            match await self._typed_line(CHOICES):
                case "r":
                    result = await self._typed_line(RESULT)
                    return StopReplay() if result is None else UseResult(json_or_text(result))
                case "n":
                    return SkipTurn()
                case "s" | None:
                    return StopReplay()

    async def _typed_line(self, question: str) -> str | None:
        """The next line that is typed; None where nothing more comes."""
        click.echo(question, nl=False, err=True)
        while b"\n" not in self._typed:
            await self._on_readable()
            data = os.read(self._file, READ_BYTES)
            if not data:
                return None
            self._typed += data
        line, _, self._typed = self._typed.partition(b"\n")
        return line.decode(errors="replace").strip()

    async def _on_readable(self) -> None:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._file, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._file)


# --- What people read of threads that were run again: the first divergence, both costs side by side, a table of many.

STYLES = {"same": "good", "diverged": "warn", "stopped": "warn", "failed": "bad", "empty": "dim"}
HEADER = ("thread", "outcome", "exchanges", "first divergence", "recorded", "replayed", "replay")
SPENDING_HEADER = ("", "recorded", "replayed")
POLICY_HEADER = ("thread", "calls", "otherwise", "first")
QUOTED_COLUMNS = 160


def show_replays(call: Call, report: ReplayReport) -> None:
    if len(report.threads) == 1:
        for line in thread_lines(report.threads[0]):
            call.screen.show(*line)
    else:
        rows = [_thread_row(thread) for thread in report.threads]
        call.screen.table(rows, HEADER, numbers=("recorded", "replayed"), spare=("replay", "exchanges"))
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(report.outcomes.items()))
        call.screen.show(f"{counted(len(report.threads), 'thread')}: {outcomes}")
    call.screen.table(
        list(_spending_rows(report.recorded_spending, report.replayed_spending)),
        SPENDING_HEADER,
        numbers=SPENDING_HEADER[1:],
    )


def _thread_row(thread: ThreadReplay) -> list[Span | str]:
    first = thread.first_call or thread.first
    return [
        Span(thread.recorded_session or short(thread.thread), "label"),
        Span(thread.outcome, STYLES[thread.outcome]),
        f"{len(thread.exchanges)}/{thread.recorded}",
        "" if first is None else f"{short(first.turn)} {_divergence_words(first)}",
        cost_text(thread.recorded_spending),
        cost_text(thread.replayed_spending),
        Span(thread.session or "", "label"),
    ]


def thread_lines(thread: ThreadReplay) -> Iterator[Line]:
    """One thread: where it stands now, how it ended, the first divergence."""
    name = thread.recorded_session or short(thread.thread)
    if thread.session is None:
        yield [Span(name, "label"), " has no question with an answer: nothing was replayed"]
        return
    yield [Span(name, "label"), " was replayed in ", Span(thread.session, "label"), _models(thread)]
    done = f"{len(thread.exchanges)} of {counted(thread.recorded, 'exchange')}"
    yield [Span(thread.outcome, STYLES[thread.outcome]), f": {done} replayed"]
    if thread.unasked:
        yield [Span(f"left out: {counted(thread.unasked, 'answer')} and calls that nobody asked for", "dim")]
    last = thread.exchanges[-1]
    if last.missing is not None:
        yield ["it stopped at a call that has no recorded result: ", Span(call_text(last.missing), "warn")]
    if last.error is not None:
        yield [Span(safe(last.error), "bad")]
    if thread.first is not None:
        yield from _divergence_lines("first divergence", thread.first)
    if thread.first_call is not None and thread.first_call is not thread.first:
        yield from _divergence_lines("first divergence of calls", thread.first_call)


def _models(thread: ThreadReplay) -> str:
    recorded, replayed = (", ".join(names) for names in (thread.recorded_models, thread.models))
    return safe(f" by {replayed}" + (f" in place of {recorded}" if recorded else "")) if replayed else ""


def _divergence_lines(title: str, divergence: Divergence) -> Iterator[Line]:
    yield [f"{title}: turn ", Span(divergence.turn, "id"), f", answer {divergence.answer}: {divergence.kind}"]
    yield ["  ", Span("- ", "bad"), _answer_text(divergence.recorded_text, divergence.recorded_calls)]
    yield ["  ", Span("+ ", "good"), _answer_text(divergence.replayed_text, divergence.replayed_calls)]


def _divergence_words(divergence: Divergence) -> str:
    """In a table: the kind, and the first call that came where calls differ."""
    recorded = set(map(call_text, divergence.recorded_calls))
    others = [text for text in map(call_text, divergence.replayed_calls) if text not in recorded]
    return f"{divergence.kind}: {others[0]}" if others else str(divergence.kind)


def _answer_text(text: str | None, calls: tuple[NamedCall, ...]) -> str:
    if text is None:
        return "(no answer)"
    words = [cut_at_word(safe(" ".join(text.split())), QUOTED_COLUMNS)] if text.strip() else []
    return "; ".join([*words, *map(call_text, calls)]) or "(an empty answer)"


def call_text(call: NamedCall) -> str:
    arguments = msgspec.json.encode(call.arguments).decode()
    return safe(f"{call.name} {cut_at_word(arguments, QUOTED_COLUMNS)}")


def _spending_rows(recorded: ReplaySpending, replayed: ReplaySpending) -> Iterator[list[Span | str]]:
    for name, field in (("answers", "answers"), ("tool calls", "calls"), ("tokens in", "input_tokens")):
        yield [name, *(_count_text(getattr(spending, field)) for spending in (recorded, replayed))]
    yield ["tokens out", _count_text(recorded.output_tokens), _count_text(replayed.output_tokens)]
    yield ["cost", cost_text(recorded), cost_text(replayed)]


def _count_text(count: int | None) -> str:
    return "?" if count is None else f"{count:,}"


def cost_text(spending: ReplaySpending) -> str:
    """With `+` where the cost of some answers is not known, `?` where that of none is."""
    if spending.cost is None:
        return "?" if spending.answers else ""
    return dollar_text(spending.cost) + ("+" if spending.unpriced else "")


def show_policy_replays(call: Call, report: PolicyReplayReport) -> None:
    if len(report.threads) > 1:
        call.screen.table(
            [_policy_row(thread) for thread in report.threads], POLICY_HEADER, numbers=("calls", "otherwise")
        )
    for thread in report.threads if len(report.threads) == 1 else ():
        for line in _policy_lines(thread):
            call.screen.show(*line)
    call.screen.show(
        f"{report.policy} would decide otherwise about {report.changed:,} of {counted(report.calls, 'recorded call')}"
    )


def _policy_row(thread: PolicyReplay) -> list[Span | str]:
    first = thread.first
    words = "" if first is None else f"{short(first.turn)} {first.before} to {first.after}: {safe(first.name)}"
    name = Span(thread.recorded_session or short(thread.thread), "label")
    return [name, str(thread.calls), str(thread.changed), words]


def _policy_lines(thread: PolicyReplay) -> Iterator[Line]:
    first = thread.first
    if first is None:
        return
    from weft.runtime.recorded_threads import NamedCall

    yield [
        "the first: turn ",
        Span(first.turn, "id"),
        ", ",
        call_text(NamedCall(name=first.name, arguments=first.arguments)),
    ]
    whose = "recorded" if first.is_recorded else "by the policies in force"
    yield ["  ", Span("- ", "bad"), f"{first.before} ({whose})"]
    yield ["  ", Span("+ ", "good"), f"{first.after}: {safe(first.rationale)}"]
