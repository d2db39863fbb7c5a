"""What was said and done in a turn, as lines: messages with their tool calls in place, long
parts folded. A tool call is a line that tells what it did and how it ended, by the shape of its
arguments, and below it what changed or came back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import UNSET, Struct, UnsetType, field

from weft.exchange.file_changes import PATHS, FileChange, changes_of, opened
from weft.ledger.model import (
    AppliedSubstitution,
    FileNote,
    ImagePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCall,
    ToolResultPart,
    ToolUsePart,
)
from weft.surfaces.cli.progress import size_text
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.plain_text import cut, safe, safe_lines, width, wrapped

if TYPE_CHECKING:
    pass


# --- What every renderer needs of the page: how wide it is, which marks it can show, and how long parts are folded.

STEP = "  "
NARROWEST = 20
_HOME = re.compile(r"^/(?:home|Users)/[^/]+/")


class Marks(NamedTuple):
    """How outcomes and list items are marked."""

    ok: str
    failed: str
    stopped: str
    waiting: str
    doing: str
    arrow: str
    more: str


UNICODE = Marks("✓", "✗", "◍", "○", "▸", "→", "…")
ASCII = Marks("*", "x", "!", "o", ">", "->", "…")


class PageLayout(Struct, frozen=True):
    """Where lines go; `full` folds and cuts nothing."""

    columns: int
    full: bool = False
    marks: Marks = ASCII
    workspace: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    """What to type for sessions with long labels."""
    wraps: bool = False
    """Long lines are broken at words; else they are left as they are."""
    unfold: str = "--full"
    """What shows the lines that are folded."""

    def room(self, indent: int) -> int:
        return max(NARROWEST, self.columns - indent * len(STEP))

    def cut(self, text: str, columns: int) -> str:
        """One safe line of it, as long as there is room."""
        return safe(text) if self.full else cut(safe(text), max(NARROWEST, columns))

    def whole_text(self, text: str, indent: int) -> Iterator[Line]:
        """All of a text, its long lines broken at words where the page wraps."""
        lines = safe_lines(text)
        for line in wrapped("\n".join(lines), self.room(indent)) if self.wraps and lines else lines:
            yield [STEP * indent, line]

    def folded(self, lines: Sequence[Line], keep: int, indent: int) -> Iterator[Line]:
        """The first `keep` lines, and how many more there are; one line more is not worth a note."""
        shown = lines if self.full or len(lines) <= keep + 1 else lines[:keep]
        lead = STEP * indent
        yield from ([lead, *line] if line else [] for line in shown)
        if left := len(lines) - len(shown):
            yield [lead, Span(f"… {left:,}{' more' if shown else ''} lines ({self.unfold})", "dim")]

    def text(self, text: str, keep: int, indent: int, style: str = "dim", lead: str = "") -> Iterator[Line]:
        """A longer text, folded."""
        room = self.room(indent) - len(lead)
        lines: list[Line] = [[Span(line if self.full else cut(line, room), style)] for line in safe_lines(text)]
        if lead and lines:
            lines[0] = [Span(lead, style), *lines[0]]
        yield from self.folded(lines, keep, indent)

    def path(self, path: str) -> str:
        """As it is seen from the turn's workspace."""
        below = f"{self.workspace.rstrip('/')}/" if self.workspace else ""
        if below and path.startswith(below) and path != below:
            return path.removeprefix(below)
        return path if self.full else _HOME.sub("~/", path)

    def cut_left(self, text: str, columns: int) -> str:
        """The end of it, which of a path says most."""
        text, room = safe(text), max(NARROWEST, columns)
        return text if self.full or width(text) <= room else f"…{text[-(room - 1) :]}"


def image_text(url: str) -> str:
    """An image by its size, or by where it lies."""
    head, comma, data = url.partition(",")
    if head.startswith("data:") and comma:
        padding = len(data) - len(data.rstrip("="))
        size = len(data) * 3 // 4 - padding if head.endswith(";base64") else len(data)
        return f"[image, {size_text(size)}]"
    return f"[image {cut(safe(url), 80)}]"


# --- Lists of things to do, as check marks.

LISTS = ("todos", "plan", "tasks", "items")
PLAN_WORDS = ("content", "step", "text", "title", "subject", "description")
DONE = frozenset({"completed", "done", "complete"})
DOING = frozenset({"in_progress", "in-progress", "active", "doing"})
DROPPED = frozenset({"cancelled", "canceled", "abandoned", "deleted"})


class Item(Struct):
    text: str
    state: str


def plan_of(arguments: Any) -> tuple[str, list[Item]] | None:
    """The argument that is such a list, with its items; None where there is none."""
    if not isinstance(arguments, dict):
        return None
    for name in LISTS:
        items = arguments.get(name)
        if isinstance(items, list) and items and all(isinstance(item, dict) and "status" in item for item in items):
            return name, [Item(_words(item), str(item["status"])) for item in items]
    return None


def _words(item: dict[str, Any]) -> str:
    return next((item[name] for name in PLAN_WORDS if isinstance(item.get(name), str)), "")


def plan_lead(items: list[Item]) -> str:
    return f"{sum(item.state in DONE for item in items)} of {len(items)} done"


def plan_lines(items: list[Item], page: PageLayout) -> list[Line]:
    return [_item_line(item, page) for item in items]


def _item_line(item: Item, page: PageLayout) -> Line:
    marks = page.marks
    text = page.cut(item.text, page.room(4))
    plain = marks is ASCII
    if item.state in DONE:
        return [Span("[x] " if plain else f"{marks.ok} ", "good"), Span(text, "dim")]
    if item.state in DOING:
        return [Span("[>] " if plain else f"{marks.doing} ", "warn"), text]
    if item.state in DROPPED:
        return [Span("[-] " if plain else f"{marks.failed} ", "dim"), Span(text, "dim")]
    return ["[ ] " if plain else f"{marks.waiting} ", safe(text)]


# --- What a tool gave back, as text: parts joined, images by their size, envelopes opened, anything else as JSON.

OUTPUTS = ("output", "stdout", "text", "content", "result", "message", "entries", "files")
NAME_LISTS = ("entries", "files")
"""Outputs that are lists of names, one in a line."""
PROBLEMS = ("stderr", "lints", "lint_problems")
"""Told before the output."""
NOTES = ("note", "more", "git", "hidden", "shared_files")
"""Told after the output."""
BESIDE = frozenset(
    "exit_code exitCode exit rc success metadata type status detail image_url is_error isError truncated title"
    " duration_ms durationMs bytes_written path url bytes content_type media_type total total_lines first_line"
    " last_line matches files invalid_utf8 invalid_text refused_hosts more_lints created changed_lines".split()
).union(PROBLEMS, NOTES)
CHANGED = frozenset({"path", "bytes", "created", "changed_lines"})
"""What Weft's own tools say of a file that they changed."""
LEAST_FAILURE = 400
"""Statuses of HTTP from here on are failures."""
ENVELOPES = 4
_PREFACE = re.compile(
    r"(?:(?:Script \w+|Chunk ID|Wall time|Process exited|Exit code|Original token count|Total output lines)\b"
    r"[^\n]*\n+)+"
    r"Output:\n*"
)


def output_text(text: str) -> str:
    """Without the lines about the run that some tools put before an output; the call's own line tells them."""
    preface = _PREFACE.match(text)
    return text[preface.end() :] if preface else text


def result_text(value: Any, depth: int = ENVELOPES) -> str:
    """A result as people read it."""
    if isinstance(value, str):
        opened = _opened_envelope(value)
        return value if opened is None or not depth else result_text(opened, depth - 1)
    if isinstance(value, list) and value and all(isinstance(part, dict) and "type" in part for part in value):
        return "\n".join(text for part in value if (text := _part_text(part, depth)))
    if isinstance(value, dict) and depth:
        inside = _enveloped(value, depth)
        if inside is not None:
            return inside
    return as_json(value, indent=2)


def _opened_envelope(text: str) -> Any:
    """Text that is itself an envelope in JSON, as some tools answer."""
    if not (text.startswith("{") and text.rstrip().endswith("}") and '"output"' in text[:4096] + text[-4096:]):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and _enveloped(value, 1) is not None else None


def _enveloped(value: dict[str, Any], depth: int) -> str | None:
    """The output in an object that holds nothing else but how it came about: first what went wrong, last what there is
    to note. None for any other object."""
    names = [name for name in OUTPUTS if _is_output(name, value.get(name))]
    is_change = not names and set(value) >= CHANGED
    if not (len(names) == 1 or is_change) or not set(value) <= BESIDE.union(names):
        return None
    told = ["\n".join(value[name]) if name in NAME_LISTS else result_text(value[name], depth - 1) for name in names]
    if is_change:
        told.append(f"{'created' if value['created'] else 'changed'} {value['path']}, {size_text(value['bytes'])}")
    return "\n".join(text.removesuffix("\n") for text in (*_problem_texts(value), *told, *_noted(value, NOTES)) if text)


def _is_output(name: str, value: Any) -> bool:
    if name in NAME_LISTS:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    return isinstance(value, str | list)


def _problem_texts(value: dict[str, Any]) -> Iterator[str]:
    status, hosts, left_out = value.get("status"), value.get("refused_hosts"), value.get("more_lints")
    if isinstance(status, int) and status >= LEAST_FAILURE:
        yield f"status {status}"
    if isinstance(hosts, list):
        yield f"refused hosts: {', '.join(map(str, hosts))}"
    yield from _noted(value, PROBLEMS)
    if _is_count(left_out):
        yield f"{left_out} more lints"


def _noted(value: dict[str, Any], names: Iterable[str]) -> Iterator[str]:
    """Each of these fields; lists line by line, what is no text as JSON."""
    for name in names:
        noted = value.get(name)
        for item in noted if isinstance(noted, list) else [noted]:
            if item not in (None, ""):
                yield item if isinstance(item, str) else as_json(item)


def _part_text(part: dict[str, Any], depth: int) -> str:
    if "text" in part and isinstance(part["text"], str):
        return result_text(part["text"], depth - 1) if depth else part["text"]
    image = next(iter(_images(part)), None)
    return image or as_json(part)


def _images(part: dict[str, Any]) -> Iterator[str]:
    """An image in any of the ways that providers write one."""
    if "image" not in str(part["type"]):
        return
    source = part.get("source", part)
    data = source.get("data") if isinstance(source, dict) else None
    if isinstance(data, str):
        yield f"[image, {size_text(len(data) * 3 // 4)}]"
    for holder in (part, source):
        for name in ("image_url", "url"):
            url = holder.get(name) if isinstance(holder, dict) else None
            url = url.get("url") if isinstance(url, dict) else url
            if isinstance(url, str):
                yield image_text(url)


def as_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


# --- A tool call by the shape of its arguments: which of them matters, and what is said beside it.

COMMANDS = ("command", "cmd", "script", "code", "source")
SEARCHES = ("pattern", "query", "regex", "search_term", "q")
LINKS = ("url", "uri")
SUBJECT_WORDS = (
    "description",
    "subject",
    "title",
    "task_name",
    "summary",
    "question",
    "skill",
    "topic",
    "name",
    "prompt",
)
NOISE = frozenset(
    "timeout timeout_ms yield_time_ms max_output_tokens max_tokens workdir cwd dangerouslyDisableSandbox i replace_all"
    " replaceAll head_limit output_mode multiline max_results prefix_rule sandbox_permissions justification".split()
)
"""Left out of a line; `--full` has them."""
WRAPPERS = (("bash", "-lc"), ("bash", "-c"), ("sh", "-c"), ("zsh", "-lc"), ("zsh", "-c"))
_MOVED = re.compile(r"cd (\S+) && (?=\S)")
_CALLED = re.compile(r'\bcmd"?\s*:\s*("(?:[^"\\\n]|\\.)*")')


class CallLead(Struct):
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


def lead_of(arguments: Any, detail: Any, page: PageLayout) -> CallLead:
    """The first shape that fits."""
    if isinstance(arguments, str):
        return _script(arguments, page)
    if not isinstance(arguments, dict) or not arguments:
        return CallLead("" if arguments in (None, {}) else as_json(arguments))
    for shape in (_command, _search, _file, _link, _subject_words):
        lead = shape(arguments, detail if isinstance(detail, dict) else {}, page)
        if lead is not None:
            return lead
    return CallLead("")


def _first_text(arguments: dict[str, Any], names: Iterable[str]) -> tuple[str, str] | None:
    return next(((name, arguments[name]) for name in names if arguments.get(name) and _is_text(arguments[name])), None)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _command(arguments: dict[str, Any], detail: dict[str, Any], page: PageLayout) -> CallLead | None:
    name = next((name for name in COMMANDS if arguments.get(name)), None)
    if name is None:
        return None
    value = arguments[name]
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        value = value[2] if len(value) == 3 and tuple(value[:2]) in WRAPPERS else " ".join(value)
    if not _is_text(value):
        return None
    first, *further = str(value).strip().splitlines()
    about = _first_text(arguments, ("description",))
    used = (name, *(("description",) if about else ()))
    notes = [about[1]] if about else []
    if not page.full:
        moved = _MOVED.match(first)
        first = first[moved.end() :] if moved else first
        notes = [*([f"in {page.path(moved[1])}"] if moved and not about else []), *notes]
        notes += more_lines(further)
    return CallLead(first, used, ", ".join(notes), tuple(further))


def _script(text: str, page: PageLayout) -> CallLead:
    """A text without a name: a program for the tool, of which the commands that it runs are worth telling."""
    lines = text.strip().splitlines() or [""]
    commands = [json.loads(call) for call in _CALLED.findall(text) if _is_json(call)]
    lead = _command({"command": commands[0]}, {}, page) if commands and not page.full else None
    if lead is not None:
        others = f"and {len(commands) - 1} more" if len(commands) > 1 else ""
        return CallLead(lead.text, (), ", ".join(filter(None, (lead.about, others))))
    return CallLead(lines[0], (), "" if page.full else "".join(more_lines(lines[1:])), tuple(lines[1:]))


def more_lines(lines: list[str]) -> list[str]:
    return [f"+{len(lines)} line{'' if len(lines) == 1 else 's'}"] if lines else []


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _search(arguments: dict[str, Any], detail: dict[str, Any], page: PageLayout) -> CallLead | None:
    words = _first_text(arguments, SEARCHES)
    if words is None:
        return None
    places = [_first_text(arguments, names) for names in (PATHS, LINKS, ("glob", "include"))]
    inside = [place for place in places if place is not None]
    where = " in " + " ".join(page.path(text) for _, text in inside) if inside else ""
    return CallLead(words[1] + where, (words[0], *(name for name, _ in inside)))


def _file(arguments: dict[str, Any], detail: dict[str, Any], page: PageLayout) -> CallLead | None:
    path = _first_text(arguments, PATHS)
    if path is None:
        return None
    return CallLead(
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


def _link(arguments: dict[str, Any], detail: dict[str, Any], page: PageLayout) -> CallLead | None:
    link = _first_text(arguments, LINKS)
    return None if link is None else CallLead(link[1], (link[0],), quiet=("prompt", "format"))


def _subject_words(arguments: dict[str, Any], detail: dict[str, Any], page: PageLayout) -> CallLead | None:
    asked = arguments.get("questions")
    if isinstance(asked, list) and asked and isinstance(asked[0], dict) and _is_text(asked[0].get("question")):
        return CallLead(asked[0]["question"], ("questions",))
    words = _first_text(arguments, SUBJECT_WORDS)
    if words is None:
        return None
    lines = words[1].strip().splitlines()
    kind = _first_text(arguments, ("subagent_type", "agent_type"))
    used = (words[0], *((kind[0],) if kind else ()))
    quiet = ("prompt", "message", "activeForm")
    return CallLead(lines[0], used, kind[1] if kind else "", tuple(lines[1:]), quiet)


def rest_text(arguments: Any, lead: CallLead, full: bool) -> str:
    """The other arguments, as `name=value`; without noise unless all is wanted."""
    if not isinstance(arguments, dict):
        return ""
    hidden = {*lead.used, *(() if full else (*lead.quiet, *NOISE))}
    texts = {name: as_json(value) for name, value in arguments.items() if name not in hidden and value is not None}
    return ", ".join(f"{name}={value}" for name, value in texts.items())


# --- One tool call: a line that tells what it did and how it ended, and below it what changed or came back, folded.

FOLD_CALL = 5
FOLD_READ = 0
FOLD_CHANGE = 20
FOLD_PLAN = 20
INDENT = 1
SHORT = 12
BELOW = 3
DURATIONS = ("duration_ms", "durationMs", "totalDurationMs", "wallTimeMs")
EXITS = ("exit_code", "exitCode", "exit", "rc")
SIGNS = {"+": "good", "-": "bad", "@": "dim"}


class CallRenderer:
    """Lines of calls on one page."""

    def __init__(self, page: PageLayout) -> None:
        self._page = page

    def lines(self, call: ToolCall) -> Iterator[Line]:
        arguments = opened(call.arguments)
        ok = call.outcome == "ok"
        plan = plan_of(arguments)
        changes = [] if plan else changes_of(arguments, call.metadata)
        if plan:
            lead = CallLead(plan_lead(plan[1]), (plan[0],))
        elif changes:
            lead = self._lead_of_changes(changes, arguments)
        else:
            lead = lead_of(arguments, call.metadata, self._page)
        yield self._call_line(call, arguments, lead)
        yield from self._further_lines(lead)
        if plan:
            yield from self._page.folded(plan_lines(plan[1], self._page), FOLD_PLAN, BELOW)
        yield from self._change_lines(changes)
        if call.error is not None:
            yield from self._page.text(call.error, FOLD_CALL, BELOW, "bad", "error: ")
        if call.result is not None and not (ok and plan and not self._page.full):
            yield from self._result_lines(call.result, arguments, changes)

    def _lead_of_changes(self, changes: list[FileChange], arguments: Any) -> CallLead:
        """Where a change was made, and how much of it there is."""
        first = changes[0]
        where = self._page.path(first.path or "") + lines_text(first.start, None)
        about = ", ".join(change.counts for change in changes[:1]) if len(changes) == 1 else f"{len(changes)} files"
        used = [name for name in arguments if name not in ("description",)] if isinstance(arguments, dict) else []
        return CallLead(where, tuple(used), f"({about})", is_path=True)

    def _call_line(self, call: ToolCall, arguments: Any, lead: CallLead) -> Line:
        page = self._page
        mark, style = self._outcome_mark(call)
        tail = self._outcome_words(call)
        name = safe(call.name)
        taken = INDENT * 2 + len(mark) + 2 + width(name) + sum(width(safe(text)) for text, _ in tail)
        rest = rest_text(arguments, lead, page.full)
        if not lead.text:
            shown = rest if isinstance(arguments, dict) else as_json(arguments) if arguments is not None else ""
            line: Line = [Span(name, "tool"), f"({page.cut(shown, page.columns - taken - 2)})"]
        else:
            line = [Span(name, "tool"), " ", *self._lead_line(lead, rest, page.columns - taken)]
        return ["  " * INDENT, Span(mark, style), " ", *line, *(Span(text, look) for text, look in tail)]

    def _lead_line(self, lead: CallLead, rest: str, room: int) -> Line:
        page = self._page
        beside = "  ".join(part for part in (lead.about, rest) if part)
        if lead.is_path:
            text = page.cut_left(lead.text, room - min(width(safe(beside)), SHORT) - 2)
        else:
            text = page.cut(lead.text, room)
        left = room - width(text) - 2
        if not beside or (left < min(width(safe(beside)), SHORT) and not page.full):
            return [text]
        return [text, Span(f"  {safe(beside) if page.full else cut(safe(beside), left)}", "dim")]

    def _outcome_mark(self, call: ToolCall) -> tuple[str, str]:
        marks = self._page.marks
        match call.outcome:
            case "ok":
                return marks.ok, "good"
            case "interrupted" | "canceled":
                return marks.stopped, "warn"
            case None:
                return marks.waiting, "dim"
        return marks.failed, "bad"

    def _outcome_words(self, call: ToolCall) -> list[tuple[str, str]]:
        """How it ended if not simply well, how long it took, whom it started."""
        detail = call.metadata if isinstance(call.metadata, dict) else {}
        inner = detail.get("metadata")
        holders = [holder for holder in (detail, inner, call.result) if isinstance(holder, dict)]
        values: list[tuple[str, str]] = []
        if call.outcome != "ok":
            values.append((f" {call.outcome or call.status}", "bad" if call.outcome == "error" else "warn"))
        code = next((holder[name] for holder in holders for name in EXITS if _is_count(holder.get(name))), 0)
        if code:
            values.append((f" exit {code}", "bad"))
        if took := self._duration_ms(call, detail):
            values.append((f" {duration_text(took)}", "dim"))
        if call.substituted is not UNSET:
            values.append((" result substituted", "warn"))
        if call.spawned_session:
            started = self._page.labels.get(call.spawned_session, call.spawned_session)
            values.append((f" {self._page.marks.arrow} {started}", "label"))
        return values

    @staticmethod
    def _duration_ms(call: ToolCall, detail: dict[str, Any]) -> int:
        milliseconds = next((detail[name] for name in DURATIONS if _is_count(detail.get(name))), 0)
        return int(milliseconds or (call.completed_at or call.started_at) - call.started_at)

    def _further_lines(self, lead: CallLead) -> Iterator[Line]:
        """The lines of a command beyond its first."""
        if lead.further and self._page.full:
            yield from self._page.text("\n".join(lead.further), FOLD_CALL, BELOW, "")

    def _change_lines(self, changes: list[FileChange]) -> Iterator[Line]:
        page = self._page
        for change in changes:
            if len(changes) > 1:
                yield [
                    "  " * BELOW,
                    Span(page.path(change.path or "?"), "heading"),
                    Span(f"  ({change.counts})", "dim"),
                ]
            lines: list[Line] = []
            for line in change.lines:
                text = (safe_lines(line) or [""])[0]
                lines.append([Span(page.cut(text, page.room(BELOW)), SIGNS.get(line[:1], ""))])
            yield from page.folded(lines, FOLD_CHANGE, BELOW)

    def _result_lines(self, result: Any, arguments: Any, changes: list[FileChange]) -> Iterator[Line]:
        page = self._page
        whole = result_text(result)
        text = (whole if page.full else output_text(whole)).strip("\n")
        if not text:
            return
        if changes and not page.full:
            if isinstance(result, dict) and (problems := "\n".join(_problem_texts(result))):
                yield from page.text(problems, FOLD_CALL, BELOW)
                return
            names_change = any(change.path and change.path in text for change in changes)
            is_obvious = names_change or text in ("{}", "null") or "success" in text.lower()
            if "\n" not in text and not is_obvious:
                yield from page.text(text, FOLD_CALL, BELOW)
        elif _reads(arguments):
            yield from page.text(text, FOLD_READ, BELOW)
        else:
            yield from page.text(text, FOLD_CALL, BELOW)


def _is_count(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _reads(arguments: Any) -> bool:
    """A call that names a file and nothing to do with it: its result is the file."""
    return (
        isinstance(arguments, dict)
        and any(isinstance(arguments.get(name), str) for name in PATHS)
        and not any(name in arguments for name in SEARCHES)
        and set(arguments) <= {*PATHS, "offset", "limit", "i", "pages", "view_range", "start_line", "end_line"}
    )


def duration_text(ms: int) -> str:
    """`850 ms`, `1.2 s`, `2 min 5 s`."""
    if ms < 1000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(ms // 1000, 60)
    return f"{minutes} min {seconds} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


# --- One message: who spoke, what was said; what nobody typed is marked by its source and folded.

FOLD_MESSAGE = 5
FOLD_THINKING = 3
FOLD_FILES = 5
ROLE_STYLES = {"user": "user", "assistant": "assistant", "system": "dim", "tool": "tool"}


def substitution_mark(substituted: AppliedSubstitution | UnsetType) -> Line:
    """What stands beside words that were put in the place of others."""
    if substituted is UNSET:
        return []
    reason = f": {safe(substituted.reason)}" if substituted.reason else ""
    return [Span(f" substituted by {safe(substituted.by)}{reason}", "warn")]


class MessageRenderer:
    """Lines of messages on one page."""

    def __init__(self, page: PageLayout) -> None:
        self._page = page

    def heading(self, message: Message) -> Line:
        source = f" ({message.source})" if message.source not in (None, "human") else ""
        return [
            Span(message.role, ROLE_STYLES.get(message.role, "heading")),
            Span(source, "dim"),
            *substitution_mark(message.substituted),
        ]

    def body(
        self, message: Message, parts: Sequence[Part], files: Sequence[FileNote], tools: Mapping[str, str]
    ) -> Iterator[Line]:
        """`tools`: by the ids of calls, what was called."""
        typed = message.role in ("user", "assistant") and message.source in (None, "human")
        for part in parts:
            yield from self._part_lines(part, typed, message.role == "user", tools)
        notes: list[Line] = [[Span(self._file_note(file), "dim")] for file in files]
        yield from self._page.folded(notes, FOLD_FILES, 1)

    def _file_note(self, file: FileNote) -> str:
        return f"{file.kind} {safe(self._page.path(file.path))}{lines_text(file.line_start, file.line_end)}"

    def _part_lines(self, part: Part, typed: bool, asked: bool, tools: Mapping[str, str]) -> Iterator[Line]:
        page = self._page
        match part:
            case TextPart() if typed:
                yield from page.whole_text(self._words(str(part.text), asked), 1)
            case TextPart():
                yield from page.text(str(part.text), FOLD_MESSAGE, 1, "dim")
            case ReasoningPart():
                yield from page.text(str(part.text), FOLD_THINKING, 2, lead="thinking: ")
            case ImagePart():
                yield [STEP, Span(image_text(str(part.url)), "dim")]
            case ToolUsePart():
                yield [STEP, *self._use_line(part)]
            case ToolResultPart():
                failed = part.is_error is True
                called = tools.get(part.tool_call_id, part.tool_call_id)
                yield [STEP, Span("result of ", "dim"), Span(called, "bad" if failed else "tool")]
                yield from page.text(result_text(part.output), FOLD_MESSAGE, 2)

    def _words(self, text: str, asked: bool) -> str:
        """A command that was typed, without the tags it was handed over in; whatever else it was, as it is."""
        from weft.ledger.read.session_list import spoken

        is_command = asked and not self._page.full and text.startswith(("<command-", "<bash-input>"))
        return spoken(text) if is_command else text

    def _use_line(self, part: ToolUsePart) -> Line:
        arguments = opened(part.input)
        lead = lead_of(arguments, None, self._page)
        rest = rest_text(arguments, lead, self._page.full)
        room = self._page.room(1) - len(part.name) - 4
        if not lead.text:
            return [Span(part.name, "tool"), f"({self._page.cut(rest, room)})"]
        return [Span(part.name, "tool"), " ", self._page.cut(f"{lead.text}  {rest}".rstrip(), room)]


# --- What was said and done in a turn, as lines: messages with their tool calls in place, long parts folded.


class Transcript:
    """Renders messages and calls; `full` folds nothing."""

    def __init__(
        self,
        *,
        full: bool,
        columns: int,
        unicode: bool = False,
        workspace: str | None = None,
        labels: Mapping[str, str] = MappingProxyType({}),
        wraps: bool = False,
        unfold: str = "--full",
    ) -> None:
        """`wraps`: long lines of what was said are broken at words."""
        page = PageLayout(columns, full, UNICODE if unicode else ASCII, workspace, labels, wraps, unfold)
        self._calls, self._messages = CallRenderer(page), MessageRenderer(page)

    def lines(
        self, items: Sequence[Message | ToolCall], files: Mapping[str, Sequence[FileNote]] | None = None
    ) -> Iterator[Line]:
        """Each message under who spoke; calls under the message that made them, without a gap."""
        called = {item.call_id for item in items if isinstance(item, ToolCall)}
        tools = tools_called(items)
        speaker, first = "", True
        for item in items:
            if isinstance(item, ToolCall):
                if not first and speaker in ("user", "system"):
                    yield []
                    speaker = "tool"
                yield from self._calls.lines(item)
                first = False
                continue
            parts = shown_parts(item, called)
            notes = (files or {}).get(item.id, ())
            if not (parts or notes) and speaker == item.role:
                continue
            if not first:
                yield []
            yield self._messages.heading(item)
            yield from self._messages.body(item, parts, notes, tools)
            speaker, first = item.role, False


def tools_called(items: Sequence[Message | ToolCall]) -> dict[str, str]:
    """The names of tools by the ids of their calls."""
    parts = (part for item in items if isinstance(item, Message) for part in item.content)
    return {part.id: part.name for part in parts if isinstance(part, ToolUsePart)}


def shown_parts(message: Message, called: set[str]) -> list[Part]:
    """The parts of a message without the tool uses that stand as calls of their own."""
    return [part for part in message.content if not (isinstance(part, ToolUsePart) and part.id in called)]
