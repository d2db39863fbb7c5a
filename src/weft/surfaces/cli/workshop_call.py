"""Commands that invoke programs: the ledger opened for asynchronous work, in the name of whoever is at the terminal."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.plain_text import TAB, safe
from weft.surfaces.cli.screen import Line, Span

if TYPE_CHECKING:
    from weft.kernel.errors import WeftError
    from weft.programs import Programs
    from weft.runtime.context import ExecutionContext
    from weft.runtime.inference.replies import ReplyToken
    from weft.runtime.invoke.invocation import Invocation, InvocationContext, InvocationResult

T = TypeVar("T")


def invoked(call: Call, actor: str, name: str, given: Invocation, *, stream: bool = False) -> InvocationResult:
    """Invoke a program, and with `stream` show a model's answer as it comes."""
    from weft.runtime.invoke.handlers import invoke

    shown = ReplyStream(call) if stream else None
    try:
        return at_work(
            call, actor, lambda shop: invoke(shop, name, given), on_token=None if shown is None else shown.token
        )
    finally:
        if shown is not None:
            shown.end()


def at_work(
    call: Call,
    actor: str,
    work: Callable[[InvocationContext], Awaitable[T]],
    *,
    on_token: Callable[[ReplyToken], None] | None = None,
) -> T:
    import asyncio

    return asyncio.run(_at_work(call, actor, work, on_token))


async def _at_work(
    call: Call,
    actor: str,
    work: Callable[[InvocationContext], Awaitable[T]],
    on_token: Callable[[ReplyToken], None] | None,
) -> T:
    from weft.aio.crossing import Pool
    from weft.aio.ledger import AsyncLedger
    from weft.programs import Programs
    from weft.runtime.inference.inference import Inference
    from weft.runtime.invoke.invocation import InvocationContext

    ledger, pool = call.writing(), Pool()
    try:
        acting = ledger.acting_as(actor)
        programs = Programs(acting)
        async with Inference(on_retry=lambda *failed: tell_of_try(call, *failed)) as inference:
            shop = InvocationContext(
                AsyncLedger(acting, pool),
                programs,
                pool,
                inference,
                variable=os.environ.get,
                context=acting_for(programs, actor),
                on_token=on_token,
                show=lambda name, text: _show(call, name, text),
            )
            return await work(shop)
    finally:
        await pool.close(ledger.close)


def tell_of_try(call: Call, error: WeftError, model: str, wait: float) -> None:
    """A provider that fails can take minutes: whoever waits is told why."""
    call.note(f"{error}; {model} is asked {f'again in {wait:.1f} s' if wait else 'next'}")


def acting_for(programs: Programs, actor: str) -> ExecutionContext:
    """The person at the terminal, and on their behalf whoever `--as` names."""
    from weft.kernel.authority import Principal, PrincipalKind
    from weft.ledger.model import DEFAULT_AGENT
    from weft.runtime.invoke.models_and_sessions import agent_context
    from weft.surfaces.cli.acting import person_acting

    person = person_acting()
    if actor == DEFAULT_AGENT:
        return person
    found = programs.get(actor, "human", "agent")
    if found.kind == "agent":
        return agent_context(person, found)
    return person.delegate(Principal(PrincipalKind.HUMAN, found.name))


def _show(call: Call, name: str, text: str) -> None:
    """What a person is told stands beside the answer."""
    call.note(Span(f"to {name}: ", "label"), text)


class ReplyStream:
    """A reply as it comes, on standard output; under `--json` the whole answer comes at the end instead."""

    def __init__(self, call: Call) -> None:
        self._call, self._attempt, self._begun = call, 1, False

    def token(self, token: ReplyToken) -> None:
        if self._call.json or token.kind != "text":
            return
        if token.attempt != self._attempt and self._begun:
            click.echo()
            self._call.note("the reply broke off and begins anew")
        self._attempt, self._begun = token.attempt, True
        lines = token.text.replace("\t", TAB).split("\n")
        click.echo("\n".join(map(safe, lines)), nl=False)

    def end(self) -> None:
        if self._begun:
            click.echo()


def answer_invoked(call: Call, found: InvocationResult, *, shown: bool = False) -> None:
    """The outcome of an invocation: text as it was said, anything else as JSON."""
    value = {"program": found.program, "programType": found.kind, "result": found.result}
    call.answer(value, *([] if shown else _lines(found.result)))


def _lines(result: Any) -> list[Line]:
    from weft.surfaces.cli.shapes import document

    if isinstance(result, dict) and isinstance(result.get("text"), str):
        result = result["text"]
    text = result if isinstance(result, str) else document(result, indent=True)
    return [[line] for line in text.split("\n")]
