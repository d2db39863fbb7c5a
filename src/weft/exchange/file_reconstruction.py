"""The files of a turn, put together from what its session tells, with their gaps.

What a tool call tells of files exactly; what a shell command may have done to them, told by its
words alone. A reconstruction is written into a folder that is new or empty, without trust in what
it holds.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import Struct

from weft.exchange.file_changes import (
    BEGIN,
    EVERYWHERE,
    NEW,
    OLD,
    PATHS,
    WRITTEN,
    Hunk,
    Swap,
    opened,
    parse_patch,
    patch_edit,
    swaps_in,
    text_at,
)
from weft.kernel.enums import ToolCallStatus
from weft.kernel.errors import InvalidInput, NotApplicable, NotFound, StoreFailed
from weft.ledger.api import Ledger
from weft.ledger.model import ToolCall, Turn

# --- What a tool call tells of files, as exactly as it can be told: texts that were written or read whole, texts that
# were exchanged, patches, deletions.

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
    opened_arguments = opened(arguments)
    detail = detail if isinstance(detail, dict) else {}
    accesses = [*_in_table(detail)] or [*_in_patches(opened_arguments)]
    if accesses:
        return accesses
    path = text_at(opened_arguments, PATHS)
    if path is None:
        return []
    if _CHANGES.search(name):
        return [_changed(path, opened_arguments, detail)]
    text = _read_whole(result, detail)
    return [] if text is None else [FileAccess(path=path, whole=text, is_read=True)]


def _changed(path: str, arguments: Any, detail: dict[str, Any]) -> FileAccess:
    """A text that somebody changed before it was written is not the one that was asked for: then the patch counts."""
    hunks = tuple(_structured(detail.get("structuredPatch")))
    if detail.get("userModified") is True:
        return FileAccess(path=path, hunks=hunks)
    swaps = tuple(swap for swap_fields in swaps_in(arguments) if (swap := _swap(swap_fields)) is not None)
    if swaps:
        return FileAccess(path=path, swaps=swaps, hunks=hunks)
    whole_text = text_at(arguments, WRITTEN)
    return FileAccess(path=path, whole=whole_text) if whole_text is not None else FileAccess(path=path, hunks=hunks)


def _swap(fields: Any) -> Swap | None:
    old, new = text_at(fields, OLD), text_at(fields, NEW)
    if old is None or new is None:
        return None
    return Swap(old, new, any(fields.get(name) is True for name in EVERYWHERE))


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


def _in_patches(arguments: Any) -> Iterator[FileAccess]:
    for text in _patch_texts(arguments):
        for head, lines in _file_sections(text):
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


def _patch_texts(arguments: Any) -> Iterator[str]:
    """Patches between their marks: in any argument, as a word of a command, or quoted in a program."""
    for text in _strings(arguments):
        quoted = list(_QUOTED.finditer(text))
        for quotation in quoted:
            try:
                yield json.loads(f'"{quotation[1]}"')
            except ValueError:
                continue
        if not quoted and BEGIN in text:
            yield text[text.index(BEGIN) :].split(_END, 1)[0]


def _strings(arguments: Any) -> Iterable[str]:
    if isinstance(arguments, str):
        return [arguments]
    values = list(arguments.values()) if isinstance(arguments, dict) else []
    words = [word for value in values if isinstance(value, list) for word in value]
    return [value for value in (*values, *words) if isinstance(value, str)]


def _file_sections(text: str) -> Iterator[tuple[tuple[str, str], list[str]]]:
    head, lines = None, list[str]()
    for line in text.split("\n"):
        if line.startswith(_END):
            break
        if file_match := _FILE.match(line):
            if head is not None:
                yield head, lines
            head, lines = (file_match[1], file_match[2].strip()), []
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
    matches = [_NUMBERED.fullmatch(line) for line in lines[:count]]
    texts = [match[2] for number, match in enumerate(matches, 1) if match is not None and int(match[1]) == number]
    return "\n".join(texts) if len(texts) == count and all(len(text) < _CUT_LINE for text in texts) else None


def _text(result: Any) -> str | None:
    if isinstance(result, str):
        return result
    blocks = result if isinstance(result, list) else []
    return next(
        (block["text"] for block in blocks if isinstance(block, dict) and isinstance(block.get("text"), str)), None
    )


# --- What a shell command may have done to files, told by its words alone: nothing, something to paths that it names,
# or nobody knows what.

_SHELLS = frozenset(
    {"bash", "shell", "exec", "exec_command", "shell_command", "execute_command", "local_shell", "run_terminal_cmd"}
    | {"run_shell_command", "container.exec", "terminal", "write_stdin", "powershell", "monitor"}
)
_READERS = frozenset(
    "[ awk basename cat cd cmp column comm cut date diff dirname du echo expr false fd file find git grep head hostname"
    " id jq less ls nl od pgrep printf ps pwd readlink realpath rg sed seq sleep sort stat strings tail test tr tree"
    " true type uname uniq wc which whoami xxd".split()
)
_WRITING_OPTIONS = {"sed": "i", "awk": "i", "sort": "o", "tree": "o", "fd": "xX", "xxd": "r"}
"""Letters of options with which a command that else reads may write."""
_GIT_READERS = frozenset(
    "add blame describe diff fetch grep log ls-files ls-tree push remote rev-parse show status".split()
)
_HARMLESS = re.compile(r"\d?>>?[ \t]*+/dev/null|\d?>&\d|&>[ \t]*+/dev/null")
_ACTS = re.compile(r"[<>`]|\$\(|-exec|-delete|-fprint|-ok|--output|--in-place|system\(")
_PARTS = re.compile(r"&&|\|\||[;|\n&]")
_ASSIGNMENT = re.compile(r"\w++=\S*+")
_TARGETS = re.compile(r">{1,2}[ \t]*+([\w./@+-]++)")
_ALL = re.compile(
    r"\bgit[ \t]++(?:-\S++[ \t]++)*+"
    r"(?:am|apply|checkout|cherry-pick|clean|merge|pull|rebase|reset|restore|revert|stash|switch)\b"
)
_WORD = re.compile(r"[\w./@+~-]++")
_NAMED = re.compile(r"\b(?:rm|mv|cp|tee|truncate|install|ln|patch|perl|ruby|sed|dd|touch|rsync|unlink)\b")


class ShellEffect(Struct, frozen=True):
    """What a command may have done."""

    is_reading: bool
    changes_all: bool = False
    """Whether it may have changed any file of the workspace at once."""
    paths: tuple[str, ...] = ()
    """Words that may be paths which it wrote to, moved or removed."""


def shell_command(name: str, arguments: Any) -> str | None:
    """The words of a command, where a call ran one."""
    if name.lower() not in _SHELLS:
        return None
    opened_arguments = opened(arguments)
    if isinstance(opened_arguments, str):
        return opened_arguments
    value = (
        next((opened_arguments[key] for key in ("command", "cmd", "chars") if key in opened_arguments), "")
        if opened_arguments
        else ""
    )
    if isinstance(value, list):
        words = [word for word in value if isinstance(word, str)]
        return words[-1] if len(words) == 3 and words[1] in ("-lc", "-c") else " ".join(words)
    return value if isinstance(value, str) else ""


def effect_of(command: str) -> ShellEffect:
    plain = _HARMLESS.sub(" ", command)
    if not _ACTS.search(plain) and all(_is_reader(command_part) for command_part in _PARTS.split(plain)):
        return ShellEffect(True)
    paths = [match[1] for match in _TARGETS.finditer(plain)]
    for command_part in _PARTS.split(plain):
        if _NAMED.search(command_part):
            paths += _WORD.findall(command_part)
    return ShellEffect(False, bool(_ALL.search(plain)), tuple(dict.fromkeys(paths)))


def _is_reader(command_part: str) -> bool:
    words = [word for word in command_part.split() if not _ASSIGNMENT.fullmatch(word)]
    if not words:
        return True
    if words[0] == "git":
        return next((word for word in words[1:] if not word.startswith("-")), "") in _GIT_READERS
    letters = _WRITING_OPTIONS.get(words[0], "")
    options = [word for word in words[1:] if word.startswith("-") and not word.startswith("--")]
    return words[0] in _READERS and not any(letter in word for word in options for letter in letters)


# --- The files of a turn, put together from what its session tells: texts that were written or read whole, and the
# edits that were made to them since.

MOST_TEXT = 16 * 1024 * 1024
MOST_FILES = 100_000
MOST_SUBAGENTS = 4
"""So many of them may have started each other."""
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")
_OWN_FOLDERS = (".git", "git~1", ".weft")
"""What git and Weft obey, in small letters: no stranger's session makes one."""
_UNSEEN = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")
"""Characters that some file systems leave out of names."""


class GapReason(StrEnum):
    """Why a file is not known."""

    BASE_UNKNOWN = "its text before the edit is not told"
    NO_MATCH = "an edit does not fit the text that is known"
    CHANGE_UNKNOWN = "how it was changed is not told"
    SHELL = "a command that cannot be followed may have changed it"
    NO_OUTCOME = "whether the change was made is not told"
    OUTSIDE = "it lies outside of the workspace"
    REPOSITORY = "with it git would take its folder for a repository"
    NOT_TEXT = "it is no text that can be written"
    TOO_LARGE = "it is too large"
    SUBAGENT = "what a subagent did is not known"


class Gap(Struct, frozen=True, kw_only=True):
    """Something that is not known."""

    path: str | None
    """None: it is not known of which file."""
    why: GapReason
    turn: str
    """In which turn it came to be."""


class Reconstruction(Struct, frozen=True, kw_only=True):
    """The files of a workspace after a turn, as far as its session tells."""

    turn: str
    workspace: str | None
    files: dict[str, bytes]
    """By path below the workspace."""
    deleted: tuple[str, ...]
    gaps: tuple[Gap, ...]


def reconstruct(ledger: Ledger, rev: str) -> Reconstruction:
    """What the edits of the turns up to this one leave."""
    turns = list(ledger.thread(rev).turns)
    workspace = _workspace(turns)
    files = _WorkspaceFiles(ledger, workspace)
    for turn in turns:
        files.follow(turn)
    return files.result(ledger.resolve(rev))


def _workspace(turns: Iterable[Turn]) -> str | None:
    """The folder that the turns worked in: of one inside of the other the outer one, else the first."""
    folder: str | None = None
    for turn in turns:
        place = None if turn.workspace_path is None else _posix(turn.workspace_path)
        if place is not None and (folder is None or PurePosixPath(folder).is_relative_to(place)):
            folder = place
    return folder


class _KnownFile(Struct):
    """A text, or why there is none; neither: it is deleted."""

    text: str | None = None
    gap: Gap | None = None


class _WorkspaceFiles:
    """The files of a workspace on their way through the turns."""

    def __init__(self, ledger: Ledger, workspace: str | None) -> None:
        self._ledger, self._workspace = ledger, workspace
        self._files: dict[str, _KnownFile] = {}
        self._others: dict[tuple[str | None, GapReason], Gap] = {}
        """Gaps that are of no file here."""

    def follow(self, turn: Turn, depth: int = 0) -> None:
        for call in self._ledger.tool_calls(turn.id):
            self._follow_call(turn, call)
            if call.spawned_session is not None:
                self._follow_subagent(turn, call.spawned_session, depth)

    def result(self, turn: str) -> Reconstruction:
        files: dict[str, bytes] = {}
        gaps = [*self._others.values(), *(file.gap for file in self._files.values() if file.gap is not None)]
        for path, file in self._files.items():
            if file.text is not None:
                try:
                    files[path] = file.text.encode()
                except UnicodeEncodeError:
                    gaps.append(Gap(path=path, why=GapReason.NOT_TEXT, turn=turn))
        for path in [path for path in files if _makes_repository(path, files)]:
            del files[path]
            gaps.append(Gap(path=path, why=GapReason.REPOSITORY, turn=turn))
        return Reconstruction(
            turn=turn,
            workspace=self._workspace,
            files=dict(sorted(files.items())),
            deleted=tuple(sorted(path for path, file in self._files.items() if file == _KnownFile())),
            gaps=tuple(sorted(gaps, key=lambda gap: (gap.path or "", gap.why))),
        )

    # --- calls ------------------------------------------------------------------------------------------------------

    def _follow_call(self, turn: Turn, call: ToolCall) -> None:
        """A change that failed, or that nobody allowed, changed nothing; a command that failed may have."""
        if call.outcome == ToolCallStatus.CANCELED:
            return
        accesses = file_accesses(call.name, call.arguments, call.result, call.metadata)
        command = None if accesses else shell_command(call.name, call.arguments)
        if command is not None:
            self._run(turn, command)
        for access in accesses if call.outcome != ToolCallStatus.ERROR else ():
            self._apply_access(turn, access, is_sure=call.outcome == ToolCallStatus.OK)

    def _follow_subagent(self, turn: Turn, session: str, depth: int) -> None:
        try:
            turns = list(self._ledger.thread(session).turns) if depth < MOST_SUBAGENTS else None
        except NotFound:
            turns = None
        if turns is None:
            self._leave(turn, None, GapReason.SUBAGENT)
        for inner_turn in turns or ():
            self.follow(inner_turn, depth + 1)

    def _run(self, turn: Turn, command: str) -> None:
        effect = effect_of(command)
        if effect.is_reading:
            return
        self._leave(turn, None, GapReason.SHELL)
        if effect.changes_all:
            for path in self._files:
                self._files[path] = _KnownFile(gap=Gap(path=path, why=GapReason.SHELL, turn=turn.id))
        named_paths = {place for word in effect.paths if (place := self._place(turn, word)) is not None}
        for path in [path for path in self._files if path in named_paths or not named_paths.isdisjoint(_above(path))]:
            self._files[path] = _KnownFile(gap=Gap(path=path, why=GapReason.SHELL, turn=turn.id))

    def _apply_access(self, turn: Turn, access: FileAccess, *, is_sure: bool) -> None:
        path = self._place(turn, access.path)
        if path is None:
            if not access.is_read:
                self._leave(turn, None, GapReason.OUTSIDE)
            return
        if len(self._files) >= MOST_FILES and path not in self._files:
            self._leave(turn, None, GapReason.TOO_LARGE)
            return
        if access.is_read and not is_sure:
            return
        known_file = self._files.get(path)
        after = _after(known_file, access) if is_sure else GapReason.NO_OUTCOME
        if isinstance(after, str) and not isinstance(after, GapReason) and len(after) > MOST_TEXT:
            after = GapReason.TOO_LARGE
        if isinstance(after, GapReason):
            self._files[path] = _KnownFile(gap=Gap(path=path, why=after, turn=turn.id))
            return
        self._files[path] = _KnownFile(text=after)
        for folder in _above(path) if after is not None else ():
            self._files.pop(folder, None)  # it is a folder now

    def _leave(self, turn: Turn, path: str | None, why: GapReason) -> None:
        self._others.setdefault((path, why), Gap(path=path, why=why, turn=turn.id))

    def _place(self, turn: Turn, path: str) -> str | None:
        """The path below the workspace; None where it lies elsewhere, or in the store of a repository."""
        own_folder = turn.workspace_path or self._workspace
        if self._workspace is None or own_folder is None or "\0" in path:
            return None
        place = PurePosixPath(os.path.normpath(os.path.join(_posix(own_folder), _posix(path))))
        if not place.is_relative_to(self._workspace):
            return None
        names = place.relative_to(self._workspace).parts
        is_fine = bool(names) and not any(_is_own_folder(name) or name == ".." for name in names)
        return "/".join(names) if is_fine else None


def _is_own_folder(name: str) -> bool:
    return _UNSEEN.sub("", name).lower().rstrip(". ") in _OWN_FOLDERS


def _makes_repository(path: str, files: Mapping[str, bytes]) -> bool:
    """Whether a file is the HEAD of what git takes for a repository, whatever its folder is called: it would obey the
    settings there, which name programs."""
    folder, slash, name = path.lower().rpartition("/")
    if name != "head":
        return False
    paths = (other.lower() for other in files)
    beside = {
        other.removeprefix(f"{folder}{slash}").partition("/")[0]
        for other in paths
        if other.startswith(f"{folder}{slash}")
    }
    return "commondir" in beside or {"objects", "refs"} <= beside


def _posix(path: str) -> str:
    """A path of another system in the form that this one compares."""
    return os.path.normpath(path.replace("\\", "/") if _DRIVE.match(path) else path)


def _above(path: str) -> Iterator[str]:
    return (str(folder) for folder in PurePosixPath(path).parents if folder.parts)


# --- edits -----------------------------------------------------------------------------------------------------------


def _after(known_file: _KnownFile | None, access: FileAccess) -> str | GapReason | None:
    """The text after what a call tells; None: the file is gone."""
    if access.is_deleted:
        return None
    if access.whole is not None:
        return access.whole
    if access.is_vague:
        return GapReason.CHANGE_UNKNOWN
    text = _base(known_file, access)
    return GapReason.BASE_UNKNOWN if text is None else _edited(text, access)


def _base(known_file: _KnownFile | None, access: FileAccess) -> str | None:
    """The text before an edit: nothing, where the edit says that there was nothing, and nobody knows better."""
    if known_file is not None and (known_file.text is not None or known_file.gap is not None):
        return known_file.text
    return "" if access.swaps and not access.swaps[0].old else None


def _edited(text: str, access: FileAccess) -> str | GapReason:
    if not access.swaps:
        return _text_or_gap(_patched(text, access.hunks))
    swapped = _swapped(text, access.swaps)
    if access.hunks and swapped is not None and swapped != _patched(text, access.hunks):
        return GapReason.NO_MATCH  # the tool saw another text: somebody else had changed it
    return _text_or_gap(swapped)


def _text_or_gap(text: str | None) -> str | GapReason:
    return GapReason.NO_MATCH if text is None else text


def _swapped(text: str, swaps: Iterable[Swap]) -> str | None:
    """None where a text that is to be replaced is not there, or stands at several places of which one is meant."""
    for swap in swaps:
        if not swap.old:
            if text:
                return None
            text = swap.new
            continue
        count = text.count(swap.old)
        if count == 0 or (count > 1 and not swap.everywhere):
            return None
        text = text.replace(swap.old, swap.new)
        if len(text) > MOST_TEXT:
            return None
    return text


def _patched(text: str, hunks: Iterable[Hunk]) -> str | None:
    """None where a hunk fits nowhere, or at several places none of which is the one that it names."""
    lines, shift, is_any = text.split("\n"), 0, False
    for hunk in hunks:
        is_any = True
        before, after = hunk.before, hunk.after
        expected = None if hunk.old_start is None else hunk.old_start - 1 + shift
        position = _place_of(lines, before, expected)
        if position is None:
            return None
        lines[position : position + len(before)] = after
        shift += len(after) - len(before)
    return "\n".join(lines) if is_any else None


def _place_of(lines: list[str], block: list[str], expected: int | None) -> int | None:
    if not block:
        return None  # where it goes is told by a number that means the line before or after it, by whose it is
    size = len(block)
    if expected is not None and expected >= 0 and lines[expected : expected + size] == block:
        return expected
    firsts = [position for position, line in enumerate(lines[: len(lines) - size + 1]) if line == block[0]]
    places = [position for position in firsts[:_MOST_PLACES] if lines[position : position + size] == block]
    return places[0] if len(places) == 1 and len(firsts) <= _MOST_PLACES else None


_MOST_PLACES = 1000
"""A hunk whose first line stands at more places, and not where it says, is not looked for."""


# --- Writes a reconstruction into a folder that is new or empty.

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ANY_FILE, _ANY_FOLDER = 0o666, 0o777
"""As far as the umask lets them."""


def write_reconstruction(reconstruction: Reconstruction, folder: Path) -> None:
    """Raises NotApplicable where the folder holds something, StoreFailed where it cannot be written to: what was
    written by then stays."""
    for path in reconstruction.files:
        _ensure_below(path)
    place = str(folder)
    try:
        if not os.path.lexists(folder):
            os.mkdir(folder)
        root = os.open(folder, _FOLDER)
    except OSError as error:
        raise StoreFailed(f"{place}: {error.strerror}", "name a new folder in one that exists") from None
    with ExitStack() as stack:
        stack.callback(os.close, root)
        if os.listdir(root):
            raise NotApplicable(f"{place} exists and is not empty", "name a new folder")
        for path, data in reconstruction.files.items():
            try:
                _write(root, path.split("/"), data)
            except OSError as error:
                raise StoreFailed(f"{place}/{path}: {error.strerror}", "choose another folder") from None


def _ensure_below(path: str) -> None:
    names = path.split("/")
    if "\0" in path or any(name in ("", ".", "..") for name in names):
        raise InvalidInput(f"{path!r} is no path below a folder", "leave it out")


def _write(root: int, names: list[str], data: bytes) -> None:
    with ExitStack() as stack:
        folder = root
        for name in names[:-1]:
            with suppress(FileExistsError):  # made for another file; what it is shows when it is opened
                os.mkdir(name, _ANY_FOLDER, dir_fd=folder)
            folder = os.open(name, _FOLDER, dir_fd=folder)
            stack.callback(os.close, folder)
        descriptor = os.open(names[-1], _NEW_FILE, _ANY_FILE, dir_fd=folder)
        with open(descriptor, "wb") as file:
            file.write(data)
