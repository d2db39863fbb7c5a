"""Making turns of the messages that the index has put together."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from weft.exchange.importers.gemini_cli.calls import Call, call_of, reduced
from weft.exchange.importers.gemini_cli.content import Said, content_of, said, thoughts
from weft.exchange.importers.gemini_cli.index import own_name
from weft.exchange.importers.gemini_cli.kinds import CANCELLED, NOTICES, Standing, classify
from weft.exchange.importers.transcript import Item, NativeMessage, Tokens
from weft.exchange.importers.values import canonical, mapping, millis, present, sequence, text, whole
from weft.kernel.enums import FileKind, MessageRole, MessageSource
from weft.ledger.model import FileNote, Part, ReasoningPart, TextPart

REFERENCED = "Content from @"


class Making(Struct):
    """A turn under way."""

    session: str
    is_subagent: bool = False
    items: list[NativeMessage | Call] = field(default_factory=list)
    waiting: dict[str, Call] = field(default_factory=dict)
    """Calls without an outcome, by their ids."""
    records: list[bytes] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    summary: str | None = None
    error: str | None = None
    is_interrupted: bool = False

    def take(self, message: dict[str, Any], is_summary: bool = False) -> None:
        """One message more."""
        if (when := millis(message.get("timestamp"))) is not None:
            self.times.append(when)
        kind, standing = classify(message)
        if is_summary:
            self._summary(message)
        elif kind == "gemini":
            self._response(message)
        elif kind in NOTICES:
            self._notice(kind, message)
        elif standing is Standing.ANSWER:
            self._results(message)
        else:
            self._prompt(message, is_event=standing is not Standing.PROMPT)

    def forget_costs(self) -> None:
        """Of responses that another turn has told already: they were paid for once."""
        for number, item in enumerate(self.items):
            if isinstance(item, NativeMessage) and item.tokens is not None:
                self.items[number] = replace(item, tokens=None)

    def finished(self) -> tuple[Item, ...]:
        return tuple(item.made() if isinstance(item, Call) else item for item in self.items)

    def _prompt(self, message: dict[str, Any], is_event: bool) -> None:
        content, typed = said(content_of(message)), said(message.get("displayContent"))
        is_expanded = bool(typed.texts) and typed.texts != content.texts
        person = MessageSource.AGENT if self.is_subagent else MessageSource.HUMAN
        made = self._message(
            message,
            MessageRole.USER,
            typed.parts if is_expanded else content.parts,
            source=MessageSource.EVENT if is_event else person,
            context=present(sent=[part for part in content.texts if part not in typed.texts]) if is_expanded else None,
            metadata=present(parts=_described(content)),
            files=_attached(content),
        )
        self._add(["user", text(message.get("id")), content.reduced, typed.reduced], made)
        self._give(content)

    def _results(self, message: dict[str, Any]) -> None:
        """What tools gave back, in a message of its own. One whose call is not here stands as a message."""
        content = said(content_of(message))
        self.records.append(canonical(["results", text(message.get("id")), content.reduced]))
        for result in self._give(content):
            words = canonical(result.get("response")).decode(errors="replace")
            told = present(call=result.get("id"), tool=result.get("name"))
            self.items.append(self._message(message, MessageRole.TOOL, [TextPart(words)], metadata=told))

    def _give(self, content: Said) -> list[dict[str, Any]]:
        """Outcomes to the calls that wait for them; those are left that none waits for."""
        left = []
        for result in content.results:
            call = self.waiting.pop(text(result.get("id")) or "", None)
            if call is None:
                left.append(result)
            else:
                call.response = [{"functionResponse": result}]
        return left

    def _response(self, message: dict[str, Any]) -> None:
        content, id = said(content_of(message)), text(message.get("id"))
        thinking: list[Part] = [ReasoningPart(words) for words in thoughts(message)]
        if thinking:  # told twice where the parts hold it too
            content.parts = [part for part in content.parts if not isinstance(part, ReasoningPart)]
        told = [call for call in sequence(message.get("toolCalls")) if isinstance(call, dict)]
        model = text(message.get("model"))
        made = self._message(
            message,
            MessageRole.ASSISTANT,
            [*thinking, *content.parts],
            model=model,
            provider="google" if model is not None and model.startswith("gemini") else None,
            tokens=tokens(message.get("tokens")),
            metadata=present(parts=_described(content)),
        )
        said_so = [part.text for part in thinking if isinstance(part, ReasoningPart)]
        self._add(["gemini", id, content.reduced, said_so, [reduced(call) for call in told]], made)
        calls = [call_of(call, is_record=True) for call in told]
        known = {call.id for call in calls}
        calls += [call_of(call, is_record=False) for call in content.calls if call.get("id") not in known]
        for call in calls:
            self.items.append(call)
            if (done := millis(call.told.get("timestamp"))) is not None:
                self.times.append(done)
            if call.told.get("result") is None:
                self.waiting[call.id] = call
        self.error, self.is_interrupted = None, False

    def _notice(self, kind: str, message: dict[str, Any]) -> None:
        content = said(content_of(message))
        words = "\n".join(content.texts)
        made = self._message(
            message,
            MessageRole.SYSTEM,
            content.parts,
            source=MessageSource.EVENT,
            metadata=present(notice=kind, parts=_described(content)),
        )
        self._add(["notice", kind, text(message.get("id")), content.reduced], made)
        if kind == "error":
            self.error = words or "error"
        self.is_interrupted |= CANCELLED.fullmatch(words) is not None

    def _summary(self, message: dict[str, Any]) -> None:
        content = said(content_of(message))
        self.summary = "\n".join(content.texts)
        made = self._message(message, MessageRole.ASSISTANT, content.parts, source=MessageSource.EVENT)
        self._add(["compaction", text(message.get("id")), content.reduced], made)

    def _message(self, message: dict[str, Any], role: MessageRole, parts: list[Part], **more: Any) -> NativeMessage:
        id, when = text(message.get("id")), message.get("timestamp")
        at = millis(when)
        return NativeMessage(
            role=role,
            parts=tuple(parts),
            native=None if id is None else own_name(self.session, id),
            at=at,
            literal_time=text(when) if at is None else None,
            **more,
        )

    def _add(self, reduced: list[Any], message: NativeMessage) -> None:
        self.records.append(canonical(reduced))
        self.items.append(message)


def tokens(counted: Any) -> Tokens | None:
    """Cached tokens are told inside the input, thoughts beside the output, those of tools beside the input."""
    told = mapping(counted)
    if not told:
        return None
    given, cached = whole(told.get("input")), whole(told.get("cached"))
    output, thought, tools = whole(told.get("output")), whole(told.get("thoughts")), whole(told.get("tool"))
    return Tokens(
        input=None if given is None else max(given - (cached or 0), 0) + (tools or 0),
        output=None if output is None else output + (thought or 0),
        cached=cached,
        reasoning=thought,
    )


def _described(content: Said) -> list[Any]:
    """Parts that are no text and no image, without their bytes."""
    found = []
    for part in content.elsewhere:
        told = mapping(part)
        data = mapping(told.get("inlineData"))
        found.append({"inlineData": data.get("mimeType")} if data else part)
    return found


def _attached(content: Said) -> tuple[FileNote, ...]:
    """Files that a prompt mentions with @, read into it."""
    found = []
    for words in content.texts:
        for line in words.splitlines() if REFERENCED in words else ():
            if line.startswith(REFERENCED) and line.endswith(":"):
                found.append(line.removeprefix(REFERENCED).removesuffix(":"))
    return tuple(FileNote(kind=FileKind.ATTACHED, path=path) for path in dict.fromkeys(found) if path)
