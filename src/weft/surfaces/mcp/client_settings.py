"""Where coding agents keep their MCP servers, and how this one is put there and taken out again.

A file belongs to the person and to the other tool: what stands in it stays as it is, to the byte, with comments. Text
is put in at one place, in a way that tells how the place looked before, so that taking it out gives back the same
bytes.
Before anything is written, the new text is read and has to say what the old one said, and the entry. A file that cannot
be read is refused.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from weft.kernel.errors import InvalidInput, NotApplicable
from weft.ledger.arguments import path_error
from weft.store.private_files import make_folder

# --- Which file it is, and what stands in it.


class CodingTool(Struct, frozen=True, kw_only=True):
    """A tool that starts MCP servers."""

    name: str
    title: str
    section: str
    """The key that servers stand under."""
    user_file: Callable[[Callable[[str], str | None]], Path]
    project_file: str
    is_toml: bool = False
    has_comments: bool = False
    entry: Callable[[Sequence[str]], dict[str, Any]]


def _home(variable: Callable[[str], str | None]) -> Path:
    return Path(variable("HOME") or os.path.expanduser("~"))


def _claude_file(variable: Callable[[str], str | None]) -> Path:
    folder = variable("CLAUDE_CONFIG_DIR")
    return (Path(folder) if folder else _home(variable)) / ".claude.json"


def _codex_file(variable: Callable[[str], str | None]) -> Path:
    folder = variable("CODEX_HOME")
    return (Path(folder) if folder else _home(variable) / ".codex") / "config.toml"


def _opencode_file(variable: Callable[[str], str | None]) -> Path:
    folder = Path(variable("XDG_CONFIG_HOME") or _home(variable) / ".config") / "opencode"
    with_comments = folder / "opencode.jsonc"
    return with_comments if with_comments.exists() else folder / "opencode.json"


def _command_and_args(words: Sequence[str]) -> dict[str, Any]:
    return {"command": words[0], "args": list(words[1:])}


TOOLS: Mapping[str, CodingTool] = {
    tool.name: tool
    for tool in (
        CodingTool(
            name="claude-code",
            title="Claude Code",
            section="mcpServers",
            user_file=_claude_file,
            project_file=".mcp.json",
            entry=lambda words: {"type": "stdio", **_command_and_args(words)},
        ),
        CodingTool(
            name="codex",
            title="Codex",
            section="mcp_servers",
            user_file=_codex_file,
            project_file=".codex/config.toml",
            is_toml=True,
            has_comments=True,
            entry=_command_and_args,
        ),
        CodingTool(
            name="cursor",
            title="Cursor",
            section="mcpServers",
            user_file=lambda variable: _home(variable) / ".cursor" / "mcp.json",
            project_file=".cursor/mcp.json",
            has_comments=True,
            entry=_command_and_args,
        ),
        CodingTool(
            name="opencode",
            title="opencode",
            section="mcp",
            user_file=_opencode_file,
            project_file="opencode.json",
            has_comments=True,
            entry=lambda words: {"type": "local", "command": list(words), "enabled": True},
        ),
    )
}


def program_words() -> tuple[str, ...]:
    """How this program is started from anywhere: other tools do not have the PATH of this shell."""
    program = Path(sys.executable).with_name("weft")
    return (str(program),) if program.is_file() else (sys.executable, "-m", "weft.surfaces.cli")


def added(tool: CodingTool, text: str | None, name: str, entry: dict[str, Any]) -> str:
    """The text of a file with the server in it. None: there is no file yet. Raises InvalidInput, NotApplicable."""
    edit = _toml_added if tool.is_toml else _json_added
    wanted = _parsed(tool, text)
    if _servers(wanted, tool).get(name) == entry:
        return text or ""
    new = edit(tool, text, name, entry)
    wanted.setdefault(tool.section, {})[name] = entry
    _ensure_says(tool, new, wanted)
    return new


def removed(tool: CodingTool, text: str | None, name: str) -> str | None:
    """The text without the server, as it was before; None where there was no file. Raises NotApplicable where the
    server is not in it."""
    wanted = _parsed(tool, text)
    if text is None or name not in _servers(wanted, tool):
        raise NotApplicable(f"{tool.title} has no MCP server {name!r} there", "--project says another file")
    new = (_toml_removed if tool.is_toml else _json_removed)(tool, text, name)
    del wanted[tool.section][name]
    if new is not None:
        _ensure_says(tool, new, wanted)
    return new


def served_names(tool: CodingTool, text: str) -> frozenset[str]:
    """The servers that a file has."""
    return frozenset(_servers(_parsed(tool, text), tool))


def _parsed(tool: CodingTool, text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value = tomllib.loads(text) if tool.is_toml else _JsonText(text, comments=tool.has_comments).value()
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"it cannot be read: {error}", "mend the file first; nothing was changed") from None
    if not isinstance(value, dict) or not isinstance(value.get(tool.section, {}), dict):
        raise InvalidInput(f"it has no object with {tool.section}", "mend the file first; nothing was changed")
    return value


def _servers(value: dict[str, Any], tool: CodingTool) -> dict[str, Any]:
    servers: dict[str, Any] = value.get(tool.section, {})
    return servers


def _ensure_says(tool: CodingTool, text: str, wanted: dict[str, Any]) -> None:
    """That nothing else has changed. A section that is empty now may be gone."""
    try:
        said = _parsed(tool, text)
    except InvalidInput:
        said = None
    if said != wanted and said != {key: value for key, value in wanted.items() if key != tool.section or value}:
        raise NotApplicable(
            f"its {tool.section} is written in a way that cannot be changed safely: change the file by hand"
        )


# --- JSON, with comments where the tool takes them: where the members of an object lie in a text.


class _Member(NamedTuple):
    key: str
    start: int
    """Of its key."""
    value: int
    end: int


class _Object(NamedTuple):
    start: int
    """Of its brace."""
    end: int
    """Behind its brace."""
    members: list[_Member]


_BLANK = re.compile(r"[ \t\r\n]*")
_WITH_COMMENTS = re.compile(r"(?:[ \t\r\n]++|//[^\n]*+|/\*(?:[^*]|\*(?!/))*+\*/)*+")
_REMARK = re.compile(r"(?:[ \t]*+(?://[^\r\n]*+|/\*(?:[^*\r\n]|\*(?!/))*+\*/))*+")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_SCALAR = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null")
_DEEPEST = 100


class MalformedSettings(ValueError):
    """A settings file is not in its form, or holds a key twice."""


class _JsonText:
    """Reads a JSON text and keeps where things lie. Raises MalformedSettings."""

    def __init__(self, text: str, *, comments: bool) -> None:
        self._text, self._comments = text, comments
        self._blank = _WITH_COMMENTS if comments else _BLANK

    def value(self) -> Any:
        start = self.skipped(1 if self._text.startswith("\ufeff") else 0)
        value, end = self._read(start, 0)
        if (end := self.skipped(end)) != len(self._text):
            raise self._fault(end)
        return value

    def root(self) -> _Object:
        return self.object_at(self.skipped(1 if self._text.startswith("\ufeff") else 0))

    def skipped(self, at: int) -> int:
        match = self._blank.match(self._text, at)
        return at if match is None else match.end()

    def end_of_remark(self, at: int) -> int:
        """Behind the comments that stand in the same line."""
        match = _REMARK.match(self._text, at) if self._comments else None
        return at if match is None else match.end()

    def object_at(self, at: int) -> _Object:
        """An object that was read before."""
        members: list[_Member] = []
        _, end = self._read_object(at, 0, members)
        return _Object(at, end, members)

    def _fault(self, at: int) -> MalformedSettings:
        line = self._text.count("\n", 0, at) + 1
        return MalformedSettings(
            f"line {line} is no {'JSON' if not self._comments else 'JSON, with or without comments'}"
        )

    def _read(self, at: int, depth: int) -> tuple[Any, int]:
        sign = self._text[at : at + 1]
        if depth > _DEEPEST:
            raise MalformedSettings("it is nested too deeply")
        if sign == "{":
            return self._read_object(at, depth, [])
        if sign == "[":
            return self._read_list(at, depth)
        match = _STRING.match(self._text, at) if sign == '"' else _SCALAR.match(self._text, at)
        if match is None:
            raise self._fault(at)
        return json.loads(match[0]), match.end()

    def _read_object(self, at: int, depth: int, members: list[_Member]) -> tuple[dict[str, Any], int]:
        if self._text[at : at + 1] != "{":
            raise self._fault(at)
        found: dict[str, Any] = {}
        at = self.skipped(at + 1)
        while self._text[at : at + 1] != "}":
            key, colon = self._read(at, depth + 1)
            colon = self.skipped(colon)
            if not isinstance(key, str) or self._text[colon : colon + 1] != ":":
                raise self._fault(at)
            if key in found:
                raise MalformedSettings(f"it has {key!r} twice")
            begins = self.skipped(colon + 1)
            found[key], end = self._read(begins, depth + 1)
            members.append(_Member(key, at, begins, end))
            at = self._behind_comma(end, "}")
        return found, at + 1

    def _read_list(self, at: int, depth: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        at = self.skipped(at + 1)
        while self._text[at : at + 1] != "]":
            item, end = self._read(at, depth + 1)
            found.append(item)
            at = self._behind_comma(end, "]")
        return found, at + 1

    def _behind_comma(self, at: int, closing: str) -> int:
        at = self.skipped(at)
        if self._text[at : at + 1] == ",":
            behind = self.skipped(at + 1)
            if self._text[behind : behind + 1] == closing and not self._comments:
                raise self._fault(behind)
            return behind
        if self._text[at : at + 1] != closing:
            raise self._fault(at)
        return at


def _json_added(tool: CodingTool, text: str | None, name: str, entry: dict[str, Any]) -> str:
    """A server that is there is replaced. An object that is empty gets it on one line, one that is made is written over
    several: so it can be told later whether there was one."""
    if text is None:
        return _new_json(tool, name, json.dumps(entry, indent=2, ensure_ascii=False).replace("\n", "\n    "))
    line_end = "\r\n" if "\r\n" in text else "\n"
    scan = _JsonText(text, comments=tool.has_comments)
    root = scan.root()
    section = next((member for member in root.members if member.key == tool.section), None)
    if section is None:
        inner = json.dumps({name: entry}, indent=2, ensure_ascii=False)
        return _inserted(text, scan, root, tool.section, inner, inner, line_end)
    servers = scan.object_at(section.value)
    present = next((member for member in servers.members if member.key == name), None)
    if present is not None:
        indent = _indent_of(text, present.start)
        is_spread = "\n" in text[present.value : present.end]
        value = json.dumps(entry, indent=2 if is_spread else None, ensure_ascii=False)
        return text[: present.value] + value.replace("\n", line_end + indent) + text[present.end :]
    compact, spread = (json.dumps(entry, indent=indent, ensure_ascii=False) for indent in (None, 2))
    return _inserted(text, scan, servers, name, compact, spread, line_end)


def _new_json(tool: CodingTool, name: str, value: str) -> str:
    return f'{{\n  "{tool.section}": {{\n    {json.dumps(name)}: {value}\n  }}\n}}\n'


def _indent_of(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _inserted(text: str, scan: _JsonText, into: _Object, key: str, compact: str, spread: str, line_end: str) -> str:
    """Behind the last member: set in as that one is. Into an empty object the value goes as `compact` has it."""
    if not into.members:
        compact = compact.replace("\n", line_end)
        return f"{text[: into.start + 1]}{json.dumps(key)}: {compact}{text[into.start + 1 :]}"
    last = into.members[-1]
    before = text[: last.start]
    blank = before[len(before.rstrip(" \t\r\n")) :]
    indent = _indent_of(text, last.start) if "\n" in blank else ""
    lead = f"{line_end}{indent}" if "\n" in blank else blank
    member = f"{lead}{json.dumps(key)}: {spread.replace(chr(10), line_end + indent)}"
    behind = scan.skipped(last.end)
    if text[behind : behind + 1] == ",":  # the object ends with a comma, and does so afterwards
        at = scan.end_of_remark(behind + 1) if "\n" in lead else behind + 1
        return f"{text[:at]}{member},{text[at:]}"
    at = scan.end_of_remark(last.end) if "\n" in lead else last.end
    return f"{text[: last.end]},{text[last.end : at]}{member}{text[at:]}"


def _json_removed(tool: CodingTool, text: str, name: str) -> str | None:
    scan = _JsonText(text, comments=tool.has_comments)
    root = scan.root()
    section = next(member for member in root.members if member.key == tool.section)
    servers = scan.object_at(section.value)
    server = next(member for member in servers.members if member.key == name)
    if text == _new_json(tool, name, text[server.value : server.end]):
        return None
    is_made = len(servers.members) == 1 and text[servers.start + 1 : server.start].startswith(("\n", "\r\n"))
    return _without(text, scan, root, section) if is_made else _without(text, scan, servers, server)


def _without(text: str, scan: _JsonText, inside: _Object, member: _Member) -> str:
    """Takes a member out with the comma that came with it."""
    head = text[: member.start].rstrip(" \t")
    head = head.removesuffix("\n").removesuffix("\r") if head.endswith("\n") else head
    behind = scan.skipped(member.end)
    if text[behind : behind + 1] == ",":
        return head + text[behind + 1 :]
    before = [other for other in inside.members if other.end <= member.start]
    if not before:
        return head + text[member.end :]
    comma = scan.skipped(before[-1].end)
    return text[:comma] + text[comma + 1 : len(head)] + text[member.end :]


# --- TOML: a table at the end of the file.


def _toml_added(tool: CodingTool, text: str | None, name: str, entry: dict[str, Any]) -> str:
    line_end = "\r\n" if text is not None and "\r\n" in text else "\n"
    lines = [f"[{tool.section}.{_toml_key(name)}]", *(f"{key} = {_toml_value(value)}" for key, value in entry.items())]
    table = "".join(line + line_end for line in lines)
    if text is None:
        return table
    if name in _servers(_parsed(tool, text), tool):
        start, end = _toml_table(tool, text, name)
        return text[:start] + table + text[end:]
    # An empty line goes before it; a text that does not end its last line gets no empty one, which tells that.
    return f"{text}{line_end}{table}"


def _toml_removed(tool: CodingTool, text: str, name: str) -> str | None:
    start, end = _toml_table(tool, text, name)
    head, rest = text[:start], text[end:]
    if not head:
        return rest or None
    return head[: -2 if head.endswith("\r\n") else -1] + rest


def _toml_table(tool: CodingTool, text: str, name: str) -> tuple[int, int]:
    """Where the table lies, with those below it that follow."""
    section, key = re.escape(tool.section), re.escape(_toml_key(name))
    header = rf"\[[ \t]*{section}[ \t]*\.[ \t]*(?:{key}|\"{re.escape(name)}\"|'{re.escape(name)}')[ \t]*"
    headers = list(re.finditer(rf"^{header}\]", text, re.M))
    if not headers:
        raise NotApplicable(f"{name!r} is not written as a table of its own: change the file by hand")
    first = headers[-1]  # an earlier one may stand in a text
    for other in re.finditer(r"^\[", text[first.end() :], re.M):
        at = first.end() + other.start()
        if not re.compile(rf"{header}\.").match(text, at):
            return first.start(), _before_comments(text, at)
    return first.start(), _before_comments(text, len(text))


def _before_comments(text: str, at: int) -> int:
    """Before the empty lines and comments above a place: they belong to what comes next."""
    while True:
        line = text.rfind("\n", 0, at - 1) + 1 if at else 0
        words = text[line:at].strip()
        if at == line or (words and not words.startswith("#")):
            return at
        at = line


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _toml_value(value: Any) -> str:
    return (
        "[" + ", ".join(map(_toml_value, value)) + "]"
        if isinstance(value, list)
        else json.dumps(value, ensure_ascii=False)
    )


# --- The file.


def read_text(path: Path) -> str | None:
    """None where there is none. A link is followed."""
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not UTF-8 text", "mend the file first; nothing was changed") from None
    except OSError as error:
        raise path_error(path, error) from error


def replace_text(path: Path, before: str | None, after: str | None) -> None:
    """Put a text in the place of another one, unless something else was written meanwhile; None: no file. The file
    keeps its mode, and a link leads to it as before."""
    place = Path(os.path.realpath(path))
    if read_text(place) != before:
        raise NotApplicable(f"{path} was changed meanwhile", "look at it, and ask again")
    try:
        if after is None:
            place.unlink()
            return
        make_folder(place.parent)
        mode = place.stat().st_mode & 0o7777 if before is not None else 0o600
        beside = place.with_name(f".{place.name}.weft-{os.getpid()}")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(after.encode())
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            os.replace(beside, place)
        except BaseException:  # whatever it was, nothing is left beside the file
            beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise path_error(path, error) from error
