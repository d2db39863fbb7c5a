"""Chats of Gemini CLI as turns.

What its messages say, in the parts of Gemini's API; one pass that tells which messages make which
turn, and where they lie; a second pass that maps the messages of one turn.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any

from msgspec import UNSET, Struct, field

from weft.exchange.importers.foreign_values import (
    canonical,
    global_name,
    mapping,
    millis,
    present,
    sequence,
    text,
    whole_number,
)
from weft.exchange.importers.native_turns import (
    LONGEST_SHARED_RECORDS,
    Entry,
    MessageContent,
    PendingCall,
    PlannedTurn,
    Role,
    TurnBuilder,
    TurnPlan,
    count_kept,
    written_notes,
)
from weft.exchange.importers.port import NativeCall, NativeMessage, Report, Tokens
from weft.kernel.enums import FileKind, MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import FileNote, ImagePart, Part, ReasoningPart, TextPart

# --- Messages of Gemini CLI: what they say, in the parts of Gemini's API, and what each is to the turns of its
# session.


def message_content(message: dict[str, Any]) -> MessageContent:
    return content_of(message["content"] if "content" in message else message.get("parts"))


def content_of(value: Any) -> MessageContent:
    """A text, a part, or a list of both."""
    content = MessageContent()
    for part in value if isinstance(value, list) else [] if value is None else [value]:
        _add_part(content, part)
    return content


def _add_part(content: MessageContent, part: Any) -> None:
    words = part if isinstance(part, str) else part.get("text") if isinstance(part, dict) else None
    if isinstance(words, str):
        is_thought = isinstance(part, dict) and part.get("thought") is True
        content.identity.append(["thought" if is_thought else "text", words])
        if words:
            content.parts.append(ReasoningPart(words) if is_thought else TextPart(words))
    elif not isinstance(part, dict):
        content.add_other(part)
    elif isinstance(call := part.get("functionCall"), dict):
        content.calls.append(call)
        content.identity.append(["call", call.get("id"), call.get("name"), call.get("args")])
    elif isinstance(result := part.get("functionResponse"), dict):
        content.results.append(result)
        content.identity.append(["result", result.get("id"), result.get("name"), result.get("response")])
    elif (url := image_url(part.get("inlineData"))) is not None:
        content.parts.append(ImagePart(url))
        content.identity.append(["image", url])
    else:
        content.add_other(part)


def image_url(data: Any) -> str | None:
    inline = mapping(data)
    mime, encoded = text(inline.get("mimeType")), text(inline.get("data"))
    if mime is None or encoded is None or not mime.startswith("image/"):
        return None
    return f"data:{mime};base64,{encoded}"


def thoughts(message: dict[str, Any]) -> list[str]:
    """What the model told of its thinking: a subject and some words each."""
    texts = []
    for thought in map(mapping, sequence(message.get("thoughts"))):
        words = [text(thought.get(name)) for name in ("subject", "description", "summary")]
        if any(words):
            texts.append("\n".join(word for word in words if word))
    return texts


ANSWERS = frozenset({"gemini", "model", "assistant"})
NOTICES = frozenset({"info", "warning", "error"})
TYPES = ANSWERS | NOTICES | {"user"}
_is_summary = re.compile(r"\s*(?:<scratchpad>.*?</scratchpad>\s*)?<state_snapshot>", re.DOTALL)
_is_injected = re.compile(
    r"\s*(?:<session_context>|<hook_context>|This is the Gemini CLI\. We are setting up the context for our chat"
    r"|System: Please continue\.\s*\Z)"
)
CANCELLED = re.compile(r"\s*(?:Request cancelled\.|User cancelled the request\.)\s*")


def classify(message: dict[str, Any]) -> tuple[str, Role]:
    """A message's kind, as it is counted, and its role."""
    kind = text(message.get("type")) or text(message.get("role")) or "untyped"
    if kind in ANSWERS:
        return "gemini", Role.ANSWER
    if kind in NOTICES:
        return kind, Role.NOTICE
    return (kind, _role_of_user_message(message)) if kind == "user" else (f"message.{kind}", Role.UNKNOWN)


def _role_of_user_message(message: dict[str, Any]) -> Role:
    content = message_content(message)
    if content.results and not content.parts:
        return Role.ANSWER
    first = content.texts[0] if content.texts else ""
    if _is_summary.match(first):
        return Role.COMPACTION
    return Role.INJECTED if _is_injected.match(first) else Role.PROMPT


# --- One pass over a chat: which messages make which turn, and where they lie.

COMPRESSED = re.compile(r"compressed from ([0-9]{1,12}) to ([0-9]{1,12}) tokens")


class ListedMessage(Struct, gc=False):
    """A message in the list that stands."""

    entry: int
    turn: int
    depth: int
    """How many messages of its turn lead up to it, itself among them."""
    mark: bytes
    """What it says, for a list that gives it another id."""
    is_content: bool


class ReplacementMessage(Struct, frozen=True):
    """A message of a list that is put in place of another, known only from there."""

    number: int
    message: dict[str, Any]


class GeminiTurn(PlannedTurn, kw_only=True):
    sizes: tuple[int, int] | None = None
    """Of a compaction: tokens before and after."""

    @property
    def is_begun(self) -> bool:
        return self.prompt is not None or self.is_answered or self.is_compaction


class Index(Struct):
    """What the pass has found."""

    facts: dict[str, Any] = field(default_factory=dict)
    """What is said of the session; the last word on each point."""
    plan: TurnPlan[GeminiTurn] = field(default_factory=TurnPlan[GeminiTurn])


class Indexer:
    """Takes what changes the list, one after another."""

    def __init__(self, report: Report, fallback_id: str) -> None:
        self.index = Index()
        self._plan = self.index.plan
        self._report, self._fallback = report, fallback_id
        self._live: list[ListedMessage] = []
        self._by_id: dict[str, ListedMessage] = {}
        self._compaction: int | None = None
        """The turn whose summary the list begins with."""
        self._sizes: tuple[int, int] | None = None

    @property
    def session_id(self) -> str:
        return text(self.index.facts.get("sessionId")) or self._fallback

    def add_facts(self, facts: dict[str, Any]) -> None:
        self.index.facts.update({name: value for name, value in facts.items() if name != "messages"})

    def add_message(self, message: dict[str, Any], entry: Entry) -> None:
        """A message: a new one, or a new form of one that stands."""
        role = classify(message)[1]
        if role is Role.UNKNOWN:
            self._count_kept(entry, is_unknown=True)
            return
        slot = self._by_id.get(entry.id or "")
        if slot is not None:
            self._count_kept(self._plan.entries[slot.entry], is_unknown=False)
            self._plan.entries[slot.entry], slot.mark = entry, mark_of(message)
        else:
            self._add(message, entry, role)

    def rewind(self, id: str, line: int | None) -> None:
        position = next(
            (position for position in range(len(self._live) - 1, -1, -1) if self._has_id(self._live[position], id)),
            None,
        )
        if position is None:
            self._report.problem(line, "it rewinds to a message that is not here: all of them are taken back")
        self._set_live(self._live[: position or 0])

    def replace(self, messages: list[Any], entry: Entry) -> None:
        """Another list in place of the one that stands. Those of its messages that are known, by their ids or by what
        they say, stay what they are."""
        unmatched = {slot.entry: slot for slot in self._live if slot.is_content}
        members: list[ListedMessage | ReplacementMessage] = []
        aliases: dict[str, ListedMessage] = {}
        for number, message in enumerate(messages):
            if not isinstance(message, dict) or classify(message)[1] is Role.UNKNOWN:
                continue
            slot = self._find_slot(message, unmatched, aliases)
            is_after_known = not members or isinstance(members[-1], ListedMessage)
            if slot is None and is_result(message) and is_after_known:
                continue  # of a call that is known, with its outcome
            members.append(ReplacementMessage(number, message) if slot is None else slot)
        self._rebuild_live(members, next(reversed(unmatched.values()), None), entry)
        self._by_id |= aliases

    def _find_slot(
        self, message: dict[str, Any], unmatched: dict[int, ListedMessage], aliases: dict[str, ListedMessage]
    ) -> ListedMessage | None:
        id = text(message.get("id"))
        slot = self._by_id.get(id or "")
        if slot is None:
            mark = mark_of(message)
            slot = next((slot for slot in unmatched.values() if slot.mark == mark), None)
        if slot is None:
            return None
        unmatched.pop(slot.entry, None)
        if id is not None:
            aliases[id] = slot
        return slot

    def _rebuild_live(
        self, members: list[ListedMessage | ReplacementMessage], dropped: ListedMessage | None, entry: Entry
    ) -> None:
        kept_slots = [slot for slot in members if isinstance(slot, ListedMessage)]
        self._set_live([])
        waiting: list[tuple[dict[str, Any], Entry]] = []
        for member in members:
            if isinstance(member, ListedMessage):
                self._put_back(member)
                continue
            kind, role = classify(member.message)
            inner = Entry(kind, text(member.message.get("id")), entry.line, entry.offset, entry.end, member.number)
            is_first = dropped is not None and self._compaction is None
            if role is Role.COMPACTION or (is_first and role is Role.PROMPT):
                self._compact(member.message, inner, kept_slots, dropped)
                for message, before in waiting:
                    self._append(self._compaction or 0, message, before, Role.INJECTED)
            elif is_first and role is Role.INJECTED:
                waiting.append((member.message, inner))  # it belongs to the summary that follows, if one does
            else:
                self._add(member.message, inner, role)

    def _compact(
        self, message: dict[str, Any], entry: Entry, kept_slots: list[ListedMessage], summarised: ListedMessage | None
    ) -> None:
        tip = kept_slots[-1] if kept_slots else summarised
        before = None if tip is None else tip.turn
        prompt = None if before is None else self._prompt_before(before)
        planned = GeminiTurn(parent=before, is_compaction=True, compacted_prompt=prompt, sizes=self._sizes)
        self._sizes = None
        if kept_slots:
            planned.first_kept, planned.is_split = kept_slots[0].turn, kept_slots[0].depth > 1
        self._compaction = self._plan.begin_turn(planned)
        self._append(self._compaction, message, entry, Role.COMPACTION)

    def _prompt_before(self, turn: int) -> str | None:
        planned = self._plan.turns[turn]
        return planned.compacted_prompt if planned.is_compaction else self._key_of(planned)

    def _add(self, message: dict[str, Any], entry: Entry, role: Role) -> None:
        turn, depth = self._place()
        planned = None if turn is None else self._plan.turns[turn]
        tip = turn if planned is not None and depth == len(planned.entries) else None
        if role is Role.COMPACTION:
            self._compact(message, entry, [], self._live[-1] if self._live else None)
            return
        if role is Role.ANSWER:
            target = self._answer(turn, depth, tip, is_listed=entry.nested is not None)
        elif planned is None or tip is None or (planned.is_begun and role is Role.PROMPT):
            target = self._begin_turn(turn)
        elif planned.is_compaction and role is Role.INJECTED:
            target = self._begin_turn(turn, continues=planned.compacted_prompt)
        else:
            target = tip
        if role is Role.NOTICE:
            self._note_sizes(message, self._plan.turns[target])
        self._append(target, message, entry, role)

    def _note_sizes(self, notice: dict[str, Any], planned: GeminiTurn) -> None:
        """A notice of how much was compressed comes before the compaction, or after it."""
        match = COMPRESSED.search("\n".join(message_content(notice).texts))
        if match is None:
            return
        sizes = (int(match[1]), int(match[2]))
        if planned.is_compaction and planned.sizes is None:
            planned.sizes = sizes
        else:
            self._sizes = sizes

    def _answer(self, turn: int | None, depth: int, tip: int | None, is_listed: bool) -> int:
        if turn is None:
            return self._begin_turn(turn)
        planned = self._plan.turns[turn]
        says_it_was_read = tip is not None and is_listed and not planned.is_answered
        if planned.is_compaction and not says_it_was_read:
            return self._begin_turn(turn, continues=planned.compacted_prompt)
        if tip is not None:
            return tip
        if depth > LONGEST_SHARED_RECORDS:
            return self._begin_turn(turn, continues=self._key_of(planned))
        other_answer = GeminiTurn(parent=planned.parent, continues=self._key_of(planned))
        return self._plan.begin_again(other_answer, planned, depth)

    def _begin_turn(self, parent: int | None, continues: str | None = None) -> int:
        return self._plan.begin_turn(GeminiTurn(parent=parent, continues=continues))

    def _append(self, turn: int, message: dict[str, Any], entry: Entry, role: Role) -> None:
        planned, number = self._plan.turns[turn], self._plan.append(turn, entry)
        if role is Role.PROMPT and planned.prompt is None:
            planned.prompt = number
        planned.is_answered |= role is Role.ANSWER
        slot = ListedMessage(number, turn, len(planned.entries), mark_of(message), role is not Role.NOTICE)
        self._live.append(slot)
        if entry.id is not None:
            self._by_id[entry.id] = slot

    def _place(self) -> tuple[int | None, int]:
        """The turn that the next message follows, and after how many of its messages."""
        if not self._live:
            return None, 0
        last = self._live[-1]
        if self._compaction is not None and self._compaction > last.turn:  # what was kept stands behind the summary
            return self._compaction, len(self._plan.turns[self._compaction].entries)
        return last.turn, last.depth

    def _set_live(self, slots: list[ListedMessage]) -> None:
        """These messages stand, and no others."""
        live_ids = {id(slot) for slot in slots}
        self._by_id = {name: slot for name, slot in self._by_id.items() if id(slot) in live_ids}
        self._live = slots
        has_summary = any(slot.turn == self._compaction for slot in slots)
        self._compaction = self._compaction if has_summary else None

    def _put_back(self, slot: ListedMessage) -> None:
        self._live.append(slot)
        if (name := self._plan.entries[slot.entry].id) is not None:
            self._by_id[name] = slot
        if self._plan.turns[slot.turn].is_compaction:
            self._compaction = slot.turn

    def _has_id(self, slot: ListedMessage, id: str) -> bool:
        return self._by_id.get(id) is slot

    def _count_kept(self, entry: Entry, is_unknown: bool) -> None:
        """Held by the verbatim copy alone; a message of a list is not a record of its own."""
        if entry.nested is not None:
            return
        if is_unknown:
            count_kept(self._report, entry.kind, Role.UNKNOWN)
        else:
            self._report.kept[f"{entry.kind}.earlier"] += 1

    def _key_of(self, planned: GeminiTurn) -> str:
        return self._plan.prompt_key(planned, self.name)

    def name(self, number: int) -> str:
        """A message's id; its place in the chat where it has none."""
        id = self._plan.entries[number].id
        return f"{self.session_id}#{number}" if id is None else global_name(self.session_id, id)

    def finish(self) -> Index:
        self._plan.assign_keys(self.name)
        return self.index


def mark_of(message: dict[str, Any]) -> bytes:
    """What a message says, whichever form it is written in."""
    content = message_content(message)
    call_ids = {text(call.get("id")) or text(call.get("name")) for call in content.calls}
    call_ids |= {text(mapping(call).get("id")) for call in sequence(message.get("toolCalls"))}
    kind = classify(message)[0]
    words = "" if kind in NOTICES else "\n".join(content.texts)
    return sha256(canonical([kind, words, sorted(id or "" for id in call_ids)])).digest()[:16]


def is_result(message: dict[str, Any]) -> bool:
    """A message that only carries what tools gave back: its calls are told with it."""
    content = message_content(message)
    return message.get("type") == "user" and bool(content.results) and not content.parts


# --- The second pass: the messages of one turn of Gemini CLI, mapped to what the ledger takes.

STATUSES = {
    "success": ToolCallStatus.OK,
    "completed": ToolCallStatus.OK,
    "error": ToolCallStatus.ERROR,
    "cancelled": ToolCallStatus.CANCELED,
}
READERS = frozenset({"read_file", "read_many_files"})
WRITERS = frozenset({"write_file", "replace", "edit"})
SEARCHERS = frozenset({"list_directory", "glob", "grep_search", "search_file_content"})
PATHS = ("file_path", "absolute_path", "path", "dir_path")
REPEATED = frozenset({"originalContent", "newContent"})
"""Of a shown change: whole files, of which the change is told beside."""


class Call(PendingCall, kw_only=True):
    record: dict[str, Any]
    """As its message records it; empty where the message only asks for it."""
    response: Any = None
    """From a message of its own, where the call's record has none."""

    def finished(self) -> NativeCall:
        outcome = self.record.get("result")
        status = STATUSES.get(text(self.record.get("status")) or "")
        result, error = outcome_of(outcome if outcome is not None else self.response)
        if status is None and self.response is not None:
            status = ToolCallStatus.OK if error is None else ToolCallStatus.ERROR
        failed = status in (ToolCallStatus.ERROR, ToolCallStatus.CANCELED)
        if failed and error is None:
            error = result if isinstance(result, str) else text(self.record.get("resultDisplay"))
            result = UNSET if error == result else result
        self.result, self.error, self.status = result, error if failed else None, status
        self.done = millis(self.record.get("timestamp")) if status is not None else None
        self.spawned, self.detail = text(self.record.get("agentId")), call_detail(self.record)
        self.files = () if failed else touched_files(self.name, mapping(self.arguments), self.record)
        return super().finished()


def call_of(block: dict[str, Any], *, is_record: bool) -> Call:
    name, id = text(block.get("name")) or "", text(block.get("id")) or ""
    return Call(id=id, name=name, arguments=block.get("args"), record=block if is_record else {})


def call_identity(record: dict[str, Any]) -> list[Any]:
    status = text(record.get("status"))
    return ["call", record.get("id"), record.get("name"), record.get("args"), record.get("result"), status]


def outcome_of(result: Any) -> tuple[Any, str | None]:
    """What the model was given back, as a text where it is one; and the error, where it says so."""
    if result is None:
        return UNSET, None
    parts = result if isinstance(result, list) else [result]
    if len(parts) != 1:
        return result, None
    response = mapping(mapping(parts[0]).get("functionResponse")).get("response")
    if not isinstance(response, dict):
        return result, None
    if set(response) == {"output"} and isinstance(response["output"], str):
        return response["output"], None
    if set(response) == {"error"} and isinstance(response["error"], str):
        return UNSET, response["error"]
    return response, None


def call_detail(record: dict[str, Any]) -> Any:
    display = record.get("resultDisplay")
    if isinstance(display, dict):
        display = {name: value for name, value in display.items() if name not in REPEATED}
    return present(shown=display, agent=record.get("agentId"))


def touched_files(name: str, arguments: dict[str, Any], record: dict[str, Any]) -> tuple[FileNote, ...]:
    path = next((value for key in PATHS if (value := text(arguments.get(key))) is not None), None)
    if name == "read_many_files":
        names = [*sequence(arguments.get("paths")), *sequence(arguments.get("include"))]
        return tuple(
            FileNote(kind=FileKind.READ, path=name_or_pattern) for name_or_pattern in names if _is_path(name_or_pattern)
        )
    if path is None:
        return ()
    if name in READERS:
        return (_read_note(path, arguments),)
    if name in WRITERS:
        display = mapping(record.get("resultDisplay"))
        return written_notes(text(display.get("filePath")) or path, text(display.get("fileDiff")))
    return (FileNote(kind=FileKind.REFERENCED, path=path),) if name in SEARCHERS and _is_path(path) else ()


def _is_path(path: Any) -> bool:
    return isinstance(path, str) and bool(path) and not set(path) & set("*?{[")


def _read_note(path: str, arguments: dict[str, Any]) -> FileNote:
    """Lines count from one in newer versions; `offset` counts from nought."""
    start, end = whole_number(arguments.get("start_line")), whole_number(arguments.get("end_line"))
    offset, limit = whole_number(arguments.get("offset")), whole_number(arguments.get("limit"))
    if start is None and offset is not None:
        start = offset + 1
    if end is None and limit is not None:
        end = (start or 1) + limit - 1
    return FileNote(kind=FileKind.READ, path=path, line_start=start, line_end=end)


REFERENCED = "Content from @"


class GeminiBuilder(TurnBuilder, kw_only=True):
    """A turn of Gemini CLI, message by message."""

    session: str
    is_subagent: bool = False
    summary_entry: Entry | None = None
    """Of a compaction: the message that is its summary."""
    waiting: dict[str, Call] = field(default_factory=dict)
    """Calls without an outcome, by their ids."""
    summary: str | None = None

    def add_record(self, entry: Entry, value: dict[str, Any]) -> None:
        self.note_time(value.get("timestamp"))
        kind, role = classify(value)
        if entry is self.summary_entry:
            self._add_summary(value)
        elif kind == "gemini":
            self._add_response(value)
        elif kind in NOTICES:
            self._add_notice(kind, value)
        elif role is Role.ANSWER:
            self._add_results(value)
        else:
            self._add_prompt(value, is_event=role is not Role.PROMPT)

    def _add_prompt(self, message: dict[str, Any], is_event: bool) -> None:
        content, typed = message_content(message), content_of(message.get("displayContent"))
        is_expanded = bool(typed.texts) and typed.texts != content.texts
        person = MessageSource.AGENT if self.is_subagent else MessageSource.HUMAN
        item = self._message(
            message,
            MessageRole.USER,
            typed.parts if is_expanded else content.parts,
            source=MessageSource.EVENT if is_event else person,
            context=present(sent=[part for part in content.texts if part not in typed.texts]) if is_expanded else None,
            metadata=present(parts=_described(content)),
            files=_attached(content),
        )
        self.add(["user", text(message.get("id")), content.identity, typed.identity], item)
        self._give_results(content)

    def _add_results(self, message: dict[str, Any]) -> None:
        """What tools gave back, in a message of its own. One whose call is not here stands as a message."""
        content = message_content(message)
        self.add_identity("results", text(message.get("id")), content.identity)
        for result in self._give_results(content):
            words = canonical(result.get("response")).decode(errors="replace")
            metadata = present(call=result.get("id"), tool=result.get("name"))
            self.items.append(self._message(message, MessageRole.TOOL, [TextPart(words)], metadata=metadata))

    def _give_results(self, content: MessageContent) -> list[dict[str, Any]]:
        """Outcomes to the calls that wait for them; those are left that none waits for."""
        unclaimed = []
        for result in content.results:
            call = self.waiting.pop(text(result.get("id")) or "", None)
            if call is None:
                unclaimed.append(result)
            else:
                call.response = [{"functionResponse": result}]
        return unclaimed

    def _add_response(self, message: dict[str, Any]) -> None:
        content, id = message_content(message), text(message.get("id"))
        thinking: list[Part] = [ReasoningPart(words) for words in thoughts(message)]
        if thinking:  # told twice where the parts hold it too
            content.parts = [part for part in content.parts if not isinstance(part, ReasoningPart)]
        recorded = [call for call in sequence(message.get("toolCalls")) if isinstance(call, dict)]
        model = text(message.get("model"))
        item = self._message(
            message,
            MessageRole.ASSISTANT,
            [*thinking, *content.parts],
            model=model,
            provider="google" if model is not None and model.startswith("gemini") else None,
            tokens=message_tokens(message.get("tokens")),
            metadata=present(parts=_described(content)),
        )
        thought_texts = [part.text for part in thinking if isinstance(part, ReasoningPart)]
        self.add(["gemini", id, content.identity, thought_texts, [call_identity(call) for call in recorded]], item)
        calls = [call_of(call, is_record=True) for call in recorded]
        recorded_ids = {call.id for call in calls}
        calls += [call_of(call, is_record=False) for call in content.calls if call.get("id") not in recorded_ids]
        for call in calls:
            self.items.append(call)
            if (done := millis(call.record.get("timestamp"))) is not None:
                self.times.append(done)
            if call.record.get("result") is None:
                self.waiting[call.id] = call
        self.error, self.is_interrupted = None, False

    def _add_notice(self, kind: str, message: dict[str, Any]) -> None:
        content = message_content(message)
        words = "\n".join(content.texts)
        item = self._message(
            message,
            MessageRole.SYSTEM,
            content.parts,
            source=MessageSource.EVENT,
            metadata=present(notice=kind, parts=_described(content)),
        )
        self.add(["notice", kind, text(message.get("id")), content.identity], item)
        if kind == "error":
            self.error = words or "error"
        self.is_interrupted |= CANCELLED.fullmatch(words) is not None

    def _add_summary(self, message: dict[str, Any]) -> None:
        content = message_content(message)
        self.summary = "\n".join(content.texts)
        item = self._message(message, MessageRole.ASSISTANT, content.parts, source=MessageSource.EVENT)
        self.add(["compaction", text(message.get("id")), content.identity], item)

    def _message(self, message: dict[str, Any], role: MessageRole, parts: list[Part], **fields: Any) -> NativeMessage:
        id, timestamp = text(message.get("id")), message.get("timestamp")
        time = millis(timestamp)
        return NativeMessage(
            role=role,
            parts=tuple(parts),
            native=None if id is None else global_name(self.session, id),
            at=time,
            literal_time=text(timestamp) if time is None else None,
            **fields,
        )


def message_tokens(counted: Any) -> Tokens | None:
    """Cached tokens are told inside the input, thoughts beside the output, those of tools beside the input."""
    counts = mapping(counted)
    if not counts:
        return None
    prompt, cached = whole_number(counts.get("input")), whole_number(counts.get("cached"))
    output, thought, tools = (
        whole_number(counts.get("output")),
        whole_number(counts.get("thoughts")),
        whole_number(counts.get("tool")),
    )
    return Tokens(
        input=None if prompt is None else max(prompt - (cached or 0), 0) + (tools or 0),
        output=None if output is None else output + (thought or 0),
        cached=cached,
        reasoning=thought,
    )


def _described(content: MessageContent) -> list[Any]:
    """Parts that are no text and no image, without their bytes."""
    parts = []
    for part in content.other_blocks:
        block = mapping(part)
        data = mapping(block.get("inlineData"))
        parts.append({"inlineData": data.get("mimeType")} if data else part)
    return parts


def _attached(content: MessageContent) -> tuple[FileNote, ...]:
    """Files that a prompt mentions with @, read into it."""
    paths = []
    for words in content.texts:
        for line in words.splitlines() if REFERENCED in words else ():
            if line.startswith(REFERENCED) and line.endswith(":"):
                paths.append(line.removeprefix(REFERENCED).removesuffix(":"))
    return tuple(FileNote(kind=FileKind.ATTACHED, path=path) for path in dict.fromkeys(paths) if path)
