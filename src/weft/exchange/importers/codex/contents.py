"""What messages hold: parts, prompts with the events that tell of them, summaries of compactions.

Content is taken from items; what has no part is told apart, never dropped. Events tell which prompts a person wrote;
where a file has an event and no item for it (a trimmed copy), the event's text is taken. A summary made on the
provider's side is encrypted, and none is kept here then; what a compaction keeps beside it are the people's own
messages, not whole turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from msgspec import UNSET, Struct, field

from weft.exchange.importers.codex.entries import Entry, Sort, digest
from weft.exchange.importers.port import NativeCompaction
from weft.exchange.importers.records.values import mapping, sequence, text, whole, without_none
from weft.kernel.enums import FileKind, MessageSource
from weft.ledger.model import FileNote, ImagePart, Part, ReasoningPart, TextPart

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
        return "".join(each for each in texts if not each.startswith(("<image", "</image>")))


def content_of(blocks: Any) -> Content:
    content = Content()
    for block in [blocks] if isinstance(blocks, str | dict) else sequence(blocks):
        _take(content, block)
    return content


def _take(content: Content, block: Any) -> None:
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
    return [ReasoningPart(each) for each in texts]


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
        for at, entry in enumerate(entries):
            if entry.sort in (Sort.USER, Sort.NOTICE) or (entry.sort == Sort.INJECTED and _is_user(entry)):
                self.contents[at] = content_of(entry.value.get("content"))
            elif entry.sort == Sort.PROMPT_EVENT:
                waiting.append((at, entry, event_words(entry).strip()))
        self.has_prompt_events = bool(waiting)
        if waiting:
            self._pair(entries, waiting)

    def _pair(self, entries: list[Entry], waiting: list[tuple[int, Entry, str]]) -> None:
        """By their text; what is left over, in order."""
        places: dict[str, deque[int]] = {}
        for at, content in self.contents.items():
            places.setdefault(content.words().strip(), deque()).append(at)
        left: list[tuple[int, Entry, str]] = []
        texts: dict[str, set[str]] = {}
        for at, entry, words in waiting:
            if places.get(words):
                self.events[places[words].popleft()] = entry
                texts.setdefault(words, set()).add(entry.name)
            else:
                left.append((at, entry, words))
        free = deque(at for at in self.contents if at not in self.events and entries[at].sort == Sort.USER)
        for at, entry, words in left:
            if texts.get(words, set()) - {entry.name}:
                continue  # the newest history may tell of one prompt by two kinds of event
            if free:
                self.events[free.popleft()] = entry
            else:
                self.alone[at] = _event_content(entry)

    def source(self, at: int, sort: Sort, is_subagent: bool) -> MessageSource:
        """In a subagent's thread another agent writes what a person would."""
        if at in self.events or at in self.alone or (sort == Sort.USER and not self.has_prompt_events):
            return MessageSource.AGENT if is_subagent else MessageSource.HUMAN
        if sort == Sort.NOTICE:
            words = self.contents[at].words().lstrip().lower()
            if words.startswith("<subagent_notification>"):
                return MessageSource.AGENT
            if words.startswith("<hook_prompt"):
                return MessageSource.TRIGGER
        return MessageSource.EVENT

    def files(self, at: int) -> tuple[FileNote, ...]:
        """Images that were attached by their path."""
        event = self.events.get(at)
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


class Echoes:
    """Tells the texts of a turn's events that its items have already said."""

    def __init__(self, entries: list[Entry]) -> None:
        self._answer_texts = {words for entry in entries if entry.sort == Sort.ANSWER_TEXT for words in _texts(entry)}
        self._begun = {words[:_SHARED_LETTERS] for words in self._answer_texts if len(words) >= _SHARED_LETTERS}
        self._thought = {
            words.strip() for entry in entries if entry.sort == Sort.THOUGHT for words in thoughts_of(entry.value)
        }
        self._by: dict[str, str] = {}
        """Texts that an event alone has said, and which kind of event."""
        self.answers = bool(self._answer_texts) or any(entry.sort == Sort.ANSWER_TEXT_EVENT for entry in entries)

    def is_new_text(self, words: str, kind: str) -> bool:
        found = words.strip()
        if not found or found in self._answer_texts or self._by.get(found, kind) != kind:
            return False
        if found[:_SHARED_LETTERS] in self._begun:
            return False
        self._by[found] = kind
        return True

    def new_thoughts(self, entry: Entry) -> list[str]:
        fresh = []
        for words in thoughts_of(entry.value):
            found = words.strip()
            if found and found not in self._thought and self._by.get(found, entry.name) == entry.name:
                self._by[found] = entry.name
                fresh.append(words)
        return fresh


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
            window_number=whole(fields.get("window_number")),
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
