"""One turn of a page: what was said, steps between it in groups that unfold, and where branches leave.

What a person typed is shown letter by letter. Passages of it that a tool put there are folded and say so.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from msgspec.structs import replace

from weft.exchange.exporters.captions import (
    DOT,
    branch_text,
    counted,
    error_of,
    file_text,
    model_of,
    moment,
    on_one_line,
    speaker,
    state_of,
    turn_facts,
)
from weft.exchange.exporters.html.calls import call_piece, folded, image_piece, line_of, output_piece, value_piece
from weft.exchange.exporters.html.texts import preformatted, rendered, shown, typed
from weft.exchange.exporters.port import Report, Thinking, Wishes
from weft.kernel.clock import iso_from_ms
from weft.ledger.api import BranchPoint, FullTurn, StepGroup, is_from_tool, message_passages, sections, typed_command
from weft.ledger.model import ImagePart, Message, Part, ReasoningPart, TextPart, ToolCall, ToolResultPart, ToolUsePart
from weft.ledger.read.session_list import first_line, spoken

BRANCHES_LISTED = 50
ROLES = ("user", "assistant", "system", "tool")
SENDERS = {
    "agent": "Sent by another agent",
    "cron": "Sent by a schedule",
    "webhook": "Sent by a webhook",
    "event": "Put in by the tool, not typed",
    "trigger": "Put in by a hook, not typed",
}
"""Who sent a message in the user's place, by its source."""
FILES_UNFOLDED = 5
"""More notes of files are folded."""
SMALLEST_GROUP_STEPS = 2
"""Fewer steps stand by themselves."""


class TurnPieces:
    """Writes turns as the pieces of a page. Labels that the turn before has too are left out."""

    def __init__(self, wishes: Wishes, report: Report, session: str | None = None) -> None:
        """`session`: the label that the page's header names."""
        self._wishes, self._report, self._session = wishes, report, session
        self._anchored: set[str] = set()
        self._before: FullTurn | None = None
        self._speaker: str | None = ""
        """Who spoke last in this turn; null: nobody is named, inside a group of steps."""
        self._noted: set[str] = set()
        """The messages of this turn whose notes of files are written."""

    def begin_strand(self) -> None:
        """The next turn says everything about itself."""
        self._before = None

    def turn(self, full_turn: FullTurn, next_turn: str | None) -> Iterator[str]:
        turn = full_turn.turn
        state = " troubled" if state_of(turn) not in (None, "compaction") else ""
        yield f'<article class="turn{state}"{self._anchor(turn.id)} data-depth="{turn.depth}">\n<header><h3>'
        yield f'<a href="#t-{escape(turn.id)}" title="{escape(turn.id)}">Turn {turn.depth}</a></h3>'
        when = f' title="{iso_from_ms(turn.started_at)}"' if turn.time_known else ""
        yield f"<p{when}>{escape(DOT.join(self._facts(full_turn)))}</p></header>\n"
        if turn.error is not None:
            yield f'<div class="block error">{preformatted(error_of(turn) or "")}</div>\n'
        if full_turn.summary is not None:
            yield _block("summary", "Summary of what came before", _text(full_turn.summary.summary))
        self._speaker, self._noted = "", set()
        yield from self._sections(full_turn)
        branches = [branch for branch in full_turn.branches if branch.turn_id != next_turn]
        yield from _branches(
            [replace(branch, session=None) if branch.session == full_turn.session else branch for branch in branches]
        )
        yield "</article>\n"
        self._before = full_turn

    def _anchor(self, turn: str) -> str:
        """The id of a turn's piece. A context can show parts of one turn in two places: the first has the id."""
        if turn in self._anchored:
            return ""
        self._anchored.add(turn)
        return f' id="t-{escape(turn)}"'

    def _facts(self, full_turn: FullTurn) -> list[str]:
        """Without the session, the day and the model that the turn before has too."""
        turn, before = full_turn.turn, self._before
        facts, repeated = turn_facts(full_turn), {self._session if before is None else before.session}
        if before is not None:
            repeated.add(model_of(before.turn))
            now = moment(turn.started_at)
            if turn.time_known and before.turn.time_known and moment(before.turn.started_at)[:10] == now[:10]:
                facts = [now[11:] if fact == now else fact for fact in facts]
        return [fact for fact in facts if fact not in {on_one_line(label) for label in repeated if label}]

    def _sections(self, full_turn: FullTurn) -> Iterator[str]:
        for section in sections(full_turn.items):
            if isinstance(section, StepGroup):
                yield self._group(full_turn, section)
            else:
                yield self._message(full_turn, section)
        for message in full_turn.files:
            yield self._files(full_turn, message)

    def _group(self, full_turn: FullTurn, group: StepGroup) -> str:
        """Steps in a fold; a single one, or what is left where steps are not wanted, as it is."""
        if not self._wishes.tools or group.tools.total() < SMALLEST_GROUP_STEPS:
            return "".join(self._steps(full_turn, group))
        speaker_before, self._speaker = self._speaker, None
        body = "".join(self._steps(full_turn, group))
        self._speaker = speaker_before
        hint = line_of(group.hint(thinking=self._wishes.thinking is not Thinking.NONE))
        about = shown(group.summary) + (f' <span class="hint" dir="auto">{hint}</span>' if hint else "")
        return folded("steps", about, body)

    def _steps(self, full_turn: FullTurn, group: StepGroup) -> Iterator[str]:
        for item in group.items:
            yield self._call(item) if isinstance(item, ToolCall) else self._message(full_turn, item)

    def _message(self, full_turn: FullTurn, message: Message) -> str:
        pieces = [piece for part in message.content for piece in self._part(message, part)]
        body = "".join(pieces) + self._files(full_turn, message.id)
        if all(piece.startswith("<details") for piece in pieces):  # each says itself what it is
            return body
        role = message.role if message.role in ROLES else "other"
        who = "System" if role == "system" else speaker(message, full_turn.turn)
        if role == "user":
            who = SENDERS.get(str(message.source), who)
        if role == "system" or is_from_tool(message):
            self._speaker = None if self._speaker is None else ""
            return folded(f"message {role} injected", _labelled(shown(who), spoken(message.text)), body)
        label = "" if self._speaker in (None, who) else who
        self._speaker = None if self._speaker is None else who
        return _block(f"message {role}", label, body)

    def _part(self, message: Message, part: Part) -> Iterator[str]:
        match part:
            case TextPart():
                yield from _text_pieces(message, str(part.text))
            case ReasoningPart():
                yield from self._thinking(str(part.text))
            case ImagePart():
                yield image_piece(str(part.url))
            case ToolUsePart():
                about = f"{shown(part.name)} <small>{shown(part.id)}</small>"
                yield from self._tool("call", about, value_piece(part.input))
            case ToolResultPart():
                failed = " failed" if part.is_error is True else ""
                about = f"Result <small>{shown(part.tool_call_id)}</small>"
                yield from self._tool(f"call{failed}", about, output_piece(part.output))

    def _thinking(self, text: str) -> Iterator[str]:
        if self._wishes.thinking is Thinking.NONE:
            self._report.left_out["thinking"] += 1
        elif text.strip():  # of hidden thinking only its signature is known
            yield folded("thinking", _labelled("Thinking", text), _text(text))

    def _tool(self, kind: str, about: str, body: str) -> Iterator[str]:
        """A use or a result that stands in a message by itself."""
        if self._wishes.tools:
            yield folded(kind, about, body)
        else:
            self._report.left_out["part of a tool call"] += 1

    def _call(self, call: ToolCall) -> str:
        if self._wishes.tools:
            return call_piece(call)
        self._report.left_out["tool call"] += 1
        return ""

    def _files(self, full_turn: FullTurn, message: str) -> str:
        """What a message notes of files, once; without those that a call of the turn names and shows."""
        if message not in full_turn.files or message in self._noted:
            return ""
        self._noted.add(message)
        named = _argument_texts(full_turn) if self._wishes.tools else frozenset()
        notes = [note for note in full_turn.files[message] if note.path not in named]
        if not notes:
            return ""
        lines = "".join(f"<li>{shown(file_text(note))}</li>" for note in notes)
        files = f'<ul class="files">{lines}</ul>\n'
        return folded("noted", f"Notes of {counted(len(notes), 'file')}", files) if notes[FILES_UNFOLDED:] else files


def _argument_texts(full_turn: FullTurn) -> frozenset[str]:
    calls = (item for item in full_turn.items if isinstance(item, ToolCall) and isinstance(item.arguments, dict))
    return frozenset(value for call in calls for value in call.arguments.values() if isinstance(value, str))


def _text_pieces(message: Message, text: str) -> Iterator[str]:
    """As typed, as a tool printed it, or rendered from Markdown."""
    if message.role == "user" and message.source in (None, "human"):
        yield from _typed_pieces(text)
    elif is_from_tool(message) and message_passages(text)[0].is_injected:
        yield preformatted(text)
    else:
        yield _text(text)


def _typed_pieces(text: str) -> Iterator[str]:
    """What a person typed, letter by letter, and in folds what a tool put around it."""
    if command := typed_command(text):
        yield typed(command)
        yield folded("injected", "As the tool recorded it", preformatted(text))
        return
    for passage in message_passages(text):
        if passage.is_injected:
            about = f"{SENDERS['event']} <code>{shown(passage.tag)}</code>"
            yield folded("injected", _labelled(about, spoken(passage.text)), preformatted(passage.text))
        else:
            yield typed(passage.text)


def _text(text: str) -> str:
    return f'<div class="text" dir="auto">{rendered(text)}</div>\n'


def _labelled(label: str, text: str) -> str:
    """A label with the first line of what it is about."""
    line = line_of(first_line(text))
    return f'{label} <span class="hint" dir="auto">{line}</span>' if line else label


def _block(kind: str, who: str, body: str) -> str:
    label = f"<h4>{shown(who)}</h4>" if who else ""
    return f'<section class="block {kind}">{label}{body}</section>\n'


def _branches(branches: list[BranchPoint]) -> Iterator[str]:
    if not branches:
        return
    leave = "1 other branch leaves here" if len(branches) == 1 else f"{len(branches):,} other branches leave here"
    yield f'<nav class="branches" aria-label="Branches"><h4>{leave}</h4><ul>\n'
    for branch in branches[:BRANCHES_LISTED]:
        words = escape(branch_text(branch)) or "(no text)"
        if branch.strand is not None:
            yield f'<li><a href="#t-{escape(branch.turn_id)}">{words}</a></li>\n'
        else:
            yield f"<li>{words} <small>not in this page: <code>{escape(branch.turn_id)}</code></small></li>\n"
    if more := branches[BRANCHES_LISTED:]:
        yield f"<li>and {len(more):,} more</li>\n"
    yield "</ul></nav>\n"
