"""Files that commands of SWE-agent opened or changed, and those that a patch changes."""

from __future__ import annotations

import re
import shlex
from typing import Any

from weft.exchange.importers.values import mapping, sequence, text, whole
from weft.kernel.enums import FileKind
from weft.ledger.model import FileNote

EDITED = re.compile(r"edit\s+(\d{1,9}):(\d{1,9})")
PATCHED = re.compile(r'^(?:\+\+\+ "?b/(.+?)"?|rename to (.+?))\s*$', re.MULTILINE)
NOT_OPEN = frozenset({"", "n/a"})


def patched(submission: Any) -> tuple[FileNote, ...]:
    """Those that a patch in git's form leaves changed."""
    words = submission if isinstance(submission, str) else ""
    found = dict.fromkeys(found[0] or found[1] for found in PATCHED.findall(words))
    return tuple(FileNote(kind=FileKind.WRITTEN, path=path) for path in found)


def commanded(action: Any, state: dict[str, Any]) -> tuple[FileNote, ...]:
    """Of a command line: `open PATH [LINE]`, `create PATH`, `edit A:B` of the open file, `str_replace_editor`."""
    words = _words(action)
    if len(words) < 2:
        return ()
    name, path = words[0], words[1]
    if name == "open":
        line = int(words[2]) if len(words) > 2 and words[2].isdecimal() and len(words[2]) < 10 else None
        return (FileNote(kind=FileKind.READ, path=path, line_start=line),)
    if name == "create":
        return (FileNote(kind=FileKind.WRITTEN, path=path),)
    if name in ("edit", "insert"):
        return _edited(str(action), state)
    if name == "str_replace_editor" and len(words) > 2:
        return edited_by(path, words[2], None)
    return ()


def _words(action: Any) -> list[str]:
    line = action.strip().split("\n", 1)[0][:2000] if isinstance(action, str) else ""
    try:
        return shlex.split(line)
    except ValueError:  # a quotation that goes on in the next line
        return line.split()


def _edited(action: str, state: dict[str, Any]) -> tuple[FileNote, ...]:
    path = text(state.get("open_file")) or ""
    if path in NOT_OPEN:
        return ()
    lines = EDITED.match(action.strip())
    start, end = (int(lines[1]), int(lines[2])) if lines else (None, None)
    return (FileNote(kind=FileKind.WRITTEN, path=path, line_start=start, line_end=end),)


def called(name: str, arguments: Any, state: dict[str, Any]) -> tuple[FileNote, ...]:
    """Of a call with named arguments."""
    told = mapping(arguments)
    path = text(told.get("path")) or text(told.get("filename")) or text(told.get("file_path"))
    if name == "edit":
        return _edited("", state)
    if path is None:
        return ()
    if name == "open":
        return (FileNote(kind=FileKind.READ, path=path, line_start=whole(told.get("line_number"))),)
    if name == "create":
        return (FileNote(kind=FileKind.WRITTEN, path=path),)
    return edited_by(str(told.get("command")), path, told.get("view_range")) if name.startswith("str_replace") else ()


def edited_by(command: str, path: str, seen: Any) -> tuple[FileNote, ...]:
    """The editor that Anthropic defined: `view` reads, everything else writes."""
    if command == "view":
        lines = [number for each in sequence(seen) if (number := whole(each)) is not None and number > 0]
        start, end = (lines[0], lines[1]) if len(lines) == 2 else (None, None)
        return (FileNote(kind=FileKind.READ, path=path, line_start=start, line_end=end),)
    if command in ("create", "str_replace", "insert", "undo_edit"):
        return (FileNote(kind=FileKind.WRITTEN, path=path),)
    return ()
