"""Which of a turn's texts are said twice, by an item and by an event, and who wrote its prompts.

Content is taken from items. Events tell which prompts a person wrote; where a file has an event and no item for it (a
trimmed copy), the event's text is taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from weft.exchange.importers.codex.contents import Content, content_of, thoughts_of
from weft.exchange.importers.codex.kinds import Entry, Sort
from weft.exchange.importers.values import mapping, sequence, text
from weft.kernel.enums import FileKind, MessageSource
from weft.ledger.model import FileNote, ImagePart, TextPart

_SHARED = 60
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
        self.told = bool(waiting)
        if waiting:
            self._pair(entries, waiting)

    def _pair(self, entries: list[Entry], waiting: list[tuple[int, Entry, str]]) -> None:
        """By their text; what is left over, in order."""
        places: dict[str, deque[int]] = {}
        for at, content in self.contents.items():
            places.setdefault(content.words().strip(), deque()).append(at)
        left: list[tuple[int, Entry, str]] = []
        told: dict[str, set[str]] = {}
        for at, entry, words in waiting:
            if places.get(words):
                self.events[places[words].popleft()] = entry
                told.setdefault(words, set()).add(entry.name)
            else:
                left.append((at, entry, words))
        free = deque(at for at in self.contents if at not in self.events and entries[at].sort == Sort.USER)
        for at, entry, words in left:
            if told.get(words, set()) - {entry.name}:
                continue  # the newest history may tell of one prompt by two kinds of event
            if free:
                self.events[free.popleft()] = entry
            else:
                self.alone[at] = _event_content(entry)

    def source(self, at: int, sort: Sort, is_subagent: bool) -> MessageSource:
        """In a subagent's thread another agent writes what a person would."""
        if at in self.events or at in self.alone or (sort == Sort.USER and not self.told):
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
        self._said = {words for entry in entries if entry.sort == Sort.SAID for words in _texts(entry)}
        self._begun = {words[:_SHARED] for words in self._said if len(words) >= _SHARED}
        self._thought = {
            words.strip() for entry in entries if entry.sort == Sort.THOUGHT for words in thoughts_of(entry.value)
        }
        self._by: dict[str, str] = {}
        """Texts that an event alone has said, and which kind of event."""
        self.answers = bool(self._said) or any(entry.sort == Sort.SAID_EVENT for entry in entries)

    def is_new_text(self, words: str, kind: str) -> bool:
        found = words.strip()
        if not found or found in self._said or self._by.get(found, kind) != kind:
            return False
        if found[:_SHARED] in self._begun:
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
