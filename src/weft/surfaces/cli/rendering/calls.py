"""One tool call: a line that tells what it did and how it ended, and below it what changed or came back, folded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import UNSET

from weft.exchange.file_changes import PATHS, FileChange, changes_of, opened
from weft.ledger.model import ToolCall
from weft.surfaces.cli.rendering.page import PageLayout
from weft.surfaces.cli.rendering.plans import plan_lead, plan_lines, plan_of
from weft.surfaces.cli.rendering.results import as_json, output_text, result_text
from weft.surfaces.cli.rendering.shapes import SEARCHES, Lead, lead_of, lines_text, rest_text
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.plain_text import cut, safe, safe_lines, width

FOLD = 5
FOLD_READ = 0
FOLD_CHANGE = 20
FOLD_PLAN = 20
INDENT = 1
SHORT = 12
BELOW = 3
DURATIONS = ("duration_ms", "durationMs", "totalDurationMs", "wallTimeMs")
EXITS = ("exit_code", "exitCode", "exit")
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
            lead = Lead(plan_lead(plan[1]), (plan[0],))
        elif changes:
            lead = self._changed(changes, arguments)
        else:
            lead = lead_of(arguments, call.metadata, self._page)
        yield self._line(call, arguments, lead)
        yield from self._further(lead)
        if plan:
            yield from self._page.folded(plan_lines(plan[1], self._page), FOLD_PLAN, BELOW)
        yield from self._change_lines(changes)
        if call.error is not None:
            yield from self._page.text(call.error, FOLD, BELOW, "bad", "error: ")
        if call.result is not None and not (ok and plan and not self._page.full):
            yield from self._result(call.result, arguments, changes)

    def _changed(self, changes: list[FileChange], arguments: Any) -> Lead:
        """Where a change was made, and how much of it there is."""
        first = changes[0]
        where = self._page.path(first.path or "") + lines_text(first.start, None)
        about = ", ".join(change.counts for change in changes[:1]) if len(changes) == 1 else f"{len(changes)} files"
        used = [name for name in arguments if name not in ("description",)] if isinstance(arguments, dict) else []
        return Lead(where, tuple(used), f"({about})", is_path=True)

    def _line(self, call: ToolCall, arguments: Any, lead: Lead) -> Line:
        page = self._page
        mark, style = self._mark(call)
        tail = self._tail(call)
        name = safe(call.name)
        taken = INDENT * 2 + len(mark) + 2 + width(name) + sum(width(safe(text)) for text, _ in tail)
        rest = rest_text(arguments, lead, page.full)
        if not lead.text:
            shown = rest if isinstance(arguments, dict) else as_json(arguments) if arguments is not None else ""
            line: Line = [Span(name, "tool"), f"({page.cut(shown, page.columns - taken - 2)})"]
        else:
            line = [Span(name, "tool"), " ", *self._lead_line(lead, rest, page.columns - taken)]
        return ["  " * INDENT, Span(mark, style), " ", *line, *(Span(text, look) for text, look in tail)]

    def _lead_line(self, lead: Lead, rest: str, room: int) -> Line:
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

    def _mark(self, call: ToolCall) -> tuple[str, str]:
        marks = self._page.marks
        match call.outcome:
            case "ok":
                return marks.ok, "good"
            case "interrupted" | "canceled":
                return marks.stopped, "warn"
            case None:
                return marks.waiting, "dim"
        return marks.failed, "bad"

    def _tail(self, call: ToolCall) -> list[tuple[str, str]]:
        """How it ended if not simply well, how long it took, whom it started."""
        detail = call.metadata if isinstance(call.metadata, dict) else {}
        inner = detail.get("metadata")
        holders = [detail, inner] if isinstance(inner, dict) else [detail]
        values: list[tuple[str, str]] = []
        if call.outcome != "ok":
            values.append((f" {call.outcome or call.status}", "bad" if call.outcome == "error" else "warn"))
        code = next((holder[name] for holder in holders for name in EXITS if _is_count(holder.get(name))), 0)
        if code:
            values.append((f" exit {code}", "bad"))
        if took := self._took(call, detail):
            values.append((f" {duration_text(took)}", "dim"))
        if call.substituted is not UNSET:
            values.append((" result substituted", "warn"))
        if call.spawned_session:
            started = self._page.labels.get(call.spawned_session, call.spawned_session)
            values.append((f" {self._page.marks.arrow} {started}", "label"))
        return values

    @staticmethod
    def _took(call: ToolCall, detail: dict[str, Any]) -> int:
        milliseconds = next((detail[name] for name in DURATIONS if _is_count(detail.get(name))), 0)
        return int(milliseconds or (call.completed_at or call.started_at) - call.started_at)

    def _further(self, lead: Lead) -> Iterator[Line]:
        """The lines of a command beyond its first."""
        if lead.further and self._page.full:
            yield from self._page.text("\n".join(lead.further), FOLD, BELOW, "")

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

    def _result(self, result: Any, arguments: Any, changes: list[FileChange]) -> Iterator[Line]:
        page = self._page
        whole = result_text(result)
        text = (whole if page.full else output_text(whole)).strip("\n")
        if not text:
            return
        if changes and not page.full:
            names_change = any(change.path and change.path in text for change in changes)
            is_obvious = names_change or text in ("{}", "null") or "success" in text.lower()
            if "\n" not in text and not is_obvious:
                yield from page.text(text, FOLD, BELOW)
        elif _reads(arguments):
            yield from page.text(text, FOLD_READ, BELOW)
        else:
            yield from page.text(text, FOLD, BELOW)


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
