"""Tool calls of a page, folded: what was asked, what it changed in files, what came back."""

from __future__ import annotations

from html import escape
from typing import Any

from weft.exchange.edits.changes import FileChange
from weft.exchange.exporters.captions import (
    DOT,
    call_changes,
    call_facts,
    counted,
    on_one_line,
    other_arguments,
    visible,
)
from weft.exchange.exporters.html.texts import preformatted, shown
from weft.exchange.exporters.images import image_note, is_web_address, raster_in
from weft.exchange.exporters.results import Image, as_json, pieces_of, result_text
from weft.ledger.model import ToolCall

LONGEST_LINE_CHARS = 160
SIGNS = {"+": "add", "-": "remove", "@": "hunk"}


def folded(kind: str, about: str, body: str) -> str:
    return f'<details class="block {kind}"><summary>{about}</summary>{body}</details>\n'


def line_of(text: str) -> str:
    """The beginning of a text on one line, escaped."""
    line = on_one_line(text[: 4 * LONGEST_LINE_CHARS])
    return escape(line if len(line) <= LONGEST_LINE_CHARS else f"{line[:LONGEST_LINE_CHARS]}…")


def call_piece(call: ToolCall) -> str:
    changes = call_changes(call)
    rest = other_arguments(call, changes)
    body = "".join(_diff(change) for change in changes)
    if rest not in (None, {}, ""):
        body += value_piece(rest)
    if call.error is not None:
        body += f"<h4>Error</h4>{preformatted(call.error)}"
    if call.result is not None:
        body += f"<h4>Result</h4>{output_piece(call.result)}"
    kind = "call" if call.outcome == "ok" else "call failed" if call.outcome == "error" else "call open"
    return folded(kind, f"{shown(call.name)} {_lead(call, changes)}{_facts(call)}", body)


def _lead(call: ToolCall, changes: list[FileChange]) -> str:
    """What matters of a call, on one line."""
    if changes:
        first = changes[0]
        text = f"{first.path or ''} {first.counts}" if len(changes) == 1 else counted(len(changes), "file")
    elif isinstance(call.arguments, dict):
        text = next((value for value in call.arguments.values() if isinstance(value, str) and value.strip()), "")
    else:
        text = result_text(call.arguments)
    line = line_of(text)
    return f"<code>{line}</code>" if line else ""


def _facts(call: ToolCall) -> str:
    facts = call_facts(call)
    return f" <small>{escape(DOT.join(facts))}</small>" if facts else ""


def value_piece(value: Any) -> str:
    return preformatted(value if isinstance(value, str) else as_json(value), "arguments")


def output_piece(value: Any) -> str:
    return "".join(
        image_piece(piece.url) if isinstance(piece, Image) else preformatted(piece) for piece in pieces_of(value)
    )


def _diff(change: FileChange) -> str:
    lines = [f'<span class="{SIGNS.get(line[:1], "same")}">{shown(line)}\n</span>' for line in change.lines]
    path = f"<h4>{shown(change.path)} <small>{change.counts}</small></h4>" if change.path else ""
    return f'{path}<pre class="diff">{"".join(lines)}</pre>'


def image_piece(url: str) -> str:
    raster = raster_in(url)
    if raster is not None:
        return f'<p><img alt="image" src="data:{raster.media_type};base64,{raster.base64}"></p>\n'
    if is_web_address(url) and url == visible(url):
        link = f'<a href="{escape(url)}" rel="noopener noreferrer nofollow" target="_blank">{shown(url)}</a>'
        return f'<p class="note">image, not fetched: {link}</p>\n'
    return f'<p class="note">{shown(image_note(url))}</p>\n'
