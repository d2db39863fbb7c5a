"""What runs of SWE-agent and mini-swe-agent share: records of a document, items in order, files, and two accounts
joined.

A record is a step, a message, or a section beside them. A call gets the outcome that a later message brings. SWE-agent
tells a run twice: `history` is what the model saw, `trajectory` what was done, step by step; they are aligned.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from weft.exchange.importers.port import Item, NativeMessage, Report
from weft.exchange.importers.records.builder import PendingCall, finished_items
from weft.exchange.importers.records.values import JsonObject, mapping, sequence, text, whole
from weft.kernel.enums import FileKind, ToolCallStatus
from weft.ledger.model import FileNote

KNOWN_SECTIONS = frozenset({"info", "environment", "replay_config", "instance_id", "trajectory_format"})
"""Sections that tell of the run as a whole."""
LISTS = frozenset({"trajectory", "history", "messages", "attempts"})


def account(report: Report, kind: str, *, is_mapped: bool, is_unknown: bool = False) -> None:
    """One record found."""
    report.found += 1
    (report.mapped if is_mapped else report.kept)[kind] += 1
    if is_unknown:
        report.unknown[kind] += 1


def account_sections(report: Report, document: dict[str, Any]) -> None:
    for name in document:
        if name not in LISTS:
            account(report, name, is_mapped=name in KNOWN_SECTIONS, is_unknown=name not in KNOWN_SECTIONS)


def objects(values: Iterable[Any], kind: str, report: Report) -> list[dict[str, Any]]:
    """Those that are objects; anything else is a damaged record."""
    found = []
    for number, value in enumerate(values):
        if isinstance(value, dict):
            found.append(value)
        else:
            report.found += 1
            report.damaged += 1
            report.problem(None, f"{kind} {number} is a JSON {type(value).__name__}, not an object")
    return found


TIMED_OUT = ("EXECUTION TIMED OUT", "timed out and has been killed", "was cancelled because it took more than")
"""How a tool's words tell that a command took too long."""


def answer(call: PendingCall, result: Any) -> None:
    words = result if isinstance(result, str) else ""
    is_late = any(sign in words[:400] or sign in words[-400:] for sign in TIMED_OUT)
    call.answer(result, ToolCallStatus.TIMEOUT if is_late else ToolCallStatus.OK)


class RunItems(Struct):
    """The items of a run so far."""

    items: list[NativeMessage | PendingCall] = field(default_factory=list)
    asked: list[PendingCall] = field(default_factory=list)
    """Calls of the last response."""

    def say(self, message: NativeMessage, calls: Iterable[PendingCall] = ()) -> None:
        self.items.append(message)
        self.asked = list(calls)
        self.items += self.asked

    def waiting(self, ids: Iterable[Any] = ()) -> PendingCall | None:
        """The call that an outcome belongs to: the one it names, else the first that has none."""
        named = [call for call in self.asked if call.id in set(ids)] if ids else self.asked
        return next((call for call in named if call.is_open), None)

    def finished(self) -> list[Item]:
        return list(finished_items(self.items))


def with_files(items: list[Item], files: tuple[FileNote, ...]) -> list[Item]:
    """Files that the run as a whole changed, told with its last response."""
    for number in range(len(items) - 1, -1, -1):
        item = items[number]
        if isinstance(item, NativeMessage) and item.role == "assistant":
            items[number] = replace(item, files=(*item.files, *files))
            break
    return items


EDITED = re.compile(r"edit\s+(\d{1,9}):(\d{1,9})")
PATCHED = re.compile(r'^(?:(\+\+\+ "?b/)|rename to )(.+)$', re.MULTILINE)
NOT_OPEN = frozenset({"", "n/a"})


def patched(submission: Any) -> tuple[FileNote, ...]:
    """Those that a patch in git's form leaves changed."""
    words = submission if isinstance(submission, str) else ""
    found = dict.fromkeys(_path(rest, is_quoted=bool(added)) for added, rest in PATCHED.findall(words))
    return tuple(FileNote(kind=FileKind.WRITTEN, path=path) for path in found)


def _path(rest: str, is_quoted: bool) -> str:
    """What is named at the end of a line; at least one letter of it."""
    path = rest.rstrip()
    return (path.removesuffix('"') if is_quoted else path) or rest[0]


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
    fields = mapping(arguments)
    path = text(fields.get("path")) or text(fields.get("filename")) or text(fields.get("file_path"))
    if name == "edit":
        return _edited("", state)
    if path is None:
        return ()
    if name == "open":
        return (FileNote(kind=FileKind.READ, path=path, line_start=whole(fields.get("line_number"))),)
    if name == "create":
        return (FileNote(kind=FileKind.WRITTEN, path=path),)
    return (
        edited_by(str(fields.get("command")), path, fields.get("view_range")) if name.startswith("str_replace") else ()
    )


def edited_by(command: str, path: str, seen: Any) -> tuple[FileNote, ...]:
    """The editor that Anthropic defined: `view` reads, everything else writes."""
    if command == "view":
        lines = [number for each in sequence(seen) if (number := whole(each)) is not None and number > 0]
        start, end = (lines[0], lines[1]) if len(lines) == 2 else (None, None)
        return (FileNote(kind=FileKind.READ, path=path, line_start=start, line_end=end),)
    if command in ("create", "str_replace", "insert", "undo_edit"):
        return (FileNote(kind=FileKind.WRITTEN, path=path),)
    return ()


class Pair(Struct, frozen=True):
    """A response and its step; one of them may be missing."""

    message: int | None
    step: int | None


def align(responses: list[tuple[int, JsonObject]], steps: list[JsonObject]) -> list[Pair]:
    """Responses with their places in the history, in order, against the steps, in order."""
    pairs: list[Pair] = []
    later_steps, later_responses = _places(steps, "response"), _places([each for _, each in responses], "content")
    at = step = 0
    while at < len(responses) and step < len(steps):
        place, message = responses[at]
        if _same(message, steps[step]):
            pairs.append(Pair(place, step))
            at, step = at + 1, step + 1
        elif _comes(later_steps, message.get("content"), after=step):
            pairs.append(Pair(None, step))
            step += 1
        elif _comes(later_responses, steps[step].get("response"), after=at):
            pairs.append(Pair(place, None))
            at += 1
        else:  # edited on one side: nothing else can stand for either
            pairs.append(Pair(place, step))
            at, step = at + 1, step + 1
    pairs += [Pair(place, None) for place, _ in responses[at:]]
    pairs += [Pair(None, number) for number in range(step, len(steps))]
    return pairs


def _same(message: JsonObject, step: JsonObject) -> bool:
    content, done = message.get("content"), step.get("response")
    if isinstance(content, str) and content and content == done:
        return True
    action = message.get("action")
    return isinstance(action, str) and bool(action.strip()) and action == step.get("action")


def _places(records: list[JsonObject], name: str) -> dict[str, int]:
    """The last place of each text."""
    return {value: number for number, record in enumerate(records) if isinstance(value := record.get(name), str)}


def _comes(places: dict[str, int], words: Any, after: int) -> bool:
    return isinstance(words, str) and bool(words) and places.get(words, -1) > after
