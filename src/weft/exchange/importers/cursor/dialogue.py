"""Messages of roles and blocks, as transcripts and stores have them, as turns: a prompt up to the next one.

Nothing in them has an id of its own, so a turn is known by its session and its place in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import UNSET, Struct, field
from msgspec.structs import replace

from weft.exchange.importers.cursor import tools
from weft.exchange.importers.cursor.values import image_url, inner
from weft.exchange.importers.cursor.wrapped import Prompt, unwrapped
from weft.exchange.importers.transcript import (
    Item,
    NativeCall,
    NativeCompaction,
    NativeMessage,
    NativeSession,
    NativeTurn,
)
from weft.exchange.importers.values import canonical, mapping, present, sequence, text
from weft.kernel.enums import AgentRole, FileKind, MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import FileNote, ImagePart, Part, ReasoningPart, TextPart

CALLS = frozenset({"tool_use", "tool_call", "tool-call"})
RESULTS = frozenset({"tool_result", "tool-result"})
THOUGHTS = frozenset({"thinking", "reasoning", "redacted-reasoning", "redacted_thinking"})
UNTOLD = {"outcome": "not recorded"}


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


def _block(each: Any) -> dict[str, Any]:
    """A block; a kind that is no word is none."""
    block = mapping(each)
    return block if isinstance(block.get("type", ""), str) else {**block, "type": ""}


class Ending(Struct):
    """The turn under way is over, or something in it failed."""

    status: str
    offset: int
    end: int
    error: str | None = None
    closes: bool = True


Told = Message | Ending


class Making(Struct):
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
        self._making: Making | None = None
        self._made = 0
        self._tag = 0

    def turns(self, told: Iterable[Told]) -> Iterator[NativeTurn]:
        for number, each in enumerate(told):
            if isinstance(each, Ending):
                self._end(number, each)
                continue
            prompt = self._prompt(each)
            if self._begins(each, prompt):
                if self._making is not None:
                    yield self._finished(is_last=False)
                self._making = Making(number, each.offset)
            self._take(self._making or self._begun(number, each.offset), each, prompt)
        if self._making is not None:
            yield self._finished(is_last=True)

    def _begun(self, number: int, offset: int) -> Making:
        self._making = Making(number, offset)
        return self._making

    def _prompt(self, message: Message) -> Prompt | None:
        """None: it is no prompt, but an answer or the outcome of tools."""
        if message.role != "user":
            return None
        said = [each for block in message.blocks if block.get("type") == "text" and (each := text(block.get("text")))]
        pictured = any(block.get("type") in ("image", "file") for block in message.blocks)
        return unwrapped("\n".join(said)) if said or pictured else None

    def _begins(self, message: Message, prompt: Prompt | None) -> bool:
        """What is put before a prompt belongs to it; between a call and its answer, to the turn under way."""
        making = self._making
        if prompt is None or making is None:
            return False
        if is_summary(message):
            return True
        if not prompt.is_injected:
            return making.is_prompted or making.is_ended
        return making.is_prompted and not isinstance(making.items[-1], NativeCall)

    def _take(self, making: Making, message: Message, prompt: Prompt | None) -> None:
        making.end = message.end
        making.records.append(canonical([message.role, _reduced(message)]))
        if prompt is not None:
            self._ask(making, message, prompt)
        elif message.role == "assistant":
            making.items += self._answer(message)
        elif message.role == "system":
            making.items.append(_system(message))
        for block in message.blocks:
            if block.get("type") in RESULTS:
                _settle(making.items, block)

    def _ask(self, making: Making, message: Message, prompt: Prompt) -> None:
        making.is_prompted = making.is_prompted or not (prompt.is_injected or is_summary(message))
        making.workspace = prompt.workspace or making.workspace
        if prompt.at is not None:
            making.times.append(prompt.at)
        if is_summary(message) and self._made:
            making.summary, making.is_prompted = prompt.words, True
            return
        parts: list[Part] = [TextPart(prompt.words)] if prompt.words else []
        is_event = prompt.is_injected or is_summary(message)
        human = MessageSource.AGENT if self._session.parent is not None else MessageSource.HUMAN
        making.items.append(
            NativeMessage(
                role=MessageRole.USER,
                parts=(*parts, *_images(message)),
                at=prompt.at,
                literal_time=prompt.literal_time,
                source=MessageSource.EVENT if is_event else human,
                context=prompt.context or None,
                metadata=_beside(message),
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
            metadata=_beside(message),
        )
        return [answer, *calls]

    def _end(self, number: int, ending: Ending) -> None:
        making = self._making or self._begun(number, ending.offset)
        making.end, making.is_ended = ending.end, making.is_ended or ending.closes
        making.records.append(canonical(["ended", ending.status, ending.error]))
        making.error = ending.error or making.error
        making.interrupted = making.interrupted or ending.status in ("aborted", "cancelled", "canceled", "interrupted")

    def _finished(self, is_last: bool) -> NativeTurn:
        making = self._making
        assert making is not None
        self._making, number = None, self._made
        self._made += 1
        compaction = None if making.summary is None else NativeCompaction(summary=making.summary)
        records = (
            making.records
            if self._identity is None
            else [canonical(["session", self._identity, making.number]), *making.records]
        )
        return NativeTurn(
            key=f"{self._session.id}#{making.number}",
            records=tuple(records),
            items=tuple(_told(making)),
            parent=number - 1 if number else None,
            compaction=compaction,
            closed=not is_last or making.is_ended,
            error=making.error,
            interrupted=making.interrupted and making.error is None,
            started=min(making.times, default=None),
            ended=max(making.times, default=None),
            role=AgentRole.WORKER if self._session.parent is not None else AgentRole.UNIFIED,
            workspace=making.workspace or self._session.workspace,
            offset=making.offset,
            end=making.end,
        )


def is_summary(message: Message) -> bool:
    return mapping(mapping(message.fields.get("providerOptions")).get("cursor")).get("isSummary") is True


def _reduced(message: Message) -> Any:
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


def _beside(message: Message) -> dict[str, Any] | None:
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
        arguments=inner(arguments),
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
        spawned=text(mapping(inner(result)).get("agentId"))
        if tools.plain(call.name) in tools.SPAWNERS and result is not UNSET
        else None,
        files=() if failed else tools.files(call.name, call.arguments),
    )


def _plain(result: Any) -> Any:
    """Blocks of text alone are the text that they hold."""
    blocks = [mapping(each) for each in sequence(result)]
    if blocks and all(block.get("type") == "text" and isinstance(block.get("text"), str) for block in blocks):
        return "\n".join(block["text"] for block in blocks)
    return result


def _told(making: Making) -> list[Item]:
    """A call without an outcome was carried out if the agent went on after it: transcripts leave outcomes out."""
    answers = [
        at
        for at, item in enumerate(making.items)
        if isinstance(item, NativeMessage) and item.role == MessageRole.ASSISTANT
    ]
    went_on = max(answers, default=-1)
    is_over = making.is_ended and making.error is None and not making.interrupted
    return [
        replace(item, status=ToolCallStatus.OK, detail=UNTOLD, files=tools.files(item.name, item.arguments))
        if isinstance(item, NativeCall) and item.status is None and (at < went_on or is_over)
        else item
        for at, item in enumerate(making.items)
    ]
