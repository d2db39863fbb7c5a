"""What a tool call tells of files, as exactly as it can be told: texts that were written or read whole, texts that were
exchanged, patches, deletions. What only says that a file was changed, and not how, is told as that."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from weft.exchange.edits.arguments import EVERYWHERE, NEW, OLD, PATHS, WRITTEN, opened, text_at
from weft.exchange.edits.changes import BEGIN, parse_patch, swaps_in
from weft.exchange.edits.edits import Hunk, Swap, patch_edit

_CHANGES = re.compile(r"write|edit|create|replace|patch|insert|save|append", re.IGNORECASE)
"""Names of tools that change the file which they are given."""
_QUOTED = re.compile(r'"(\*\*\* Begin Patch(?:[^"\\\n]++|\\.)*+)"')
_FILE = re.compile(r"\*\*\* (Add|Update|Delete) File: (.*)")
_END, _MOVE = "*** End Patch", "*** Move to: "
_NUMBERED = re.compile(r" *(\d+)[\t→](.*)", re.DOTALL)
_CUT_LINE = 2000
"""Readers cut lines that are longer."""


class FileAccess(Struct, frozen=True, kw_only=True):
    """What a call tells of one file: exactly one of these, but for `hunks`, which may tell the same as `swaps`."""

    path: str
    whole: str | None = None
    swaps: tuple[Swap, ...] = ()
    hunks: tuple[Hunk, ...] = ()
    is_deleted: bool = False
    is_read: bool = False
    """Whether `whole` was only found there."""

    @property
    def is_vague(self) -> bool:
        """Whether it was changed, and nothing tells how."""
        return self.whole is None and not self.swaps and not self.hunks and not self.is_deleted


def file_accesses(name: str, arguments: Any, result: Any, detail: Any) -> list[FileAccess]:
    """What a call that ended well did to files, and the texts of those that it read whole."""
    given = opened(arguments)
    detail = detail if isinstance(detail, dict) else {}
    found = [*_in_table(detail)] or [*_in_patches(given)]
    if found:
        return found
    path = text_at(given, PATHS)
    if path is None:
        return []
    if _CHANGES.search(name):
        return [_changed(path, given, detail)]
    text = _read_whole(result, detail)
    return [] if text is None else [FileAccess(path=path, whole=text, is_read=True)]


def _changed(path: str, given: Any, detail: dict[str, Any]) -> FileAccess:
    """A text that somebody changed before it was written is not the one that was asked for: then the patch counts."""
    hunks = tuple(_structured(detail.get("structuredPatch")))
    if detail.get("userModified") is True:
        return FileAccess(path=path, hunks=hunks)
    swaps = tuple(swap for one in swaps_in(given) if (swap := _swap(one)) is not None)
    if swaps:
        return FileAccess(path=path, swaps=swaps, hunks=hunks)
    whole = text_at(given, WRITTEN)
    return FileAccess(path=path, whole=whole) if whole is not None else FileAccess(path=path, hunks=hunks)


def _swap(given: Any) -> Swap | None:
    old, new = text_at(given, OLD), text_at(given, NEW)
    if old is None or new is None:
        return None
    return Swap(old, new, any(given.get(name) is True for name in EVERYWHERE))


def _structured(hunks: Any) -> Iterator[Hunk]:
    for hunk in hunks if isinstance(hunks, list) else ():
        lines = hunk.get("lines") if isinstance(hunk, dict) else None
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            continue
        if any(line.startswith("\\") for line in lines):
            return  # whether the last line ends is told for one side alone
        old, new = hunk.get("oldStart"), hunk.get("newStart")
        signed = tuple((line[:1], line[1:]) for line in lines)
        yield Hunk(signed, old if isinstance(old, int) else None, new if isinstance(new, int) else None)


# --- patches ---------------------------------------------------------------------------------------------------------


def _in_table(detail: dict[str, Any]) -> Iterator[FileAccess]:
    """A table of changes by path, as Codex keeps it."""
    events = detail.get("events")
    for holder in (detail, *(events if isinstance(events, list) else ())):
        changes = holder.get("changes") if isinstance(holder, dict) else None
        if isinstance(changes, dict) and holder.get("success") is not False:
            for path, change in changes.items():
                yield from _of_table(path, change if isinstance(change, dict) else {})


def _of_table(path: str, change: dict[str, Any]) -> Iterator[FileAccess]:
    kind = next((word for word in ("add", "update", "delete") if word == change.get("type") or word in change), None)
    inner = change[kind] if kind in change and isinstance(change[kind], dict) else change
    content, diff, target = (inner.get(name) for name in ("content", "unified_diff", "move_path"))
    if kind == "delete":
        yield FileAccess(path=path, is_deleted=True)
    elif kind == "add" and isinstance(content, str):
        yield FileAccess(path=path, whole=content)
    elif isinstance(target, str):
        yield FileAccess(path=path, is_deleted=True)
        yield FileAccess(path=target)
    else:
        yield FileAccess(path=path, hunks=_hunks(diff, path) if isinstance(diff, str) else ())


def _hunks(diff: str, path: str) -> tuple[Hunk, ...]:
    if "\n\\ No newline" in diff:
        return ()
    return tuple(hunk for change in parse_patch(diff, path) for hunk in patch_edit(change).hunks)


def _in_patches(given: Any) -> Iterator[FileAccess]:
    for text in _patch_texts(given):
        for head, lines in _parts(text):
            kind, path = head
            body = "\n".join(lines)
            if kind == "Delete":
                yield FileAccess(path=path, is_deleted=True)
            elif kind == "Add":
                yield FileAccess(path=path, whole="".join(f"{line[1:]}\n" for line in lines if line.startswith("+")))
            elif lines and lines[0].startswith(_MOVE):
                yield FileAccess(path=path, is_deleted=True)
                yield FileAccess(path=lines[0].removeprefix(_MOVE).strip())
            else:
                yield FileAccess(path=path, hunks=_hunks(body, path))


def _patch_texts(given: Any) -> Iterator[str]:
    """Patches between their marks: in any argument, as a word of a command, or quoted in a program."""
    for text in _strings(given):
        quoted = list(_QUOTED.finditer(text))
        for one in quoted:
            try:
                yield json.loads(f'"{one[1]}"')
            except ValueError:
                continue
        if not quoted and BEGIN in text:
            yield text[text.index(BEGIN) :].split(_END, 1)[0]


def _strings(given: Any) -> Iterable[str]:
    if isinstance(given, str):
        return [given]
    values = list(given.values()) if isinstance(given, dict) else []
    words = [word for value in values if isinstance(value, list) for word in value]
    return [value for value in (*values, *words) if isinstance(value, str)]


def _parts(text: str) -> Iterator[tuple[tuple[str, str], list[str]]]:
    head, lines = None, list[str]()
    for line in text.split("\n"):
        if line.startswith(_END):
            break
        if found := _FILE.match(line):
            if head is not None:
                yield head, lines
            head, lines = (found[1], found[2].strip()), []
        elif head is not None:
            lines.append(line)
    if head is not None:
        yield head, lines


# --- texts that were read --------------------------------------------------------------------------------------------


def _read_whole(result: Any, detail: dict[str, Any]) -> str | None:
    """All of a file whose lines a reader numbered; the last number stands alone where the last line is ended."""
    file = detail.get("file")
    if not isinstance(file, dict) or file.get("startLine") != 1 or file.get("numLines") != file.get("totalLines"):
        return None
    count, lines = file.get("totalLines"), (_text(result) or "").split("\n")
    if not isinstance(count, int) or not 0 < count <= len(lines):
        return None
    found = [_NUMBERED.fullmatch(line) for line in lines[:count]]
    texts = [one[2] for number, one in enumerate(found, 1) if one is not None and int(one[1]) == number]
    return "\n".join(texts) if len(texts) == count and all(len(text) < _CUT_LINE for text in texts) else None


def _text(result: Any) -> str | None:
    if isinstance(result, str):
        return result
    parts = result if isinstance(result, list) else []
    return next((part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)), None)
