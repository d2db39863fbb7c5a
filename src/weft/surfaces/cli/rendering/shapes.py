"""A tool call by the shape of its arguments: which of them matters, and what is said beside it.

Tools of the same kind are called differently everywhere (`Bash`, `exec_command`, `run_terminal`), but a command is a
command. So nothing here looks at a tool's name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from weft.exchange.file_changes import PATHS
from weft.surfaces.cli.rendering.page import PageLayout
from weft.surfaces.cli.rendering.results import as_json

COMMANDS = ("command", "cmd", "script", "code", "source")
SEARCHES = ("pattern", "query", "regex", "search_term", "q")
LINKS = ("url", "uri")
WORDS = ("description", "subject", "title", "task_name", "summary", "question", "skill", "topic", "name", "prompt")
NOISE = frozenset(
    "timeout timeout_ms yield_time_ms max_output_tokens max_tokens workdir cwd dangerouslyDisableSandbox i replace_all"
    " replaceAll head_limit output_mode multiline max_results prefix_rule sandbox_permissions justification".split()
)
"""Left out of a line; `--full` has them."""
WRAPPERS = (("bash", "-lc"), ("bash", "-c"), ("sh", "-c"), ("zsh", "-lc"), ("zsh", "-c"))
_MOVED = re.compile(r"cd (\S+) && (?=\S)")
_CALLED = re.compile(r'\bcmd"?\s*:\s*("(?:[^"\\\n]|\\.)*")')


class Lead(Struct):
    """The words of a call: what matters, and what is said about it."""

    text: str
    used: tuple[str, ...] = ()
    """The arguments that are told so."""
    about: str = ""
    further: tuple[str, ...] = ()
    """Lines of the same argument beyond its first."""
    quiet: tuple[str, ...] = ()
    """Arguments that only `--full` tells."""
    is_path: bool = False


def lead_of(arguments: Any, detail: Any, page: PageLayout) -> Lead:
    """The first shape that fits."""
    if isinstance(arguments, str):
        return _script(arguments, page)
    if not isinstance(arguments, dict) or not arguments:
        return Lead("" if arguments in (None, {}) else as_json(arguments))
    for shape in (_command, _search, _file, _link, _words):
        lead = shape(arguments, detail if isinstance(detail, dict) else {}, page)
        if lead is not None:
            return lead
    return Lead("")


def _text(arguments: dict[str, Any], names: Iterable[str]) -> tuple[str, str] | None:
    return next(((name, arguments[name]) for name in names if arguments.get(name) and _is_text(arguments[name])), None)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _command(arguments: dict[str, Any], detail: dict[str, Any], page: PageLayout) -> Lead | None:
    name = next((name for name in COMMANDS if arguments.get(name)), None)
    if name is None:
        return None
    value = arguments[name]
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        value = value[2] if len(value) == 3 and tuple(value[:2]) in WRAPPERS else " ".join(value)
    if not _is_text(value):
        return None
    first, *further = str(value).strip().splitlines()
    about = _text(arguments, ("description",))
    used = (name, *(("description",) if about else ()))
    notes = [about[1]] if about else []
    if not page.full:
        moved = _MOVED.match(first)
        first = first[moved.end() :] if moved else first
        notes = [*([f"in {page.path(moved[1])}"] if moved and not about else []), *notes]
        notes += more_lines(further)
    return Lead(first, used, ", ".join(notes), tuple(further))


def _script(text: str, page: PageLayout) -> Lead:
    """A text without a name: a program for the tool, of which the commands that it runs are worth telling."""
    lines = text.strip().splitlines() or [""]
    commands = [json.loads(call) for call in _CALLED.findall(text) if _is_json(call)]
    lead = _command({"command": commands[0]}, {}, page) if commands and not page.full else None
    if lead is not None:
        others = f"and {len(commands) - 1} more" if len(commands) > 1 else ""
        return Lead(lead.text, (), ", ".join(filter(None, (lead.about, others))))
    return Lead(lines[0], (), "" if page.full else "".join(more_lines(lines[1:])), tuple(lines[1:]))


def more_lines(lines: list[str]) -> list[str]:
    return [f"+{len(lines)} line{'' if len(lines) == 1 else 's'}"] if lines else []


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _search(arguments: dict[str, Any], detail: dict[str, Any], page: PageLayout) -> Lead | None:
    words = _text(arguments, SEARCHES)
    if words is None:
        return None
    places = [_text(arguments, names) for names in (PATHS, LINKS, ("glob", "include"))]
    inside = [place for place in places if place is not None]
    where = " in " + " ".join(page.path(text) for _, text in inside) if inside else ""
    return Lead(words[1] + where, (words[0], *(name for name, _ in inside)))


def _file(arguments: dict[str, Any], detail: dict[str, Any], page: PageLayout) -> Lead | None:
    path = _text(arguments, PATHS)
    if path is None:
        return None
    return Lead(
        page.path(path[1]) + lines_text(*_lines_read(arguments, detail)), (path[0], "offset", "limit"), is_path=True
    )


def _lines_read(arguments: dict[str, Any], detail: dict[str, Any]) -> tuple[Any, Any]:
    """From which line to which, as the tool says it did, or else as it was asked."""
    file = detail.get("file")
    if isinstance(file, dict):
        start, count = file.get("startLine"), file.get("numLines")
    else:
        start, count = arguments.get("offset"), arguments.get("limit")
        start = 1 if start is None and isinstance(count, int) else start
    if isinstance(start, int) and isinstance(count, int) and count > 0:
        return start, start + count - 1
    return start, None


def lines_text(start: Any, end: Any) -> str:
    """`:3-9`, `:3`, or nothing."""
    if not isinstance(start, int):
        return ""
    return f":{start}-{end}" if isinstance(end, int) and end != start else f":{start}"


def _link(arguments: dict[str, Any], detail: dict[str, Any], page: PageLayout) -> Lead | None:
    link = _text(arguments, LINKS)
    return None if link is None else Lead(link[1], (link[0],), quiet=("prompt", "format"))


def _words(arguments: dict[str, Any], detail: dict[str, Any], page: PageLayout) -> Lead | None:
    asked = arguments.get("questions")
    if isinstance(asked, list) and asked and isinstance(asked[0], dict) and _is_text(asked[0].get("question")):
        return Lead(asked[0]["question"], ("questions",))
    words = _text(arguments, WORDS)
    if words is None:
        return None
    lines = words[1].strip().splitlines()
    kind = _text(arguments, ("subagent_type", "agent_type"))
    used = (words[0], *((kind[0],) if kind else ()))
    quiet = ("prompt", "message", "activeForm")
    return Lead(lines[0], used, kind[1] if kind else "", tuple(lines[1:]), quiet)


def rest_text(arguments: Any, lead: Lead, full: bool) -> str:
    """The other arguments, as `name=value`; without noise unless all is wanted."""
    if not isinstance(arguments, dict):
        return ""
    hidden = {*lead.used, *(() if full else (*lead.quiet, *NOISE))}
    texts = {name: as_json(value) for name, value in arguments.items() if name not in hidden and value is not None}
    return ", ".join(f"{name}={value}" for name, value in texts.items())
