"""What a conversation says of itself: how it begins, what an answer took, what went wrong and who must act."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from weft.kernel.errors import OutsideError, WeftError
from weft.kernel.events import Usage
from weft.runtime.replies import TurnReply
from weft.surfaces.cli.chat.models import EMBEDDED, ModelChoice
from weft.surfaces.cli.chat.readiness import Vendor
from weft.surfaces.cli.chat.typed_input import COMMANDS
from weft.surfaces.cli.history import short
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.wire.hints import phrase

HINT = "/help lists the commands. Ctrl-C stops an answer, Ctrl-D leaves."
TINY = (
    "A tiny model that comes with weft for trying things out, not for work. `weft model get --list` names better ones."
)
MILLION = 1_000_000
TITLE_CHARACTERS = 40
"""So much of a title stands in a prompt."""
_ID = re.compile(r"[0-9a-f]{8}(-?[0-9a-f]{4,12}){0,6}|[0-9A-HJKMNP-TV-Z]{26}|(session|ses|agent)[-_][0-9A-Za-z]{8,}")
"""Labels that no person typed."""


def greeting(
    label: str, is_new: bool, choice: ModelChoice, keys: Sequence[tuple[Vendor, str]], fetched: Sequence[str] = ()
) -> Iterator[Line]:
    yield ["session ", Span(label, "label"), " (new)" if is_new else "", ", answered by ", *who(choice)]
    if choice.name == EMBEDDED:
        yield [Span(TINY, "dim")]
        for name in fetched:
            yield [Span(f"{name} is on this machine: /model {name} uses it", "dim")]
    for vendor, variable in keys:
        if choice.settings.provider.id != vendor.kind.value:
            yield [Span(f"a key is in ${variable}: /model {vendor.kind.value} uses it", "dim")]
    yield [Span(HINT, "dim")]


def prompt_name(label: str, title: str | None, shortened: str) -> str:
    """What a session is called where somebody types: a label that is an id stands behind the title, shortened."""
    if title is None or not _ID.fullmatch(label):
        return label
    words = " ".join(title.split())
    if len(words) > TITLE_CHARACTERS:
        words = words[:TITLE_CHARACTERS].rpartition(" ")[0] or words[:TITLE_CHARACTERS]
        words += "…"
    return f"{words} ({shortened})"


def who(choice: ModelChoice) -> Line:
    return [Span(choice.settings.name, "assistant"), Span(f" ({choice.about})", "dim")]


def help_lines() -> Iterator[Line]:
    for name, (takes, what) in COMMANDS.items():
        yield [Span(f"/{name} {takes}".ljust(18), "label"), what]
    yield ['A line that ends with \\ goes on in the next one; """ begins and ends a text of several lines.']
    yield ["A message that begins with a slash is written with two."]


def footer(sent: TurnReply) -> str:
    """`m-1, 20 tokens in, 5 out, 1.2 s, 6X2ZK4PD`; with its cost, unless it is free or nobody knows it."""
    reply = sent.reply
    figures = [reply.model, *_tokens(reply.usage), f"{reply.latency_ms / 1000:.1f} s"]
    if reply.cost:
        figures.append(f"${reply.cost / MILLION:.4f}")
    if reply.finish != "stop":
        figures.append(f"ended by {reply.finish}")
    return ", ".join([*figures, short(sent.turn.id)])


def _tokens(usage: Usage | None) -> list[str]:
    if usage is None:
        return ["tokens not reported"]
    read = [usage.input_tokens, usage.cached_input_tokens, usage.cache_write_tokens]
    written = usage.output_tokens if isinstance(usage.output_tokens, int) else 0
    return [f"{sum(count for count in read if isinstance(count, int)):,} tokens in", f"{written:,} out"]


def failure(error: WeftError) -> Iterator[Line]:
    """What went wrong, who must act, and what to do."""
    yield [Span(str(error), "bad")]
    if isinstance(error, OutsideError):
        yield [f"{error.acts} must act" if error.acts != "us" else "a fault of weft", f": {phrase(error.advice)}"]
    elif error.hint:
        yield ["hint: ", phrase(error.advice)]
