"""A provider's response and its tool calls, gathered from the items that Codex writes one by one.

What messages hold (parts, prompts with the events that tell of them, summaries of compactions), and
what responses cost.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import UNSET, Struct, field

from weft.exchange.importers.codex.entries import Entry, EntryEffect, digest
from weft.exchange.importers.foreign_values import mapping, object_in_text, sequence, text, whole_number, without_none
from weft.exchange.importers.native_turns import PendingCall, hunk_lines, patched_paths, summed_tokens
from weft.exchange.importers.port import NativeCall, NativeCompaction, NativeMessage, Tokens
from weft.kernel.enums import FileKind, MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import OPENAI, FileNote, ImagePart, Part, ReasoningPart, SealedItem, TextPart, sealed_metadata

# --- What messages hold: parts, prompts with the events that tell of them, summaries of compactions.

_TEXTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal", "Text"})
_IMAGES = frozenset({"input_image", "image", "image_url"})


class Content(Struct):
    """What a message holds: its parts, the same as plain values for its identity, and blocks that are no parts."""

    parts: list[Part] = field(default_factory=list)
    plain: list[Any] = field(default_factory=list)
    strange: list[Any] = field(default_factory=list)
    sealed: int = 0
    """Letters of encrypted content, which only its provider can read."""

    def words(self) -> str:
        """The text as its writer knows it: without the tags that Codex puts around images."""
        texts = [part.text for part in self.parts if isinstance(part, TextPart) and isinstance(part.text, str)]
        return "".join(part_text for part_text in texts if not part_text.startswith(("<image", "</image>")))


def content_of(blocks: Any) -> Content:
    content = Content()
    for block in [blocks] if isinstance(blocks, str | dict) else sequence(blocks):
        _add_block(content, block)
    return content


def _add_block(content: Content, block: Any) -> None:
    if isinstance(block, str):
        block = {"type": "text", "text": block}
    kind = text(mapping(block).get("type"))
    if kind in _TEXTS and isinstance(block.get("text"), str):
        if block["text"]:
            content.parts.append(TextPart(block["text"]))
            content.plain.append(block["text"])
        return
    if kind in _IMAGES and (url := _url(block)) is not None:
        detail = text(block.get("detail"))
        content.parts.append(ImagePart(url, detail or UNSET))
        content.plain.append(["image", url])
        return
    if kind == "encrypted_content":
        content.sealed += len(text(block.get("encrypted_content")) or "")
        return
    content.plain.append(["block", block])
    content.strange.append(block)


def _url(block: dict[str, Any]) -> str | None:
    url = block.get("image_url") or block.get("url")
    return text(url) or text(mapping(url).get("url"))


_THOUGHTS = ("summary", "content", "summary_text", "raw_content", "text")


def thoughts_of(item: dict[str, Any]) -> list[str]:
    """The texts of a reasoning item or event: its summaries, then its raw content where a provider shows it."""
    texts: list[str] = []
    for name in _THOUGHTS:
        if blocks := item.get(name):
            texts += [
                part.text for part in content_of(blocks).parts if type(part) is TextPart and type(part.text) is str
            ]
    return texts


def thought_parts(texts: list[str]) -> list[Part]:
    return [ReasoningPart(words) for words in texts]


_SHARED_LETTERS = 60
"""Texts that begin with as many equal letters are one: an event leaves out what is not shown."""


class Prompts:
    """Pairs the prompts of one turn with the events that tell of them."""

    def __init__(self, entries: list[Entry]) -> None:
        self.contents: dict[int, Content] = {}
        self.events: dict[int, Entry] = {}
        """The event that tells of a prompt, by the prompt's place."""
        self.alone: dict[int, Content] = {}
        """Events that no item stands beside, by their place."""
        waiting: list[tuple[int, Entry, str]] = []
        for position, entry in enumerate(entries):
            if entry.sort in (EntryEffect.USER, EntryEffect.NOTICE) or (
                entry.sort == EntryEffect.INJECTED and _is_user(entry)
            ):
                self.contents[position] = content_of(entry.value.get("content"))
            elif entry.sort == EntryEffect.PROMPT_EVENT:
                waiting.append((position, entry, event_words(entry).strip()))
        self.has_prompt_events = bool(waiting)
        if waiting:
            self._pair(entries, waiting)

    def _pair(self, entries: list[Entry], waiting: list[tuple[int, Entry, str]]) -> None:
        """By their text; what is left over, in order."""
        places: dict[str, deque[int]] = {}
        for position, content in self.contents.items():
            places.setdefault(content.words().strip(), deque()).append(position)
        unpaired: list[tuple[int, Entry, str]] = []
        texts: dict[str, set[str]] = {}
        for position, entry, words in waiting:
            if places.get(words):
                self.events[places[words].popleft()] = entry
                texts.setdefault(words, set()).add(entry.name)
            else:
                unpaired.append((position, entry, words))
        free = deque(
            position
            for position in self.contents
            if position not in self.events and entries[position].sort == EntryEffect.USER
        )
        for position, entry, words in unpaired:
            if texts.get(words, set()) - {entry.name}:
                continue  # the newest history may tell of one prompt by two kinds of event
            if free:
                self.events[free.popleft()] = entry
            else:
                self.alone[position] = _event_content(entry)

    def source(self, position: int, sort: EntryEffect, is_subagent: bool) -> MessageSource:
        """In a subagent's thread another agent writes what a person would."""
        if (
            position in self.events
            or position in self.alone
            or (sort == EntryEffect.USER and not self.has_prompt_events)
        ):
            return MessageSource.AGENT if is_subagent else MessageSource.HUMAN
        if sort == EntryEffect.NOTICE:
            words = self.contents[position].words().lstrip().lower()
            if words.startswith("<subagent_notification>"):
                return MessageSource.AGENT
            if words.startswith("<hook_prompt"):
                return MessageSource.TRIGGER
        return MessageSource.EVENT

    def files(self, position: int) -> tuple[FileNote, ...]:
        """Images that were attached by their path."""
        event = self.events.get(position)
        return () if event is None else attached(event)


def _is_user(entry: Entry) -> bool:
    return entry.value.get("role") == "user"


def event_words(entry: Entry) -> str:
    """The text of a `user_message` or `agent_message` event, or of the item that stands for one."""
    return text(entry.value.get("message")) or content_of(entry.value.get("content")).words()


def _event_content(entry: Entry) -> Content:
    content = content_of(entry.value.get("message") or entry.value.get("content"))
    for url in sequence(entry.value.get("images")):
        if text(url) is not None:
            content.parts.append(ImagePart(url))
            content.plain.append(["image", url])
    return content


def attached(entry: Entry) -> tuple[FileNote, ...]:
    paths: list[Any] = [*sequence(entry.value.get("local_images")), *sequence(entry.value.get("local_audio"))]
    for block in map(mapping, sequence(entry.value.get("content"))):
        paths.append(block.get("path"))
    return tuple(FileNote(kind=FileKind.ATTACHED, path=path) for path in dict.fromkeys(filter(text, paths)))


class EventEchoes:
    """Tells the texts of a turn's events that its items have already said."""

    def __init__(self, entries: list[Entry]) -> None:
        self._answer_texts = {
            words for entry in entries if entry.sort == EntryEffect.ANSWER_TEXT for words in _texts(entry)
        }
        self._begun = {words[:_SHARED_LETTERS] for words in self._answer_texts if len(words) >= _SHARED_LETTERS}
        self._thought = {
            words.strip()
            for entry in entries
            if entry.sort == EntryEffect.THOUGHT
            for words in thoughts_of(entry.value)
        }
        self._kind_by_text: dict[str, str] = {}
        """Texts that an event alone has said, and which kind of event."""
        self.answers = bool(self._answer_texts) or any(entry.sort == EntryEffect.ANSWER_TEXT_EVENT for entry in entries)

    def is_new_text(self, words: str, kind: str) -> bool:
        stripped = words.strip()
        if not stripped or stripped in self._answer_texts or self._kind_by_text.get(stripped, kind) != kind:
            return False
        if stripped[:_SHARED_LETTERS] in self._begun:
            return False
        self._kind_by_text[stripped] = kind
        return True

    def new_thoughts(self, entry: Entry) -> list[str]:
        new_texts = []
        for words in thoughts_of(entry.value):
            stripped = words.strip()
            if (
                stripped
                and stripped not in self._thought
                and self._kind_by_text.get(stripped, entry.name) == entry.name
            ):
                self._kind_by_text[stripped] = entry.name
                new_texts.append(words)
        return new_texts


def _texts(entry: Entry) -> Iterator[str]:
    """A message's text as a whole, and each of its parts."""
    content = content_of(entry.value.get("content"))
    yield content.words().strip()
    for part in content.parts:
        if isinstance(part, TextPart) and isinstance(part.text, str):
            yield part.text.strip()


_SUMMARIES = frozenset({"compaction", "compaction_summary", "context_compaction"})
_SUMMARY_BEGINS = "Another language model started to solve this problem"
"""Codex's own first words of a summary that it hands to the next context."""


class Compaction(Struct, kw_only=True):
    id: str | None
    """Of the context window that it opened, else of its summary item (which redacted copies leave out)."""
    summary: str
    plain: list[Any]
    names: tuple[str, ...]
    at: int | None
    literal_time: str | None
    model: str | None
    tokens_before: int | None
    tokens_after: int | None = None
    trigger: str | None = None
    notes: dict[str, Any]

    def native(self, trigger: str | None, duration_ms: int | None) -> NativeCompaction:
        return NativeCompaction(
            summary=self.summary,
            model=self.model,
            trigger=self.trigger or trigger,
            tokens_before=self.tokens_before,
            tokens_after=self.tokens_after,
            duration_ms=duration_ms,
            metadata=self.notes or None,
        )


def compaction_of(
    entry: Entry, time: tuple[int | None, str | None], tokens_before: int | None, model: str | None
) -> Compaction:
    fields = entry.value
    history = [mapping(item) for item in sequence(fields.get("replacement_history"))]
    sealed = [item for item in history if _is_summary(item)]
    ids = [id for item in sealed if (id := text(item.get("id")))]
    window = text(fields.get("window_id"))
    summary = text(fields.get("message")) or _summary_in(history)
    plain = [[text(item.get("id")), content_of(item.get("content")).plain] for item in history]
    return Compaction(
        id=window or next(reversed(ids), None),
        summary=summary,
        plain=["compacted", window, summary, None if window else [ids, digest(plain)]],
        names=tuple(name for name in (window, *ids) if name),
        at=time[0],
        literal_time=time[1],
        model=model,
        tokens_before=tokens_before,
        trigger=text(fields.get("trigger")),
        notes=without_none(
            window_number=whole_number(fields.get("window_number")),
            window_id=window,
            previous_window_id=text(fields.get("previous_window_id")),
            items_kept=len(history) - len(sealed) if history else None,
            encrypted_letters=sum(len(text(item.get("encrypted_content")) or "") for item in sealed) or None,
        ),
    )


def _summary_in(history: list[dict[str, Any]]) -> str:
    for item in reversed(history):
        if _is_summary(item):
            summary = text(item.get("summary")) or text(item.get("text")) or content_of(item.get("content")).words()
            if summary:
                return summary
        elif item.get("role") == "user":
            words = content_of(item.get("content")).words()
            if words.startswith(_SUMMARY_BEGINS):
                return words
    return ""


def _is_summary(item: dict[str, Any]) -> bool:
    return text(item.get("type")) in _SUMMARIES


# --- What responses cost.

_COUNTS = ("total_tokens", "input_tokens", "cached_input_tokens", "output_tokens", "reasoning_output_tokens")


def tokens_of(usage: Any) -> Tokens | None:
    """Disjoint parts: for Codex the cached input is part of the input, and reasoning part of the output."""
    counts = mapping(usage)
    prompt, output = whole_number(counts.get("input_tokens")), whole_number(counts.get("output_tokens"))
    if prompt is None and output is None:
        return None
    cached = whole_number(counts.get("cached_input_tokens"))
    cache_written = whole_number(counts.get("cache_write_input_tokens"))
    return Tokens(
        input=None if prompt is None else max(prompt - (cached or 0) - (cache_written or 0), 0),
        output=output,
        cached=cached,
        cache_write=cache_written,
        reasoning=whole_number(counts.get("reasoning_output_tokens")),
    )


class UsageMeter:
    """Reads a thread's reports in order."""

    def __init__(self) -> None:
        self._total: tuple[int | None, ...] | None = None
        self.context: int | None = None
        """How many tokens the context held at the last report."""

    def read(self, payload: dict[str, Any]) -> Tokens | None:
        """What a report adds, if it is of a new request."""
        info = mapping(payload.get("info"))
        totals, last = mapping(info.get("total_token_usage")), mapping(info.get("last_token_usage"))
        total = tuple(whole_number(totals.get(name)) for name in _COUNTS) if totals else None
        self.context = whole_number(last.get("total_tokens")) or whole_number(last.get("input_tokens")) or self.context
        if total is not None and total == self._total:
            return None
        self._total = total
        return tokens_of(last)


def says_usage(payload: dict[str, Any]) -> bool:
    """Rate limits alone say nothing of a request."""
    return bool(mapping(mapping(payload.get("info")).get("last_token_usage")))


class ResponseReports(Struct):
    """The responses and reports of one turn in their order: an index of a response, or what was reported."""

    marks: list[int | Tokens]

    def comes_first(self) -> bool | None:
        """Do reports stand before their responses here? None: this turn does not tell."""
        if not any(isinstance(mark, int) for mark in self.marks) or all(isinstance(mark, int) for mark in self.marks):
            return None
        return not isinstance(self.marks[0], int)

    def shares(self, reports_first: bool) -> dict[int, Tokens]:
        """What each response cost."""
        tokens: dict[int, Tokens] = {}
        last: int | None = None
        waiting: Tokens | None = None
        for mark in self.marks:
            if isinstance(mark, Tokens):
                if last is None or reports_first:
                    waiting = summed_tokens(waiting or Tokens(), mark)
                else:
                    tokens[last] = summed_tokens(tokens.get(last) or Tokens(), mark)
            else:
                last = mark
                if waiting is not None:
                    tokens[last], waiting = summed_tokens(tokens.get(last) or Tokens(), waiting), None
        if waiting is not None and last is not None:
            tokens[last] = summed_tokens(tokens.get(last) or Tokens(), waiting)
        return tokens


# --- A provider's response and its tool calls, gathered from the items that Codex writes one by one.

_MESSAGE_FIELDS = frozenset(
    "type id role content phase status timestamp internal_chat_message_metadata_passthrough metadata".split()
)


class Call(PendingCall, kw_only=True):
    """A tool call while its outcome is still coming in; its detail is an object."""

    identity: list[Any]
    """Kind, ids, name and arguments as written, then its output."""

    def finished(self) -> NativeCall:
        self.detail, self.files = self.detail or None, tuple(dict.fromkeys(self.files))
        return super().finished()


_NAMES = {
    "local_shell_call": "local_shell",
    "web_search_call": "web_search",
    "tool_search_call": "tool_search",
    "image_generation_call": "image_generation",
}
_ITEM_STATUSES = {
    "completed": ToolCallStatus.OK,
    "failed": ToolCallStatus.ERROR,
    "incomplete": ToolCallStatus.INTERRUPTED,
}


def call_of(entry: Entry, time: int | None) -> Call:
    item = entry.value
    item_id, call_id = text(item.get("id")), text(item.get("call_id"))
    name = text(item.get("name")) or _NAMES.get(entry.name, "")
    raw = _raw_arguments(entry.name, item)
    namespace = text(item.get("namespace"))
    call = Call(
        id=call_id or item_id or "",
        name=name,
        arguments=object_in_text(raw) if isinstance(raw, str) and entry.name != "custom_tool_call" else raw,
        identity=["call", entry.name, item_id, call_id, namespace, name, raw],
        at=time,
        detail=without_none(namespace=namespace),
    )
    if entry.name in ("web_search_call", "image_generation_call"):
        _settle_at_once(call, item)
    return call


def _raw_arguments(kind: str, item: dict[str, Any]) -> Any:
    if kind == "custom_tool_call":
        return item.get("input")
    if kind in ("local_shell_call", "web_search_call"):
        return item.get("action")
    if kind == "image_generation_call":
        return without_none(revised_prompt=text(item.get("revised_prompt")))
    return item.get("arguments")


def _settle_at_once(call: Call, item: dict[str, Any]) -> None:
    """The provider ran it by itself: no output item follows."""
    call.status = _ITEM_STATUSES.get(text(item.get("status")) or "")
    if text(item.get("result")) is not None:
        call.result = item["result"]
    call.identity.append([call.status, None if call.result is UNSET else call.result])


class Response(Struct, kw_only=True):
    """A run of a model's items."""

    at: int | None
    literal_time: str | None
    model: str | None
    provider: str | None
    plain: list[Any]
    """Its identity, one list that grows with it."""
    native: str | None = None
    parts: list[Part] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    sealed: list[SealedItem] = field(default_factory=list)
    """What its provider encrypted, and wants back where the session goes on."""
    tokens: Tokens | None = None
    thought: list[str] = field(default_factory=list)
    """The texts of its last reasoning item: the next one may begin by repeating them."""
    named_by_text: bool = False

    def add_message(self, entry: Entry) -> None:
        item = entry.value
        content = content_of(item.get("content"))
        self.add_content(content)
        self.plain.append(["message", text(item.get("id")), content.plain])
        self._take_name(text(item.get("id")), by_text=True)
        if (phase := text(item.get("phase"))) is not None:
            self.notes["phase"] = phase
        if strange := {key: value for key, value in item.items() if key not in _MESSAGE_FIELDS and value is not None}:
            self.notes.setdefault("fields", {}).update(strange)

    def add_event_text(self, words: str) -> None:
        """A text that only an event holds."""
        content = content_of(words)
        self.add_content(content)
        self.plain.append(["message", None, content.plain])

    def add_content(self, content: Content) -> None:
        self.parts += content.parts
        if content.strange:
            self.notes.setdefault("blocks", []).extend(content.strange)
        if content.sealed:
            self.notes["encrypted_letters"] = self.notes.get("encrypted_letters", 0) + content.sealed

    def add_thoughts(self, entry: Entry) -> None:
        item = entry.value
        texts = thoughts_of(item)
        repeated_count = len(self.thought) if texts[: len(self.thought)] == self.thought else 0
        self.thought = texts
        parts = thought_parts(texts[repeated_count:])
        if encrypted := text(item.get("encrypted_content")):
            fields = without_none(id=text(item.get("id")), encrypted=encrypted)
            self.sealed.append(SealedItem(len(self.parts), len(parts), fields))
        self.parts += parts
        self.plain.append(["reasoning", text(item.get("id")), texts])
        self._take_name(text(item.get("id")))
        if sealed := text(item.get("encrypted_content")):
            self.notes.setdefault("encrypted_reasoning_letters", []).append(len(sealed))

    def add_event_thoughts(self, texts: list[str]) -> None:
        self.parts += thought_parts(texts)
        self.plain.append(["reasoning", None, texts])

    def add_call(self, call: Call, item: dict[str, Any]) -> None:
        self.calls.append(call)
        self.plain.append(call.identity)
        self._take_name(text(item.get("id")))

    def _take_name(self, id: str | None, by_text: bool = False) -> None:
        """The id of its message; of its first item, where it has none."""
        if id is not None and (self.native is None or (by_text and not self.named_by_text)):
            self.native, self.named_by_text = id, by_text

    def items(self, context: dict[str, Any] | None) -> list[NativeMessage | NativeCall]:
        message = NativeMessage(
            role=MessageRole.ASSISTANT,
            parts=tuple(self.parts),
            native=self.native,
            at=self.at,
            literal_time=self.literal_time,
            model=self.model,
            provider=self.provider,
            tokens=self.tokens,
            context=context,
            metadata=(self.notes | sealed_metadata(self.provider or OPENAI, self.sealed)) or None,
        )
        return [message, *(call.finished() for call in self.calls)]


def names_of(item: dict[str, Any]) -> list[str]:
    return [name for name in (text(item.get("id")), text(item.get("call_id"))) if name is not None]


_EXIT = re.compile(r"(?:Process exited with code|Exit code:) (-?\d{1,10})\b")
_WALL = re.compile(r"Wall time:? (\d{1,9}(?:\.\d{1,9})?) seconds")
_META = re.compile(r'"exit_code":\s*(-?\d{1,10})')
_TOOK = re.compile(r'"duration_seconds":\s*(\d{1,9}(?:\.\d{1,9})?)')
_UPDATED = "Success. Updated the following files:\n"
_END_STATUSES = {"failed": ToolCallStatus.ERROR, "declined": ToolCallStatus.CANCELED}
_COMMON = frozenset({"type", "call_id", "turn_id", "id"})
_REPEATED = _COMMON | {"stdout", "stderr", "formatted_output", "aggregated_output", "result"}
_SIGN_LETTERS = 400


def duration_ms(value: Any) -> int | None:
    """A length of time as Codex writes it: `{"secs", "nanos"}`."""
    fields = mapping(value)
    secs, nanos = whole_number(fields.get("secs")), whole_number(fields.get("nanos"))
    return None if secs is None else secs * 1000 + (nanos or 0) // 1_000_000


def take_output(call: Call, entry: Entry, time: int | None) -> None:
    """The output item: what the model was given back."""
    item = entry.value
    output = item.get("tools") if entry.name == "tool_search_output" else item.get("output", item.get("content"))
    if call.result is not UNSET:
        call.detail.setdefault("further_outputs", []).append(output)
        call.identity.append(["output", text(item.get("id")), output])
        return
    call.result, call.done = output, time
    call.identity.append(["output", text(item.get("id")), output])
    words = output_text(output)
    if words.startswith("aborted by user") or words == "aborted":
        call.status = ToolCallStatus.INTERRUPTED
    elif mapping(output).get("success") is False:
        call.status = ToolCallStatus.ERROR
    call.status = call.status or ToolCallStatus.OK
    _measure(call, words)


def output_text(output: Any) -> str:
    """The text of an output, whatever form it has."""
    if isinstance(output, str):
        return output
    if isinstance(output, dict):
        return next((words for key in ("content", "output", "text") if (words := text(output.get(key)))), "")
    return "\n".join(words for block in sequence(output) if (words := text(mapping(block).get("text"))))


def _measure(call: Call, words: str) -> None:
    """Exit code and time, which the output's first lines tell, in older versions a JSON object around it."""
    if words.startswith('{"output"'):
        exit_code, took = _META.search(words[-_SIGN_LETTERS:]), _TOOK.search(words[-_SIGN_LETTERS:])
    else:
        exit_code, took = _EXIT.search(words[:_SIGN_LETTERS]), _WALL.search(words[:_SIGN_LETTERS])
    if exit_code:
        call.detail.setdefault("exit_code", int(exit_code[1]))
    if took:
        call.detail.setdefault("duration_ms", round(float(took[1]) * 1000))


def _note_written_files(call: Call, words: str, cwd: str | None) -> None:
    """`apply_patch` lists what it changed; where it only says that it did, its patch names the files."""
    if "Success. Updated" in words:
        _note_updated_files(call, words, cwd)
    elif call.name == "apply_patch" and call.status == ToolCallStatus.OK and not words:
        patch = call.arguments if isinstance(call.arguments, str) else text(mapping(call.arguments).get("input"))
        for path in patched_paths(patch or ""):
            _note_file(call, FileKind.WRITTEN, path, cwd)


def _note_updated_files(call: Call, words: str, cwd: str | None) -> None:
    output = text(mapping(object_in_text(words)).get("output")) or words
    folder = text(mapping(call.arguments).get("workdir")) or cwd
    for line in output.partition(_UPDATED)[2].splitlines():
        if line[:2] not in ("A ", "M ", "D "):
            break
        _note_file(call, FileKind.WRITTEN, line[2:], folder)


def _note_file(call: Call, kind: FileKind, path: Any, cwd: str | None, lines: tuple[int, int] | None = None) -> None:
    name = text(path)
    if name is not None:
        start, end = lines or (None, None)
        call.files += (FileNote(kind=kind, path=full_path(name, cwd), line_start=start, line_end=end),)


def full_path(path: str, cwd: str | None) -> str:
    """As written, under the folder it was written in."""
    is_full = path.startswith(("/", "~", "\\")) or path[1:3] in (":\\", ":/") or "://" in path[:12]
    return path if is_full or not cwd else f"{cwd.rstrip('/')}/{path.removeprefix('./')}"


def take_event(call: Call, entry: Entry, is_own: bool) -> None:
    """An end event. One of a call that ran inside another (`exec-…`) tells of files, not of the outer call's end."""
    event = entry.value
    new_fields = {name: fact for name, fact in event.items() if name not in _REPEATED and fact is not None}
    if not is_own and (shown_output := text(event.get("aggregated_output"))) is not None:
        new_fields["aggregated_output"] = shown_output
    call.detail.setdefault("events", []).append({"event": entry.name, **new_fields})
    handler = _EVENT_HANDLERS.get(entry.name)
    if handler is not None:
        handler(call, event, is_own)


def take_end(call: Call, entry: Entry) -> None:
    """The one record of a printed run that holds a call's output and how it went."""
    item = entry.value
    output = item.get("aggregated_output", item.get("result"))
    status = text(item.get("status"))
    call.status = ToolCallStatus.OK if status in (None, "completed") else _END_STATUSES.get(status)
    if output is not None:
        call.result = output
        call.identity.append(["output", None, output])
    take_event(call, entry, is_own=True)


def _note_ending(call: Call, event: dict[str, Any], is_own: bool) -> None:
    if not is_own:
        return
    status = _END_STATUSES.get((text(event.get("status")) or "").lower())
    if status is None and event.get("success") is False:
        status = ToolCallStatus.ERROR
    if status is not None:
        call.status = status
    took = duration_ms(event.get("duration"))
    if took is not None:
        call.detail["duration_ms"] = took


def _take_exec_end(call: Call, event: dict[str, Any], is_own: bool) -> None:
    _note_ending(call, event, is_own)
    exit_code = whole_number(event.get("exit_code"))
    if is_own and exit_code is not None:
        call.detail["exit_code"] = exit_code
    cwd = text(event.get("cwd"))
    for command in sequence(event.get("parsed_cmd")):
        if mapping(command).get("type") == "read":
            _note_file(call, FileKind.READ, command.get("path") or command.get("name"), cwd)


def _take_patch_end(call: Call, event: dict[str, Any], is_own: bool) -> None:
    _note_ending(call, event, is_own)
    failed = event.get("success") is False or (text(event.get("status")) or "").lower() in _END_STATUSES
    if failed:
        return
    for path, change in mapping(event.get("changes")).items():
        _note_change(call, path, mapping(change))


def _note_change(call: Call, path: str, change: dict[str, Any]) -> None:
    moved = text(change.get("move_path"))
    diff = text(change.get("unified_diff"))
    if moved is not None:
        _note_file(call, FileKind.WRITTEN, path, None)
    target = moved or path
    hunks = hunk_lines(diff or "")
    for first, last in hunks:
        _note_file(call, FileKind.WRITTEN, target, None, (max(first, 1), max(last, 1)))
    added = text(change.get("content")) if change.get("type") == "add" else None
    if not hunks:
        lines = (1, added.count("\n") + (not added.endswith("\n"))) if added else None
        _note_file(call, FileKind.WRITTEN, target, None, lines)


def _take_mcp_end(call: Call, event: dict[str, Any], is_own: bool) -> None:
    _note_ending(call, event, is_own)
    result = mapping(event.get("result"))
    refused = result.get("Err") or event.get("error")
    failed = refused or mapping(result.get("Ok")).get("isError") is True or result.get("isError") is True
    if is_own and failed:
        call.status = ToolCallStatus.ERROR
        call.error = text(refused) or text(mapping(refused).get("message"))


def _take_spawn(call: Call, event: dict[str, Any], is_own: bool) -> None:
    child = text(event.get("new_thread_id"))
    if child is None and event.get("kind") == "started":
        child = text(event.get("agent_thread_id"))
    call.spawned = call.spawned or child


def _take_collab_end(call: Call, event: dict[str, Any], is_own: bool) -> None:
    _note_ending(call, event, is_own)
    children = sequence(event.get("receiver_thread_ids"))
    if (text(event.get("tool")) or "").lower() == "spawnagent" and children:
        call.spawned = call.spawned or text(children[0])


def _take_image(call: Call, event: dict[str, Any], is_own: bool) -> None:
    _note_file(call, FileKind.WRITTEN, event.get("saved_path"), None)


def _take_view(call: Call, event: dict[str, Any], is_own: bool) -> None:
    _note_file(call, FileKind.READ, event.get("path"), None)


_EVENT_HANDLERS: dict[str, Callable[[Call, dict[str, Any], bool], None]] = {
    "exec_command_end": _take_exec_end,
    "commandexecution": _take_exec_end,
    "patch_apply_end": _take_patch_end,
    "filechange": _take_patch_end,
    "mcp_tool_call_end": _take_mcp_end,
    "mcptoolcall": _take_mcp_end,
    "dynamic_tool_call_response": _take_mcp_end,
    "dynamictoolcall": _take_mcp_end,
    "collab_agent_spawn_end": _take_spawn,
    "sub_agent_activity": _take_spawn,
    "subagentactivity": _take_spawn,
    "collabagenttoolcall": _take_collab_end,
    "image_generation_end": _take_image,
    "imagegeneration": _take_image,
    "view_image_tool_call": _take_view,
    "imageview": _take_view,
}


def settle(call: Call, cwd: str | None) -> None:
    """The last word on a call, once its turn is complete: what its output tells and no event told before."""
    words = "" if call.result is UNSET else output_text(call.result)
    if call.name == "view_image" and not call.files:
        _note_file(call, FileKind.READ, mapping(call.arguments).get("path"), cwd)
    if not any(note.kind == FileKind.WRITTEN for note in call.files):
        _note_written_files(call, words, cwd)
    if call.name == "spawn_agent" and call.spawned is None:
        call.spawned = text(mapping(object_in_text(words)).get("agent_id"))
    if call.status == ToolCallStatus.ERROR and call.error is None:
        call.error = words or None
    if call.status is not None and (call.result is UNSET or call.status != ToolCallStatus.OK):
        call.identity.append(["status", call.status, call.error])
