"""What turns hold, made ready for any form.

- What people read beside the words themselves: who spoke, what is known of a turn or a call, where
branches leave.
- What tools gave back, as pieces of text and images; which images are safe to embed; a bound on the
cells of tables.
- Turns as the APIs of models want them: every tool call in an assistant's message, every result
right after it.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Struct

from weft.exchange.exporters.port import Story
from weft.exchange.file_changes import NEW, OLD, PATCHES, PATHS, WRITTEN, FileChange, changes_of, opened
from weft.kernel.clock import iso_from_ms
from weft.kernel.contents import showable
from weft.kernel.enums import TurnStatus, TurnType
from weft.ledger.api import BranchPoint, FullTurn, Item, TurnRange
from weft.ledger.model import (
    FileNote,
    Message,
    Part,
    TextPart,
    ToolCall,
    ToolResultPart,
    ToolUsePart,
    Turn,
    other_server,
)

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock


# --- A bound on the cells of all tables of a Markdown text, for every parser that reads a message.

MOST_CELLS = 20_000
_COUNT = "table cells"
"""Where a parser's environment, one for each text, has the number of cells so far."""


class TooManyCells(ValueError):
    """The tables of a text have more cells than are rendered."""


def with_bounded_tables(parser: MarkdownIt, limit: int = MOST_CELLS) -> MarkdownIt:
    """The same parser; the tables of a text have no more cells than `limit` together."""
    parser.block.ruler.at("table", partial(bounded_table, limit=limit), {"alt": ["paragraph", "reference"]})
    return parser


def bounded_table(state: StateBlock, start: int, end: int, silent: bool, limit: int = MOST_CELLS) -> bool:
    """The rule for a table; no more than one row beyond the bound is parsed."""
    from markdown_it.rules_block.table import getLine, table

    is_table = table(state, start, end, True)
    if silent or not is_table:
        return is_table
    columns = sum("-" in cell for cell in getLine(state, start + 1).split("|"))
    most_cells = min(limit, len(state.src))
    most_rows = (most_cells - state.env.get(_COUNT, 0)) // columns
    if most_rows > 0:
        table(state, start, min(end, start + 2 + most_rows), False)
    rows = state.line - start - 1
    if most_rows <= 0 or rows > most_rows:
        raise TooManyCells(f"more than {most_cells:,} cells in the tables of a text")
    state.env[_COUNT] = state.env.get(_COUNT, 0) + rows * columns
    return True


# --- Images in messages and results: which of them are safe to embed, and what stands for the others.

_DATA = re.compile(r"data:image/(\w+);base64,", re.IGNORECASE)
_BEGINNINGS = {
    "png": (b"\x89PNG\r\n\x1a\n",),
    "jpeg": (b"\xff\xd8\xff",),
    "gif": (b"GIF87a", b"GIF89a"),
    "webp": (b"RIFF",),
    "bmp": (b"BM",),
}
_SUFFIXES = {"jpeg": ".jpg"}
SHOWN = 80


class RasterImage(Struct, frozen=True):
    """An image of pixels, by its format and its bytes."""

    format: str
    data: bytes

    @property
    def media_type(self) -> str:
        return f"image/{self.format}"

    @property
    def suffix(self) -> str:
        return _SUFFIXES.get(self.format, f".{self.format}")

    @property
    def base64(self) -> str:
        return base64.b64encode(self.data).decode()


def raster_in(url: str) -> RasterImage | None:
    """The pixels in a `data:` address; None where it is another address, another format, or not what it says."""
    match = _DATA.match(url)
    if match is None:
        return None
    name = match[1].lower()
    name = "jpeg" if name == "jpg" else name
    try:
        data = base64.b64decode("".join(url[match.end() :].split()), validate=True)
    except (binascii.Error, ValueError):
        return None
    if not data.startswith(_BEGINNINGS.get(name, ())) or (name == "webp" and data[8:12] != b"WEBP"):
        return None
    return RasterImage(name, data)


def is_web_address(url: str) -> bool:
    return re.fullmatch(r"https?://[^\s<>\"'`\\\x00-\x20]+", url, re.IGNORECASE) is not None


def image_note(url: str) -> str:
    """What stands where an image cannot."""
    if url.lower().startswith("data:"):
        kind = url[5:SHOWN].partition(",")[0].partition(";")[0]
        return f"[image: {kind or 'of no type'}, {len(url):,} letters]"
    return f"[image: {url[:SHOWN]}{'…' if len(url) > SHOWN else ''}]"


def image_address(block: dict[str, Any]) -> str | None:
    """The address of an image in any of the ways that providers write one in a tool's result."""
    if "image" not in str(block.get("type")):
        return None
    source = block.get("source", block)
    if isinstance(source, dict) and isinstance(data := source.get("data"), str):
        kind = source.get("media_type") or source.get("mimeType") or source.get("mime_type")
        return f"data:{kind};base64,{data}" if isinstance(kind, str) else None
    for holder in (block, source):
        for name in ("image_url", "url"):
            url = holder.get(name) if isinstance(holder, dict) else None
            url = url.get("url") if isinstance(url, dict) else url
            if isinstance(url, str):
                return url
    return None


# --- What a tool gave back, as pieces of text and images; and values as JSON that is fit to read.

DEEPEST = 300


class ExportedImage(Struct, frozen=True):
    """An image of a tool's result."""

    url: str


def result_contents(value: Any) -> Iterator[str | ExportedImage]:
    """A text as it is; a list of a provider's blocks one by one; anything else as JSON."""
    if value is None:
        return
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and value and all(isinstance(block, dict) and "type" in block for block in value):
        for block in value:
            yield _block_content(block)
    else:
        yield as_json(value)


def _block_content(block: dict[str, Any]) -> str | ExportedImage:
    if block["type"] == "text" and isinstance(text := block.get("text"), str):
        return text
    url = image_address(block)
    return as_json(block) if url is None else ExportedImage(url)


def result_text(value: Any) -> str:
    """The same as one text, with a note for each image."""
    return "\n".join(
        content if isinstance(content, str) else image_note(content.url) for content in result_contents(value)
    )


def as_json(value: Any) -> str:
    """A value as people read it; where it is nested out of all proportion, on one line."""
    try:
        return showable(json.dumps(value, ensure_ascii=False, indent=None if is_deep(value) else 2))
    except RecursionError:
        return "(nested too deep to be shown)"


def is_deep(value: Any) -> bool:
    """Is it nested deeper than a ledger keeps values? Texts that tools hand over as arguments may be."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


def json_line(value: Any) -> bytes:
    """One JSON value on one line, exactly: lone surrogates and integers of any size are kept, as JSON can."""
    import orjson

    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


# --- What people read beside the words themselves: who spoke, what is known of a turn or a call, where branches leave.

UNKNOWN_MODELS = (None, "", "unknown", "none")
ROLES = {"user": "User", "assistant": "Assistant", "system": "System", "tool": "Tool"}
DOT = " · "
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f]")
_MORE_CONTROLS = re.compile(r"[\x7f-\x9f]")
_HIDDEN = (
    r"\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0"
    r"\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""What has no shape of its own, or turns the direction of what follows: marks of direction, fillers, tags."""
_JOINERS, _VARIANTS = r"\u200c\u200d", r"\ufe00-\ufe0f"
_UNSEEN = re.compile(rf"[{_HIDDEN}]|(?<![^\x00-\x7f{_HIDDEN}{_JOINERS}{_VARIANTS}])[{_VARIANTS}](?!\u20e3)")
"""Hidden characters, and selectors of variants that neither follow a sign beyond ASCII nor belong to a keycap."""
_JOINING_NOTHING = re.compile(rf"(?<![^\x00-\x7f{_JOINERS}])[{_JOINERS}]|[{_JOINERS}](?![^\x00-\x7f{_JOINERS}])")
"""Joiners anywhere but between two signs beyond ASCII, where emoji and some scripts have them."""


def visible(text: str) -> str:
    """Lines as every reader sees them: colours of a terminal are gone, other control characters are drawn, and
    characters that hide or reorder text are written as escapes such as `\\u202e`. Twice is the same as once."""
    text = _COLOURS.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    text = _MORE_CONTROLS.sub("\ufffd", _CONTROLS.sub(lambda found: chr(0x2400 + ord(found[0])), showable(text)))
    return text if text.isascii() else _JOINING_NOTHING.sub(_escape, _UNSEEN.sub(_escape, text))


def _escape(unseen: re.Match[str]) -> str:
    return unseen[0].encode("unicode_escape").decode()


def on_one_line(text: str) -> str:
    return " ".join(visible(text).split())


def model_of(turn: Turn) -> str | None:
    return None if turn.model in UNKNOWN_MODELS else turn.model


def turn_facts(full_turn: FullTurn) -> list[str]:
    """What is known of a turn, and what is known not to be."""
    turn = full_turn.turn
    facts = [
        full_turn.session or "",
        moment(turn.started_at) if turn.time_known else "time unknown",
        model_of(turn) or "",
    ]
    if isinstance(turn.usage.total_tokens, int):
        facts.append(counted(turn.usage.total_tokens, "token"))
    facts.append(state_of(turn) or "")
    if not turn.is_current:
        facts.append("superseded by another version")
    if full_turn.shown is not None:
        facts.append(f"only its first {counted(full_turn.shown, 'event')}")
    return [on_one_line(fact) for fact in facts if fact]


def state_of(turn: Turn) -> str | None:
    """What sets a turn apart from one that was simply completed."""
    if turn.status == TurnStatus.FAILED:
        return "failed"
    if turn.interruption_reason is not None:
        return f"interrupted ({turn.interruption_reason})"
    if turn.status != TurnStatus.COMPLETED:
        return "not finished"
    return "compaction" if turn.turn_type == TurnType.COMPACTION else None


def error_of(turn: Turn) -> str | None:
    if turn.error is None:
        return None
    return turn.error if turn.error_code in (None, "error") else f"{turn.error_code}: {turn.error}"


def speaker(message: Message, turn: Turn) -> str:
    facts = [ROLES.get(message.role, message.role)]
    if message.source not in (None, "human"):
        facts.append(str(message.source))
    if message.model not in (*UNKNOWN_MODELS, turn.model):
        facts.append(str(message.model))
    if message.substituted is not UNSET:
        facts.append("substituted")
    return DOT.join(facts)


def call_facts(call: ToolCall) -> list[str]:
    facts = [{None: "no result yet", "ok": ""}.get(call.outcome, call.outcome or "")]
    if call.error_code not in (None, call.outcome):
        facts.append(str(call.error_code))
    if call.completed_at is not None and call.completed_at > call.started_at:
        facts.append(duration(call.completed_at - call.started_at))
    if (server := other_server(call.server, call.name)) is not None:
        facts.append(f"on {server}")
    if call.spawned_session:
        facts.append(f"started {call.spawned_session}")
    if call.substituted is not UNSET:
        facts.append("result substituted")
    return [on_one_line(fact) for fact in facts if fact]


def call_changes(call: ToolCall) -> list[FileChange]:
    """What a call changed in files, as it tells itself; nothing where what it tells has no such shape."""
    try:
        return changes_of(opened(call.arguments), call.metadata)
    except (AttributeError, TypeError, ValueError):  # a stranger's shape that looks like a patch and is none
        return []


def other_arguments(call: ToolCall, changes: list[FileChange]) -> Any:
    """The arguments that a change does not tell already."""
    arguments = opened(call.arguments)
    if changes and isinstance(arguments, dict):
        change_arguments = {*OLD, *NEW, *WRITTEN, *PATCHES, *PATHS, "edits"}
        return {name: value for name, value in arguments.items() if name not in change_arguments}
    return None if changes else arguments


def file_text(note: FileNote) -> str:
    lines = "" if note.line_start is None else f":{note.line_start}"
    if note.line_end is not None and note.line_end != note.line_start:
        lines += f"-{note.line_end}"
    return f"{note.kind} {note.path}{lines}"


def branch_text(branch: BranchPoint) -> str:
    words = [branch.link or "", branch.session or "", branch.subject[:120]]
    if branch.after_events is not None:
        words.append(f"from inside the turn, after {counted(branch.after_events, 'event')}")
    return on_one_line(DOT.join(word for word in words if word))


def goes_on(thread_range: TurnRange, before: TurnRange | None) -> bool:
    """Does it simply go on where the range before it ends?"""
    return before is not None and thread_range.parent == before.number and thread_range.leaves == before.last


def next_of(story: Story, thread_range: TurnRange) -> str | None:
    """The turn that the page goes on with after a range's last, where it belongs to the same thread."""
    after = story.thread_ranges[thread_range.number + 1 : thread_range.number + 2]
    return after[0].first if after and goes_on(after[0], thread_range) else None


def headed(thread_range: TurnRange, before: TurnRange | None) -> bool:
    """Does a range need words before it? What simply goes on does not, unless inside a turn or in another chain."""
    return not goes_on(thread_range, before) or thread_range.after_events is not None or thread_range.link is not None


def is_one_thread(story: Story) -> bool:
    pairs = zip(story.thread_ranges[1:], story.thread_ranges, strict=False)
    return all(goes_on(thread_range, before) for thread_range, before in pairs)


def moment(ms: int) -> str:
    return iso_from_ms(ms)[:19].replace("T", " ") + " UTC"


def duration(ms: int) -> str:
    return f"{ms} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


# --- Turns as the APIs of models want to see them: every tool call in an assistant's message, every result right after
# it.

INTERRUPTED = "interrupted"
NAME_LENGTH = 64
_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_OURS = re.compile(r"weft_\d+")
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")


class ApiMessage(Struct):
    """A message for an API."""

    role: str
    parts: list[Part]
    message: Message | None = None
    """The recorded one, where there is one."""


class ExportCallIds:
    """Ids of calls, each once in an export: the origin's own where it can stand, else one of ours.

    Of every id that was given a bit is remembered, in a table that never grows. Two ids may share one; then the later
    gets a name of ours too, which does no harm.
    """

    BITS = 2**23

    def __init__(self) -> None:
        self._seen, self._new_ids = bytearray(self.BITS // 8), 0

    def claim_id(self, native: str) -> str:
        if _ID.fullmatch(native) and not _OURS.fullmatch(native) and not self._note_seen(native):
            return native
        self._new_ids += 1
        return f"weft_{self._new_ids}"

    def _note_seen(self, native: str) -> bool:
        place = int.from_bytes(sha256(native.encode()).digest()[:4], "big") % self.BITS
        byte, bit = place // 8, 1 << place % 8
        was_seen = bool(self._seen[byte] & bit)
        self._seen[byte] |= bit
        return was_seen


def tool_name(name: str) -> str:
    """A tool's name in the letters that APIs take."""
    return _NO_NAME.sub("_", name)[:NAME_LENGTH] or "tool"


def tool_input(value: Any) -> dict[str, Any]:
    """A call's arguments as the object that APIs want."""
    arguments = opened(value)
    if isinstance(arguments, dict) and not is_deep(arguments):
        return arguments
    return {} if arguments is None else {"input": value}


def dialogues(turns: Iterable[FullTurn], ids: ExportCallIds) -> Iterator[tuple[FullTurn, Iterator[ApiMessage]]]:
    """Each turn with its messages, to be walked before the next one."""
    ahead: Counter[str] = Counter()
    before: FullTurn | None = None
    for turn in turns:
        if before is not None:
            yield before, _Dialogue(before.items, ids, turn.items, ahead).spoken(before.items)
        before = turn
    if before is not None:
        yield before, _Dialogue(before.items, ids, (), ahead).spoken(before.items)


class _Dialogue:
    def __init__(
        self, items: Sequence[Item], ids: ExportCallIds, following: Sequence[Item], ahead: Counter[str]
    ) -> None:
        """`following` are the items of the next turn; `ahead` counts results that were moved out of a turn before it
        was walked, by the id of their call."""
        self._ids, self._ahead = ids, ahead
        self._later: dict[str, deque[ToolResultPart]] = {}
        for part in _leading_results(following):
            self._later.setdefault(part.tool_call_id, deque()).append(part)
        self._calls: dict[str, deque[ToolCall]] = {}
        self._results: dict[str, deque[ToolResultPart]] = {}
        self._spelled = Counter(use.id for use in _uses(items))
        for item in items:
            if isinstance(item, ToolCall):
                self._calls.setdefault(item.call_id, deque()).append(item)
        self._gather(items)
        self._asking: ApiMessage | None = None
        self._answers: list[Part] = []

    def _gather(self, items: Sequence[Item]) -> None:
        """The results that will be moved to their calls; there may be more of them than calls."""
        call_counts = self._spelled | Counter({id: len(calls) for id, calls in self._calls.items()})
        for part in _result_parts(items, ToolResultPart):
            results = self._results.setdefault(part.tool_call_id, deque())
            if len(results) < call_counts[part.tool_call_id]:
                results.append(part)
        self._moved = Counter({id: len(results) for id, results in self._results.items()})

    def spoken(self, items: Sequence[Item]) -> Iterator[ApiMessage]:
        for item in items:
            if isinstance(item, ToolCall):
                self._ask_for_call(item)
            elif item.role == "assistant" and item.sequence < 0 and self._asking is not None:
                self._asking.parts += self._assistant(item)  # it stands for calls of the message before it
            elif item.role == "assistant":
                yield from self._flush_asking()
                self._asking = ApiMessage("assistant", [*self._assistant(item)], item)
            else:
                yield from self._flush_asking()
                parts = [self._plain(part) for part in item.content if not self._is_moved(part)]
                if parts or not item.content:
                    yield ApiMessage("user" if item.role == "tool" else item.role, parts, item)
        yield from self._flush_asking()

    def _flush_asking(self) -> Iterator[ApiMessage]:
        """The assistant's message that was waiting for its calls, and what they gave back."""
        if self._asking is not None:
            yield self._asking
        if self._answers:
            yield ApiMessage("tool", self._answers)
        self._asking, self._answers = None, []

    def _ask_for_call(self, call: ToolCall) -> None:
        """A call that no message spells out joins the assistant's message before it."""
        if self._spelled[call.call_id]:
            self._spelled[call.call_id] -= 1
            return
        if self._asking is None:
            self._asking = ApiMessage("assistant", [])
        self._asking.parts.append(self._use(ToolUsePart(call.call_id, call.name, call.arguments)))

    def _assistant(self, message: Message) -> Iterator[Part]:
        for part in message.content:
            if isinstance(part, ToolUsePart):
                yield self._use(part)
            elif not self._is_moved(part):
                yield self._plain(part, uses=False)

    def _use(self, part: ToolUsePart) -> ToolUsePart:
        id = self._ids.claim_id(part.id)
        self._answers.append(self._answer(part.id, id))
        return ToolUsePart(id, tool_name(part.name), tool_input(part.input))

    def _answer(self, native: str, id: str) -> ToolResultPart:
        calls, results = self._calls.get(native), self._results.get(native)
        call = calls.popleft() if calls else None
        if results:
            part = results.popleft()
            return ToolResultPart(id, part.output, part.is_error)
        if call is None and (later := self._later.get(native)):
            self._ahead[native] += 1
            part = later.popleft()
            return ToolResultPart(id, part.output, part.is_error)
        if call is None or call.outcome in (None, INTERRUPTED):
            return ToolResultPart(id, INTERRUPTED, True)
        if call.outcome == "ok":
            return ToolResultPart(id, call.result)
        return ToolResultPart(id, call.error if call.result is None else call.result, True)

    def _is_moved(self, part: Part) -> bool:
        if not isinstance(part, ToolResultPart):
            return False
        moved = self._ahead if self._ahead[part.tool_call_id] else self._moved
        if not moved[part.tool_call_id]:
            return False
        moved[part.tool_call_id] -= 1
        return True

    @staticmethod
    def _plain(part: Part, *, uses: bool = True) -> Part:
        """A part that may stand in any message."""
        if isinstance(part, ToolResultPart):
            return TextPart(f"[result of tool call {part.tool_call_id}]\n{result_text(part.output)}")
        if uses and isinstance(part, ToolUsePart):
            return TextPart(f"[tool call {part.id}: {part.name}]\n{as_json(part.input)}")
        return part


def _uses(items: Iterable[Item]) -> Iterator[ToolUsePart]:
    answers = [item for item in items if isinstance(item, Message) and item.role == "assistant"]
    return (part for message in answers for part in message.content if isinstance(part, ToolUsePart))


def _result_parts(items: Iterable[Item], kind: type[ToolResultPart]) -> Iterator[ToolResultPart]:
    messages = (item for item in items if isinstance(item, Message))
    return (part for message in messages for part in message.content if isinstance(part, kind))


def _leading_results(items: Iterable[Item]) -> Iterator[ToolResultPart]:
    """Results that a turn begins with."""
    for item in items:
        if not isinstance(item, Message) or item.role not in ("tool", "system"):
            return
        yield from (part for part in item.content if isinstance(part, ToolResultPart))


def is_failed(part: ToolResultPart) -> bool:
    return part.is_error is not UNSET and part.is_error is True
