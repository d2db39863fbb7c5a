"""Messages of roles and blocks, as transcripts and stores have them, as turns: a prompt up to the next one.

Nothing in them has an id of its own, so a turn is known by its session and its place in it.

Prompts are wrapped for the model: the person's words in `<user_query>`, all else in tags around them.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import UNSET, Struct, field
from msgspec.structs import replace

from weft.exchange.importers.cursor.bubbles import SPAWNERS, plain_name, tool_files
from weft.exchange.importers.cursor.encodings import image_url, value_in_text
from weft.exchange.importers.port import Item, NativeCall, NativeCompaction, NativeMessage, NativeSession, NativeTurn
from weft.exchange.importers.records.values import canonical, mapping, present, sequence, text
from weft.kernel.enums import AgentRole, FileKind, MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import FileNote, ImagePart, Part, ReasoningPart, TextPart

QUERY = "user_query"
OPENED = re.compile(r"<([A-Za-z_][\w-]{0,60})(?:\s[^>\n]{0,400})?>")
CLOSED = re.compile(r"</([A-Za-z_][\w-]{0,60})>")
WORKSPACE = re.compile(r"^Workspace Path: (.+)$", re.MULTILINE)
TIME = re.compile(r"([A-Z][a-z]{2,8} \d{1,2}, \d{4}, \d{1,2}:\d\d [AP]M) \(UTC([+-]\d{1,2})?(?::(\d\d))?\)")
"""Such as `Sunday, Apr 26, 2026, 9:53 PM (UTC-4)`."""
FILE = re.compile(r"<(?:file|code_selection|file_contents)(?:\s[^<>\n]{0,400}?path=\"([^\"<\n]+)\"[^<>\n]*)?>([^<\n]*)")


class Prompt(Struct):
    """A prompt, unwrapped."""

    words: str
    context: dict[str, Any] = field(default_factory=dict)
    """By tag, what stands around them."""
    is_injected: bool = False
    """No person's words are in it."""
    at: int | None = None
    literal_time: str | None = None
    workspace: str | None = None
    paths: list[str] = field(default_factory=list)


def unwrapped_prompt(words: str) -> Prompt:
    tagged, rest = _without_tags(words, QUERY)
    queries = [_query(inside) for _, inside in tagged]
    context: dict[str, Any] = {}
    others, left = _without_tags(rest)
    for name, inside in others:
        context.setdefault(name, []).append(inside.strip())
    left = left.strip()
    if not queries and (left or not context):
        return Prompt(words)
    if left:
        context["text"] = [left]
    timestamp = "\n".join(context.get("timestamp", ()))
    path = WORKSPACE.search("\n".join(context.get("user_info", ())))
    return Prompt(
        words="\n\n".join(queries) if queries else words,
        context=context if queries else {},
        is_injected=not queries,
        at=_prompt_time(timestamp),
        literal_time=timestamp if timestamp and _prompt_time(timestamp) is None else None,
        workspace=path[1].strip() if path else None,
        paths=_attached_paths("\n".join(context.get("attached_files", ()))),
    )


def _without_tags(words: str, only: str | None = None) -> tuple[list[tuple[str, str]], str]:
    """What stands between tags of one name, with the name, and the text without it. A tag that is never closed is
    text. `only`: tags of this name, and without anything else in them."""
    ends: dict[str, deque[int]] = defaultdict(deque)
    for closing in CLOSED.finditer(words):
        ends[closing[1]].append(closing.start())
    tagged, left, done, at = [], [], 0, 0
    while (opening := OPENED.search(words, at)) is not None:
        name, places = opening[1], ends[opening[1]]
        while places and places[0] < opening.end():
            places.popleft()
        if not places or (only is not None and opening[0] != f"<{only}>"):
            at = opening.start() + 1
            continue
        tagged.append((name, words[opening.end() : places[0]]))
        left.append(words[done : opening.start()])
        done = at = places[0] + len(f"</{name}>")
    return tagged, "".join(left) + words[done:]


def _query(inside: str) -> str:
    """Without the white space and the line ends next to its tags."""
    words = inside.lstrip(" \t").removeprefix("\n")
    return words.rstrip(" \t").removesuffix("\n")


def _attached_paths(attached: str) -> list[str]:
    found = (path or words.strip() for path, words in FILE.findall(attached))
    return list(dict.fromkeys(path for path in found if path and len(path) < 1000))


def _prompt_time(words: str) -> int | None:
    """To the minute, as it was written, with its zone."""
    match = TIME.search(words)
    if match is None:
        return None
    for form in ("%b %d, %Y, %I:%M %p", "%B %d, %Y, %I:%M %p"):
        try:
            local = datetime.strptime(match[1], form).replace(tzinfo=UTC)
        except ValueError:
            continue
        hours, minutes = int(match[2] or 0), int(match[3] or 0)
        away = timedelta(hours=hours, minutes=-minutes if hours < 0 else minutes)
        return round((local - away).timestamp() * 1000)
    return None


CALLS = frozenset({"tool_use", "tool_call", "tool-call"})
RESULTS = frozenset({"tool_result", "tool-result"})
THOUGHTS = frozenset({"thinking", "reasoning", "redacted-reasoning", "redacted_thinking"})
NOT_RECORDED = {"outcome": "not recorded"}


class Message(Struct):
    """One message, with where it lies in its source."""

    role: str
    content: Any
    offset: int
    end: int
    fields: dict[str, Any] = field(default_factory=dict)
    """What stands beside its content."""

    @property
    def blocks(self) -> list[dict[str, Any]]:
        if isinstance(self.content, str):
            return [{"type": "text", "text": self.content}]
        listed = self.content if isinstance(self.content, list) else [self.content]
        return [{"type": "text", "text": each} if isinstance(each, str) else _block(each) for each in listed]


def _block(value: Any) -> dict[str, Any]:
    """A block; a kind that is no word is none."""
    block = mapping(value)
    return block if isinstance(block.get("type", ""), str) else {**block, "type": ""}


class Ending(Struct):
    """The turn under way is over, or something in it failed."""

    status: str
    offset: int
    end: int
    error: str | None = None
    closes: bool = True


TranscriptRecord = Message | Ending


class DialogueTurn(Struct):
    """A turn under way."""

    number: int
    """The place of its first message."""
    offset: int
    end: int = 0
    items: list[Item] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    is_prompted: bool = False
    is_ended: bool = False
    error: str | None = None
    interrupted: bool = False
    workspace: str | None = None
    summary: str | None = None


class Dialogue:
    """Makes the turns of one session while its messages are walked."""

    def __init__(self, session: NativeSession, identity: str | None, *, model: str | None = None) -> None:
        self._session, self._identity, self._model = session, identity, model
        self._dialogue_turn: DialogueTurn | None = None
        self._made = 0
        self._tag = 0

    def turns(self, records: Iterable[TranscriptRecord]) -> Iterator[NativeTurn]:
        for number, each in enumerate(records):
            if isinstance(each, Ending):
                self._end(number, each)
                continue
            prompt = self._prompt(each)
            if self._begins(each, prompt):
                if self._dialogue_turn is not None:
                    yield self._finished(is_last=False)
                self._dialogue_turn = DialogueTurn(number, each.offset)
            self._take(self._dialogue_turn or self._begun(number, each.offset), each, prompt)
        if self._dialogue_turn is not None:
            yield self._finished(is_last=True)

    def _begun(self, number: int, offset: int) -> DialogueTurn:
        self._dialogue_turn = DialogueTurn(number, offset)
        return self._dialogue_turn

    def _prompt(self, message: Message) -> Prompt | None:
        """None: it is no prompt, but an answer or the outcome of tools."""
        if message.role != "user":
            return None
        texts = [
            words for block in message.blocks if block.get("type") == "text" and (words := text(block.get("text")))
        ]
        pictured = any(block.get("type") in ("image", "file") for block in message.blocks)
        return unwrapped_prompt("\n".join(texts)) if texts or pictured else None

    def _begins(self, message: Message, prompt: Prompt | None) -> bool:
        """What is put before a prompt belongs to it; between a call and its answer, to the turn under way."""
        dialogue_turn = self._dialogue_turn
        if prompt is None or dialogue_turn is None:
            return False
        if is_summary(message):
            return True
        if not prompt.is_injected:
            return dialogue_turn.is_prompted or dialogue_turn.is_ended
        return dialogue_turn.is_prompted and not isinstance(dialogue_turn.items[-1], NativeCall)

    def _take(self, dialogue_turn: DialogueTurn, message: Message, prompt: Prompt | None) -> None:
        dialogue_turn.end = message.end
        dialogue_turn.records.append(canonical([message.role, _message_identity(message)]))
        if prompt is not None:
            self._ask(dialogue_turn, message, prompt)
        elif message.role == "assistant":
            dialogue_turn.items += self._answer(message)
        elif message.role == "system":
            dialogue_turn.items.append(_system(message))
        for block in message.blocks:
            if block.get("type") in RESULTS:
                _settle(dialogue_turn.items, block)

    def _ask(self, dialogue_turn: DialogueTurn, message: Message, prompt: Prompt) -> None:
        dialogue_turn.is_prompted = dialogue_turn.is_prompted or not (prompt.is_injected or is_summary(message))
        dialogue_turn.workspace = prompt.workspace or dialogue_turn.workspace
        if prompt.at is not None:
            dialogue_turn.times.append(prompt.at)
        if is_summary(message) and self._made:
            dialogue_turn.summary, dialogue_turn.is_prompted = prompt.words, True
            return
        parts: list[Part] = [TextPart(prompt.words)] if prompt.words else []
        is_event = prompt.is_injected or is_summary(message)
        human = MessageSource.AGENT if self._session.parent is not None else MessageSource.HUMAN
        dialogue_turn.items.append(
            NativeMessage(
                role=MessageRole.USER,
                parts=(*parts, *_images(message)),
                at=prompt.at,
                literal_time=prompt.literal_time,
                source=MessageSource.EVENT if is_event else human,
                context=prompt.context or None,
                metadata=_message_metadata(message),
                files=tuple(FileNote(kind=FileKind.ATTACHED, path=path) for path in prompt.paths),
            )
        )

    def _answer(self, message: Message) -> list[Item]:
        parts: list[Part] = []
        calls: list[Item] = []
        for block in message.blocks:
            kind = block.get("type")
            if kind == "text" and (words := text(block.get("text"))):
                parts.append(TextPart(words))
            elif kind in THOUGHTS and (words := text(block.get("thinking")) or text(block.get("text"))):
                parts.append(ReasoningPart(words))
            elif kind in CALLS:
                calls.append(_call(block))
        options = mapping(mapping(message.fields.get("providerOptions")).get("cursor"))
        answer = NativeMessage(
            role=MessageRole.ASSISTANT,
            parts=(*parts, *_images(message)),
            model=text(options.get("modelName")) or text(message.fields.get("model")) or self._model,
            metadata=_message_metadata(message),
        )
        return [answer, *calls]

    def _end(self, number: int, ending: Ending) -> None:
        dialogue_turn = self._dialogue_turn or self._begun(number, ending.offset)
        dialogue_turn.end, dialogue_turn.is_ended = ending.end, dialogue_turn.is_ended or ending.closes
        dialogue_turn.records.append(canonical(["ended", ending.status, ending.error]))
        dialogue_turn.error = ending.error or dialogue_turn.error
        dialogue_turn.interrupted = dialogue_turn.interrupted or ending.status in (
            "aborted",
            "cancelled",
            "canceled",
            "interrupted",
        )

    def _finished(self, is_last: bool) -> NativeTurn:
        dialogue_turn = self._dialogue_turn
        assert dialogue_turn is not None
        self._dialogue_turn, number = None, self._made
        self._made += 1
        compaction = None if dialogue_turn.summary is None else NativeCompaction(summary=dialogue_turn.summary)
        records = (
            dialogue_turn.records
            if self._identity is None
            else [canonical(["session", self._identity, dialogue_turn.number]), *dialogue_turn.records]
        )
        return NativeTurn(
            key=f"{self._session.id}#{dialogue_turn.number}",
            records=tuple(records),
            items=tuple(_items_of(dialogue_turn)),
            parent=number - 1 if number else None,
            compaction=compaction,
            closed=not is_last or dialogue_turn.is_ended,
            error=dialogue_turn.error,
            interrupted=dialogue_turn.interrupted and dialogue_turn.error is None,
            started=min(dialogue_turn.times, default=None),
            ended=max(dialogue_turn.times, default=None),
            role=AgentRole.WORKER if self._session.parent is not None else AgentRole.UNIFIED,
            workspace=dialogue_turn.workspace or self._session.workspace,
            offset=dialogue_turn.offset,
            end=dialogue_turn.end,
        )


def is_summary(message: Message) -> bool:
    return mapping(mapping(message.fields.get("providerOptions")).get("cursor")).get("isSummary") is True


def _message_identity(message: Message) -> Any:
    """What makes the identity of a message: its blocks, without what providers put beside them."""
    beside = ("providerOptions", "providerMetadata", "signature", "experimental_content", "metadata")
    return [{name: value for name, value in block.items() if name not in beside} for block in message.blocks]


def _images(message: Message) -> list[ImagePart]:
    found = []
    for block in message.blocks:
        if block.get("type") == "image":
            source = mapping(block.get("source"))
            mime = text(block.get("mimeType")) or text(block.get("mediaType")) or text(source.get("media_type"))
            url = image_url(block.get("image") or block.get("data") or source.get("data"), mime)
            found += [ImagePart(url)] if url is not None else []
    return found


def _system(message: Message) -> NativeMessage:
    words = [each for block in message.blocks if (each := text(block.get("text")))]
    return NativeMessage(
        role=MessageRole.SYSTEM, parts=tuple(TextPart(each) for each in words), source=MessageSource.EVENT
    )


def _message_metadata(message: Message) -> dict[str, Any] | None:
    """Blocks of kinds that nobody knows, and what a version to come puts beside a message."""
    known = {"text", "image", *CALLS, *RESULTS, *THOUGHTS}
    other = [block for block in message.blocks if block and block.get("type") not in known]
    fields = {name: value for name, value in message.fields.items() if name not in ("providerOptions", "model")}
    request = mapping(mapping(message.fields.get("providerOptions")).get("cursor")).get("requestId")
    return present(blocks=other, beside=fields, request=request)


def _call(block: dict[str, Any]) -> NativeCall:
    arguments = next((block[name] for name in ("input", "args", "arguments") if name in block), None)
    return NativeCall(
        id=text(block.get("id")) or text(block.get("toolCallId")) or "",
        name=text(block.get("name")) or text(block.get("toolName")) or "",
        arguments=value_in_text(arguments),
    )


def _settle(items: list[Item], block: dict[str, Any]) -> None:
    """An outcome goes to the call that it names; where calls have no ids, to the first that waits for one."""
    id, name = (
        text(block.get("tool_use_id")) or text(block.get("toolCallId")),
        text(block.get("name")) or text(block.get("toolName")),
    )
    waiting = [(at, item) for at, item in enumerate(items) if isinstance(item, NativeCall) and item.status is None]
    exact = [(at, call) for at, call in waiting if id is not None and call.id == id]
    loose = [(at, call) for at, call in waiting if not call.id and name in (None, call.name)]
    for at, call in (exact or loose)[:1]:
        items[at] = _settled(call, block)


def _settled(call: NativeCall, block: dict[str, Any]) -> NativeCall:
    result = next((block[name] for name in ("result", "content", "output") if name in block), UNSET)
    failed = block.get("is_error") is True or block.get("isError") is True
    return replace(
        call,
        result=_plain(result),
        error=str(_plain(result)) if failed else None,
        status=ToolCallStatus.ERROR if failed else ToolCallStatus.OK,
        spawned=text(mapping(value_in_text(result)).get("agentId"))
        if plain_name(call.name) in SPAWNERS and result is not UNSET
        else None,
        files=() if failed else tool_files(call.name, call.arguments),
    )


def _plain(result: Any) -> Any:
    """Blocks of text alone are the text that they hold."""
    blocks = [mapping(each) for each in sequence(result)]
    if blocks and all(block.get("type") == "text" and isinstance(block.get("text"), str) for block in blocks):
        return "\n".join(block["text"] for block in blocks)
    return result


def _items_of(dialogue_turn: DialogueTurn) -> list[Item]:
    """A call without an outcome was carried out if the agent went on after it: transcripts leave outcomes out."""
    answers = [
        at
        for at, item in enumerate(dialogue_turn.items)
        if isinstance(item, NativeMessage) and item.role == MessageRole.ASSISTANT
    ]
    went_on = max(answers, default=-1)
    is_over = dialogue_turn.is_ended and dialogue_turn.error is None and not dialogue_turn.interrupted
    return [
        replace(item, status=ToolCallStatus.OK, detail=NOT_RECORDED, files=tool_files(item.name, item.arguments))
        if isinstance(item, NativeCall) and item.status is None and (at < went_on or is_over)
        else item
        for at, item in enumerate(dialogue_turn.items)
    ]
