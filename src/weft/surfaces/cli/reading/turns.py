"""Turns looked at: `weft log`, `show`, `tree`, `context` and `diff`, and by their files `files`
and `blame`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import click
from msgspec import UNSET

from weft.kernel.enums import CompactionTrigger
from weft.ledger.api import Provenance, ThreadDiff, Touch
from weft.ledger.model import Compaction, FileNote, Message, ToolCall, Turn
from weft.ledger.read.session_list import in_one_line, meaningful_title
from weft.surfaces.cli import turn_lists
from weft.surfaces.cli.command_line import DIFFERENT, OK, Call, SharedCommand
from weft.surfaces.cli.progress import counted
from weft.surfaces.cli.screen import LEAST_ROOM, NO_DATE, NO_TIME, Line, Screen, Span, local_time
from weft.surfaces.cli.turn_lists import (
    ASCII,
    UNICODE,
    GraphGlyphs,
    GraphRow,
    Reader,
    crossing,
    decoration,
    downward,
    entry,
    flag,
    gutter,
    gutter_below,
    mark,
    one_line,
    short,
    upward,
)
from weft.surfaces.cli.verb_commands import command_of, shows
from weft.surfaces.plain_text import cut, pad, safe, safe_lines, wrapped, wrapped_line
from weft.verbs import reading_verbs as verbs
from weft.verbs.answers import BlamedLine, ListedTurn, Listing, ShownContext, ShownTurn, UnfinishedTurn
from weft.verbs.declaration import opt
from weft.verbs.exchange_answers import FilesDiff
from weft.verbs.session_verbs import require_named_or_latest

if TYPE_CHECKING:
    from weft.ledger.api import Ledger, PromptChange
    from weft.ledger.imports import ProvisionalTurn
    from weft.verbs.answers import ShownTurn


# --- `weft log`: turns, the newest first.

_COUNT = re.compile(r"-\d+")


class LogCommand(SharedCommand):
    """`weft log -3` is `weft log -n 3`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before = ("", *args)
        spelled = [f"-n{arg[1:]}" if _is_count(last, arg) else arg for last, arg in zip(before, args, strict=False)]
        return super().parse_args(ctx, spelled)


def _is_count(last: str, arg: str) -> bool:
    """Not where the argument is the value of an option."""
    return _COUNT.fullmatch(arg) is not None and last not in ("-n", "--limit", "--session", "--ledger", "--after")


@shows(verbs.log)
def show_log(
    call: Call,
    log: Listing[ListedTurn | UnfinishedTurn],
    ledger: Ledger,
    rev: str | None,
    session: str | None,
    limit: int | None,
    graph: Annotated[bool, opt("Draw the branches.", before="limit")] = False,
    oneline: Annotated[bool, opt("One line for each turn.", before="limit")] = False,
) -> None:
    reader, entries = Reader(ledger), iter(log.items)
    tails: list[ProvisionalTurn] = []
    first: ListedTurn | None = None
    for listed in entries:  # what is provisional stands first
        if isinstance(listed, ListedTurn):
            first = listed
            break
        tails.append(listed.turn)
    if first is None and not tails:
        call.note(_no_turns_words(rev, session, asked=limit != 0))
        call.next_page(log.next)
        return
    above = turn_lists.log_lines(tails, reader, call.screen.columns, oneline=oneline)
    drawing = _Drawing(reader, oneline, call.screen.columns, is_thread=rev is not None)
    rest = (listed for listed in entries if isinstance(listed, ListedTurn))
    turns = reader.recalled(chain([] if first is None else [first], rest))
    glyphs = UNICODE if call.screen.unicode else ASCII
    call.screen.page(chain(above, drawing.graph(list(turns), glyphs) if graph else drawing.plain(turns)))
    call.next_page(log.next)


def _no_turns_words(rev: str | None, session: str | None, *, asked: bool) -> str:
    if session is not None:
        return f"session {session!r} has made no turns here"
    if not asked or rev is not None:
        return "no turns asked for"
    return 'no turns yet: record one with `weft record --query "…" --response "…"`, or pipe JSON to `weft record`'


class _Drawing:
    """The turns of a log as lines."""

    def __init__(self, reader: Reader, oneline: bool, columns: int, *, is_thread: bool) -> None:
        self._reader, self._oneline, self._columns = reader, oneline, columns
        self._is_thread = is_thread

    def _turn_lines(self, turn: Turn, older: Turn | None, taken: int = 0) -> Iterator[Line]:
        room = self._columns - taken
        if self._oneline:
            yield one_line(turn, self._reader, room)
        else:
            yield from entry(turn, self._reader, room)
        if self._is_thread and older is not None and turn.parent_id is None:
            yield from () if self._oneline else ([],)
            yield crossing(older, self._reader, room)

    def plain(self, turns: Iterable[Turn]) -> Iterator[Line]:
        for i, (turn, older) in enumerate(_with_next(turns)):
            if i and not self._oneline:
                yield []
            yield from self._turn_lines(turn, older)

    def graph(self, turns: list[Turn], glyphs: GraphGlyphs) -> Iterator[Line]:
        turns_by_id = {turn.id: turn for turn in turns}
        older = {turn.id: following for turn, following in _with_next(turns)}
        for row in upward([(turn.id, turn.parent_id) for turn in turns]):
            if row.place is not GraphRow.TURN:
                yield [Span(gutter(row, glyphs), "line")]
                continue
            turn = turns_by_id[row.turn]
            beside, below = gutter(row, glyphs), gutter_below(row, glyphs)
            first, *further = self._turn_lines(turn, older[turn.id], len(below) + 1)
            yield [Span(beside, "line"), mark(turn, glyphs), " ", *first]
            yield from (
                [Span(f"{below} ", "line"), *line] if line else [Span(below.rstrip(), "line")] for line in further
            )
            if not self._oneline and row.goes_on:
                yield [Span(below, "line")]


def _with_next(turns: Iterable[Turn]) -> Iterator[tuple[Turn, Turn | None]]:
    """Each turn with the one that is shown after it."""
    last: Turn | None = None
    for turn in turns:
        if last is not None:
            yield last, turn
        last = turn
    if last is not None:
        yield last, None


log_command = command_of(verbs.log, LogCommand)


# --- `weft show`: one turn with everything in it.

RULES = 8
NAME_COLUMNS = 9


@shows(verbs.show)
def show_turn(
    call: Call,
    shown: ShownTurn | UnfinishedTurn,
    ledger: Ledger,
    full: Annotated[bool, opt("Show results, arguments and thinking in full.", before="original")] = False,
) -> None:
    from weft.surfaces.cli.transcript import Transcript

    if isinstance(shown, UnfinishedTurn):
        tails = ledger.imports.provisional(shown.turn.session_id)
        call.screen.page(list(turn_lists.provisional_page(tails, full=full))[1:])
        return
    turn, reader = shown.turn, Reader(ledger)
    folder = turn.workspace_path or ""
    header = _Header(shown, reader, ledger.listing().projects([folder])[folder])
    transcript = Transcript(
        full=full,
        columns=call.screen.columns,
        unicode=call.screen.unicode,
        workspace=turn.workspace_path,
        labels=reader.short_labels,
        wraps=call.screen.terminal,
    )
    files = noted_files(ledger, shown.items)
    below = turn_lists.provisional_page([tail.turn for tail in shown.provisional], full=full)
    call.screen.page([*header.lines(call.screen), *transcript.lines(shown.items, files), *below])


class _Header:
    """What stands above a turn's messages."""

    def __init__(self, shown: ShownTurn, reader: Reader, project: str) -> None:
        self._shown, self._turn, self._reader, self._project = shown, shown.turn, reader, project
        self._models = sorted({message.model for message in shown.messages if message.model})
        self._session = reader.session(shown.turn.session_id)

    def lines(self, screen: Screen) -> Iterator[Line]:
        turn, event = self._turn, self._shown.event
        yield [Span(f"turn {turn.id}", "id"), *decoration(self._reader.places(turn.id)), *flag(turn)]
        if event is not None:
            where = f"{event.id}, {event.kind}, {event.number} of {event.of}; the turn up to it"
            yield [Span("Event:   ", "dim"), where]
        for name, value in (*self._facts(), *merges(turn.id, self._shown.provenance)):
            if value:
                yield from _fact(name, Span(value), screen)
        if turn.error is not None:
            code = f"{turn.error_code}: " if turn.error_code not in (None, "error") else ""
            yield from _fact("Error", Span(code + turn.error, "bad"), screen)
        yield []
        if self._shown.compaction is not None:
            yield from _summary(self._shown.compaction, screen)

    def _facts(self) -> Iterator[tuple[str, str]]:
        turn, session = self._turn, self._session
        yield "Digest", turn.digest
        yield "Parent", turn.parent_id or "none: the root of its tree"
        yield "Session", f"{session.label if session else 'none'}, depth {turn.depth}"
        title = meaningful_title(session.title) if session else None
        yield "Title", title or ""
        yield "Task", in_one_line(session.task_description or "") if session and title is None else ""
        yield "Date", local_time(turn.started_at) if turn.time_known else NO_TIME
        yield "Agent", ", ".join(filter(None, (turn.persona_id, session.agent if session else None)))
        yield "For", " for ".join(self._shown.on_behalf_of or ())
        yield "Origin", " ".join(filter(None, (turn.origin, turn.version)))
        yield "Model", self._model()
        yield "Usage", _usage(turn)
        yield "Prompt", "; ".join(map(_prompt_words, self._shown.prompt_changes or ()))
        yield "Tools", "; ".join(turn_lists.withheld_of(turn))
        yield "Project", self._project if turn.origin else ""
        yield "Folder", turn.workspace_path or ""
        yield "Branch", turn.git_branch or ""
        yield "Allowed", permissions_text(turn.permissions_granted) if turn.origin else ""
        yield "Cut off", turn.interruption_reason or ""
        yield "Context", f"after compaction {short(turn.compaction_id)}" if turn.compaction_id else ""

    def _model(self) -> str:
        turn = self._turn
        named = " ".join(filter(None, (turn.model, (by := turn.provider_program or turn.provider) and f"({by})")))
        others = [model for model in self._models if model != turn.model]
        return ", ".join(filter(None, (named, *others)))


def merges(turn: str, merged: Sequence[Provenance]) -> Iterator[tuple[str, str]]:
    """Where a turn was picked or summed up from, and where it went."""
    for source in merged:
        left = f", which left at {short(source.left_id)}" if source.left_id else ""
        if source.turn_id == turn:
            picked = source.why == "cherry_pick"
            yield (
                "From",
                f"turn {short(source.source_id)}" if picked else f"the branch to {short(source.source_id)}{left}",
            )
        else:
            yield "Into", f"turn {short(source.turn_id)}{'' if source.why == 'cherry_pick' else ', as a summary'}"


def permissions_text(granted: Any) -> str:
    """What the agent was allowed, in a few words where the origin has them."""
    from weft.surfaces.cli.transcript import as_json

    if isinstance(granted, dict):
        words = [f"{name}{word}" for key, name in _MODES.items() if (word := _mode(granted.get(key)))]
        return ", ".join(words) or as_json(granted)
    if isinstance(granted, list) and all(isinstance(rule, dict) and "permission" in rule for rule in granted):
        rules = list(dict.fromkeys(f"{rule['permission']} {rule.get('action', '')}".strip() for rule in granted))
        return ", ".join([*rules[:RULES], *(["…"] if len(rules) > RULES else [])])
    return "" if granted is None else as_json(granted)


_MODES = {"mode": "", "approval_policy": "asks a person: ", "sandbox_policy": "sandbox: "}


def _mode(value: Any) -> str:
    word = value.get("type") or value.get("mode") if isinstance(value, dict) else value
    return word if isinstance(word, str) else ""


def noted_files(ledger: Ledger, items: Sequence[Message | ToolCall]) -> dict[str, list[FileNote]]:
    """The files of each message that no call of the turn tells of by itself."""
    from weft.surfaces.cli.transcript import as_json

    called_with = " ".join(as_json(item.arguments) for item in items if isinstance(item, ToolCall))
    notes = ledger.listing().files([item.id for item in items if isinstance(item, Message)])
    return {message: [file for file in files if file.path not in called_with] for message, files in notes.items()}


_USAGE = {
    "input": "input",
    "cached_input": "cache read",
    "cache_write": "cache write",
    "cache_write_1h": "of these for an hour",
    "output": "output",
    "reasoning": "of these reasoning",
    "total": "total",
}


def _usage(turn: Turn) -> str:
    """Parts of another part stand behind it."""
    counts = [(words, getattr(turn.usage, f"{name}_tokens")) for name, words in _USAGE.items()]
    return ", ".join(f"{words} {count:,}" for words, count in counts if count not in (UNSET, None))


def _prompt_words(change: PromptChange) -> str:
    """From where on a request was none that its cache knew."""
    if change.part == "message":
        return f"not that of the request before from message {change.message} of {change.of} on"
    words = {"model": "another model than the request before", "tools": "other tools than the request before"}
    return words.get(change.part, "another system prompt than the request before")


TRIGGERS: dict[str | None, str] = {
    CompactionTrigger.CONTEXT_LIMIT: "when the context was nearly full",
    CompactionTrigger.MANUAL: "by hand",
    CompactionTrigger.PERIODIC: "on schedule",
    CompactionTrigger.OVERFLOW_RECOVERY: "after the context was too long",
}


def _fact(name: str, value: Span, screen: Screen) -> Iterator[Line]:
    """A name and its value; on a terminal a long value goes on below its beginning."""
    room = max(LEAST_ROOM, screen.columns - NAME_COLUMNS)
    lines = wrapped_line(safe(value.text), room, breaks_words=False) if screen.terminal else [value.text]
    for number, line in enumerate(lines):
        lead = f"{name}:" if number == 0 else ""
        yield [Span(f"{lead:{NAME_COLUMNS}}", "dim"), Span(line, value.style)]


def _summary(compaction: Compaction, screen: Screen) -> Iterator[Line]:
    first_kept = f"; kept from {short(compaction.first_kept)} on" if compaction.first_kept else ""
    count = compaction.turns_summarized
    turns = "" if count is None else f" of {counted(count, 'turn')},"
    trigger = f"; made {TRIGGERS[compaction.trigger]}" if compaction.trigger in TRIGGERS else ""
    about = f"{turns} through {short(compaction.summarized_through)}{first_kept}{trigger}"
    yield [Span("summary", "warn"), about]
    if not compaction.summary:
        yield ["  ", Span("its text was not kept by the tool that made it", "dim")]
    lines = safe_lines(compaction.summary)
    shown = wrapped("\n".join(lines), max(LEAST_ROOM, screen.columns - 2)) if screen.terminal and lines else lines
    yield from (["  ", line] for line in shown)


# --- `weft tree`: a whole tree of turns, from its root.


@shows(verbs.tree)
def show_tree(call: Call, tree: Listing[ListedTurn], ledger: Ledger) -> None:
    reader, glyphs = Reader(ledger), UNICODE if call.screen.unicode else ASCII
    call.screen.page(_branch_lines(list(reader.recalled(tree.items)), reader, glyphs, call.screen.columns))


def _branch_lines(turns: list[Turn], reader: Reader, glyphs: GraphGlyphs, columns: int) -> Iterator[Line]:
    rows = {row.turn: row for row in downward([(turn.id, turn.parent_id) for turn in turns])}
    turns_by_id = {turn.id: turn for turn in turns}
    for turn in (turns_by_id[shown] for shown in rows):
        beside = gutter(rows[turn.id], glyphs)
        yield [Span(beside, "line"), mark(turn, glyphs), " ", *one_line(turn, reader, columns - len(beside) - 2)]


# --- `weft context`: exactly what an agent saw, or would see.


@shows(verbs.context)
def show_context(call: Call, shown: ShownContext) -> None:
    if shown.why_estimated:
        call.note(f"the tokens are estimated: {shown.why_estimated}")
    if shown.context.messages:
        call.screen.page(_context_lines(shown, call.screen.columns))
    else:
        call.note("the context is empty: nothing has been said there yet")


def _context_lines(shown: ShownContext, columns: int) -> Iterator[Line]:
    from weft.surfaces.cli.transcript import Transcript

    context = shown.context
    counts = [counted(len(context.messages), "message")]
    if context.compaction is not None:
        counts.append(f"after compaction {short(context.compaction)}")
    if not context.cut.is_empty:
        counts.append("cut to fit")
    if context.observed:
        counts.append("as the model request recorded it")
    if shown.tokens is not None:
        by = "estimated" if shown.counted_by is None else f"counted by {safe(shown.counted_by)}"
        counts.append(f"{shown.tokens:,} tokens ({by})")
    yield [Span(", ".join(counts), "dim")]
    yield []
    yield from Transcript(full=True, columns=columns).lines(context.messages)


# --- `weft diff`: two threads from where they part.


def _differs(
    difference: ThreadDiff | FilesDiff,
    exit_code: Annotated[bool, opt("Exit with 1 if they differ.")] = False,
) -> int:
    if isinstance(difference, ThreadDiff):
        is_different = bool(difference.left or difference.right)
    else:
        is_different = bool(difference.changes or difference.git_changes)
    return DIFFERENT if exit_code and is_different else OK


@shows(verbs.diff, exit_code=_differs)
def show_difference(
    call: Call, difference: ThreadDiff | FilesDiff, ledger: Ledger, left: str | None, right: str | None, patch: bool
) -> None:
    if isinstance(difference, ThreadDiff):
        names = (require_named_or_latest(ledger, left), require_named_or_latest(ledger, right))
        comparison = _Comparison(ledger, patch, call.screen.columns, call.screen.unicode)
        call.screen.page(comparison.lines(*names, difference))
        return
    from weft.surfaces.cli.turn_files import change_lines, note_git_changes, note_self_running

    if left is None:
        call.note("its latest turn: ", Span(short(difference.right_id), "id"))
    if difference.git_unknown:
        call.note(f"what changed in git's folders is not known: {safe(difference.git_unknown)}")
    call.screen.page(change_lines(difference.changes))
    note_self_running(call, difference.runs_by_itself)
    note_git_changes(call, difference.git_changes)
    if not difference.changes:
        call.note("their files are equal")


class _Comparison:
    """The lines of a difference."""

    def __init__(self, ledger: Ledger, patch: bool, columns: int, unicode: bool) -> None:
        self._ledger, self._patch, self._columns, self._unicode = ledger, patch, columns, unicode
        self._reader = Reader(ledger)

    def lines(self, left: str, right: str, difference: ThreadDiff) -> Iterator[Line]:
        yield [Span(f"--- {left} ({counted(len(difference.left), 'turn')} of its own)", "heading")]
        yield [Span(f"+++ {right} ({counted(len(difference.right), 'turn')} of its own)", "heading")]
        if difference.ancestor is None:
            yield [Span("the threads share no turn", "dim")]
        else:
            yield ["  ", *one_line(self._ledger.turn(difference.ancestor), self._reader, self._columns - 2)]
        yield from self._side_lines("- ", "bad", difference.left)
        yield from self._side_lines("+ ", "good", difference.right)

    def _side_lines(self, sign: str, style: str, turns: Sequence[Turn]) -> Iterator[Line]:
        from weft.surfaces.cli.transcript import Transcript

        for turn in self._reader.ahead(turns):
            yield [Span(sign, style), *one_line(turn, self._reader, self._columns - 2)]
            if self._patch:
                transcript = Transcript(
                    full=True, columns=self._columns, unicode=self._unicode, workspace=turn.workspace_path
                )
                for line in transcript.lines(verbs.in_order(self._ledger, turn.id)):
                    yield [Span(sign, style), "  ", *line]


# --- `weft files`: every turn that touched a file.

HEADER = ("turn", "when", "kind", "lines", "session", "file")
SPARE = ("session",)
STYLES = {"written": "good", "read": "", "referenced": "dim", "attached": "dim"}


@shows(verbs.files)
def show_touches(call: Call, page: verbs.TouchPage, ledger: Ledger, path: str) -> None:
    if page.items:
        reader = Reader(ledger)
        call.screen.table([_touch_row(touch, reader) for touch in page.items], HEADER, spare=SPARE)
    if page.further:
        call.note(f"{page.further:,} more: -n N lists more")
    elif not page.items:
        call.note(f"no turn is known to have touched {path}; `weft import` notes the files of other tools' sessions")


def _touch_row(touch: Touch, reader: Reader) -> tuple[Span | str, ...]:
    session = reader.session(touch.session_id)
    lines = "" if touch.line_start is None else f"{touch.line_start}-{touch.line_end or ''}".rstrip("-")
    return (
        Span(short(touch.turn_id), "id"),
        local_time(touch.touched_at) if touch.time_known else NO_DATE,
        Span(touch.kind, STYLES.get(touch.kind, "")),
        lines,
        Span(reader.short_label(session) if session else "", "label"),
        touch.full_path,
    )


# --- `weft blame`: which turn last wrote each line of a file.

NOT_KNOWN = "?"
LABEL_COLUMNS = 16
DAY = len("2026-11-15")


@shows(verbs.blame)
def show_blamed(call: Call, blamed: verbs.BlamedFile, ledger: Ledger, path: str) -> None:
    call.screen.page(_blame_lines(blamed.items, Reader(ledger)))
    unknown = sum(line.turn_id is None for line in blamed.items)
    if unknown:
        call.note(
            f"{counted(unknown, 'line')} of {path}: no turn is known to have written {'it' if unknown == 1 else 'them'}"
        )
    if blamed.unplaced:
        turns = ", ".join(map(short, blamed.unplaced))
        call.note(f"edits of {turns} are not found any more: something that is not recorded came after")


def _blame_lines(lines: Sequence[BlamedLine], reader: Reader) -> Iterator[Line]:
    labels = {line.turn_id: _label(line, reader) for line in lines if line.turn_id is not None}
    wide = max((len(label) for label in labels.values()), default=0)
    digits = len(str(len(lines)))
    for line in lines:
        if line.turn_id is None:
            who: Line = [pad(NOT_KNOWN, 8 + 2 + wide + 2 + DAY)]
        else:
            day = local_time(line.started_at or 0)[:DAY] if line.time_known is True else pad(NO_DATE, DAY)
            who = [Span(short(line.turn_id), "id"), "  ", Span(pad(labels[line.turn_id], wide), "label"), "  ", day]
        yield [*who, Span(f"  {line.line:>{digits}}  ", "dim"), line.text.expandtabs(4)]


def _label(line: BlamedLine, reader: Reader) -> str:
    session = reader.session(line.session_id or None)
    return cut(safe(reader.short_label(session)), LABEL_COLUMNS) if session else ""
