"""One turn of a page: what was said, calls folded with what they changed, and where branches leave."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from weft.exchange.edits.changes import FileChange
from weft.exchange.exporters.captions import (
    DOT,
    branch_text,
    call_changes,
    call_facts,
    counted,
    error_of,
    file_text,
    on_one_line,
    other_arguments,
    speaker,
    state_of,
    turn_facts,
)
from weft.exchange.exporters.html.texts import preformatted, rendered, shown
from weft.exchange.exporters.images import image_note, is_web_address, raster_in
from weft.exchange.exporters.port import Report, Thinking, Wishes
from weft.exchange.exporters.results import Image, as_json, pieces_of, result_text
from weft.kernel.clock import iso_from_ms
from weft.ledger.api import BranchPoint, FullTurn
from weft.ledger.model import ImagePart, Message, Part, ReasoningPart, TextPart, ToolCall, ToolResultPart, ToolUsePart

LINE = 160
BRANCHES = 50
ROLES = ("user", "assistant", "system", "tool")
SIGNS = {"+": "add", "-": "remove", "@": "hunk"}


class TurnPieces:
    """Writes turns as the pieces of a page."""

    def __init__(self, wishes: Wishes, report: Report) -> None:
        self._wishes, self._report = wishes, report
        self._anchored: set[str] = set()

    def _anchor(self, turn: str) -> str:
        """The id of a turn's piece. A context can show parts of one turn in two places: the first has the id."""
        if turn in self._anchored:
            return ""
        self._anchored.add(turn)
        return f' id="t-{escape(turn)}"'

    def turn(self, told: FullTurn, next_turn: str | None) -> Iterator[str]:
        turn = told.turn
        state = " troubled" if state_of(turn) not in (None, "compaction") else ""
        yield f'<article class="turn{state}"{self._anchor(turn.id)} data-depth="{turn.depth}">\n<header><h3>'
        yield f'<a href="#t-{escape(turn.id)}">Turn {turn.depth}</a></h3>'
        moment = f' title="{iso_from_ms(turn.started_at)}"' if turn.time_known else ""
        yield f"<p{moment}>{escape(DOT.join(turn_facts(told)))} <code>{escape(turn.id)}</code></p></header>\n"
        if turn.error is not None:
            yield f'<div class="block error">{preformatted(error_of(turn) or "")}</div>\n'
        if told.summary is not None:
            yield _block("summary", "Summary of what came before", rendered(told.summary.summary))
        yield from self._items(told)
        yield from _branches([branch for branch in told.branches if branch.turn_id != next_turn])
        yield "</article>\n"

    def _items(self, told: FullTurn) -> Iterator[str]:
        called = {item.call_id for item in told.items if isinstance(item, ToolCall)}
        for item in told.items:
            if isinstance(item, Message):
                yield self._message(told, item, called)
            else:
                yield self._call(item)

    def _message(self, told: FullTurn, message: Message, called: set[str]) -> str:
        parts = [part for part in message.content if not (isinstance(part, ToolUsePart) and part.id in called)]
        body = "".join(self._part(part) for part in parts)
        notes = told.files.get(message.id, ())
        if notes:
            body += '<ul class="files">' + "".join(f"<li>{shown(file_text(note))}</li>" for note in notes) + "</ul>"
        if not body and message.content:
            return ""
        role = message.role if message.role in ROLES else "other"
        who = speaker(message, told.turn)
        if role == "system":
            return _folded("message system", escape(who), body)
        return _block(f"message {role}", who, body)

    def _part(self, part: Part) -> str:
        match part:
            case TextPart():
                return f'<div class="text" dir="auto">{rendered(str(part.text))}</div>\n'
            case ReasoningPart():
                return self._thinking(str(part.text))
            case ImagePart():
                return _image(str(part.url))
            case ToolUsePart():
                return self._tool("call", f"{shown(part.name)} <small>{shown(part.id)}</small>", _valued(part.input))
            case ToolResultPart():
                failed = " failed" if part.is_error is True else ""
                about = f"Result <small>{shown(part.tool_call_id)}</small>"
                return self._tool(f"call{failed}", about, _output(part.output))

    def _thinking(self, text: str) -> str:
        if self._wishes.thinking is Thinking.NONE:
            self._report.left_out["thinking"] += 1
            return ""
        return _folded("thinking", "Thinking", f'<div class="text" dir="auto">{rendered(text)}</div>')

    def _tool(self, kind: str, about: str, body: str) -> str:
        """A use or a result that stands in a message by itself."""
        if not self._wishes.tools:
            self._report.left_out["part of a tool call"] += 1
            return ""
        return _folded(kind, about, body)

    def _call(self, call: ToolCall) -> str:
        if not self._wishes.tools:
            self._report.left_out["tool call"] += 1
            return ""
        changes = call_changes(call)
        rest = other_arguments(call, changes)
        body = "".join(_diff(change) for change in changes)
        if rest not in (None, {}, ""):
            body += _valued(rest)
        if call.error is not None:
            body += f"<h4>Error</h4>{preformatted(call.error)}"
        if call.result is not None:
            body += f"<h4>Result</h4>{_output(call.result)}"
        kind = "call" if call.outcome == "ok" else "call failed" if call.outcome == "error" else "call open"
        return _folded(kind, f"{shown(call.name)} {_lead(call, changes)}{_facts(call)}", body)


def _block(kind: str, who: str, body: str) -> str:
    return f'<section class="block {kind}"><h4>{shown(who)}</h4>{body}</section>\n'


def _folded(kind: str, about: str, body: str) -> str:
    return f'<details class="block {kind}"><summary>{about}</summary>{body}</details>\n'


def _lead(call: ToolCall, changes: list[FileChange]) -> str:
    """What matters of a call, on one line."""
    if changes:
        first = changes[0]
        text = f"{first.path or ''} {first.counts}" if len(changes) == 1 else counted(len(changes), "file")
    elif isinstance(call.arguments, dict):
        text = next((value for value in call.arguments.values() if isinstance(value, str) and value.strip()), "")
    else:
        text = result_text(call.arguments)
    line = on_one_line(text[: 4 * LINE])
    return f"<code>{escape(line[:LINE])}{'…' if len(line) > LINE else ''}</code>" if line else ""


def _facts(call: ToolCall) -> str:
    facts = call_facts(call)
    return f" <small>{escape(DOT.join(facts))}</small>" if facts else ""


def _valued(value: Any) -> str:
    return preformatted(value if isinstance(value, str) else as_json(value), "arguments")


def _output(value: Any) -> str:
    made = [_image(piece.url) if isinstance(piece, Image) else preformatted(piece) for piece in pieces_of(value)]
    return "".join(made)


def _diff(change: FileChange) -> str:
    lines = [f'<span class="{SIGNS.get(line[:1], "same")}">{shown(line)}\n</span>' for line in change.lines]
    path = f"<h4>{shown(change.path)} <small>{change.counts}</small></h4>" if change.path else ""
    return f'{path}<pre class="diff">{"".join(lines)}</pre>'


def _image(url: str) -> str:
    raster = raster_in(url)
    if raster is not None:
        return f'<p><img alt="image" src="data:{raster.media_type};base64,{raster.base64}"></p>\n'
    if is_web_address(url):
        link = f'<a href="{escape(url)}" rel="noopener noreferrer nofollow" target="_blank">{shown(url)}</a>'
        return f'<p class="note">image, not fetched: {link}</p>\n'
    return f'<p class="note">{shown(image_note(url))}</p>\n'


def _branches(branches: list[BranchPoint]) -> Iterator[str]:
    if not branches:
        return
    leave = "1 other branch leaves here" if len(branches) == 1 else f"{len(branches):,} other branches leave here"
    yield f'<nav class="branches" aria-label="Branches"><h4>{leave}</h4><ul>\n'
    for branch in branches[:BRANCHES]:
        words = escape(branch_text(branch)) or "(no text)"
        if branch.strand is not None:
            yield f'<li><a href="#t-{escape(branch.turn_id)}">{words}</a></li>\n'
        else:
            yield f"<li>{words} <small>not in this page: <code>{escape(branch.turn_id)}</code></small></li>\n"
    if more := branches[BRANCHES:]:
        yield f"<li>and {len(more):,} more</li>\n"
    yield "</ul></nav>\n"
