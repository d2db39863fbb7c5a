"""Turns in lists: newest first and as lazily as they are looked at, with the sessions that
stand at each; the forest of turns as lines; a turn as one line or a short entry; turns that
another tool is still writing, marked and without an id; the session that is meant where none is
named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import click
from msgspec import UNSET, ValidationError, convert

from weft.kernel.enums import TurnStatus, TurnType
from weft.kernel.typed_names import shell_word
from weft.surfaces.cli.progress import counted
from weft.surfaces.cli.screen import NO_TIME, Line, Span, local_time
from weft.surfaces.plain_text import cut, cut_at_word, safe, safe_lines, width
from weft.verbs.reading_verbs import TurnReader

if TYPE_CHECKING:
    from weft.kernel.events import Usage
    from weft.ledger.api import Ledger, ListedSession
    from weft.ledger.imports import ProvisionalItem, ProvisionalTurn
    from weft.ledger.model import Session, Turn
    from weft.runtime.tool.toolsets import WithheldTools
    from weft.surfaces.cli.command_line import Call


# --- The forest of turns as lines: where each turn stands, and how the lines around it run.

COLUMNS = 8


class GraphRow(Enum):
    """What a row of the drawing shows."""

    TURN = "turn"
    BRANCH = "branch"  # a turn that leaves the line to its left
    LAST = "last"  # the same, where that line ends
    JOIN = "join"  # a line that ends in the one to its left
    CUT = "cut"  # the line goes on to turns that are not shown
    GAP = "gap"  # between two trees


class Row(NamedTuple):
    place: GraphRow
    column: int = 0
    turn: str = ""
    goes_on: bool = False  # a line leaves the turn downwards
    ended: frozenset[int] = frozenset()  # columns to the left whose lines have ended


Node = tuple[str, str | None]


class GraphGlyphs(NamedTuple):
    """The characters that a graph is drawn with."""

    line: str
    join: str
    branch: str
    last: str
    cut: str
    turn: dict[str, str]


UNICODE = GraphGlyphs(
    "│", "├─╯", "├─", "└─", "┊", {"normal": "●", "compaction": "◆", "failed": "✗", "interrupted": "◍", "open": "○"}
)
ASCII = GraphGlyphs(
    "|", "|/", "|-", "`-", ":", {"normal": "*", "compaction": "#", "failed": "x", "interrupted": "!", "open": "o"}
)


def gutter(row: Row, glyphs: GraphGlyphs) -> str:
    """What stands left of a row's text, without the mark of its turn."""
    lines = [f"{' ' if column in row.ended else glyphs.line} " for column in range(row.column)]
    match row.place:
        case GraphRow.TURN:
            return "".join(lines)
        case GraphRow.BRANCH:
            return "".join(lines[:-1]) + glyphs.branch
        case GraphRow.LAST:
            return "".join(lines[:-1]) + glyphs.last
        case GraphRow.JOIN:
            return "".join(lines[:-1]) + glyphs.join
        case GraphRow.CUT:
            return "".join(lines) + glyphs.cut
        case GraphRow.GAP:
            return ""


def gutter_below(row: Row, glyphs: GraphGlyphs) -> str:
    """What stands left of the further lines of a turn's text."""
    return f"{glyphs.line} " * row.column + (glyphs.line if row.goes_on else " ")


class TurnForest:
    """Turns by parent. A parent that is not among them is a cut end, unless it is null: then its child is a root."""

    def __init__(self, children_first: Sequence[Node]) -> None:
        self.nodes = children_first
        turns = {turn for turn, _ in children_first}
        self.children: dict[str, list[str]] = {}
        self.roots: list[str] = []
        self.cut: set[str] = set()
        for turn, parent in children_first:
            if parent is None:
                self.roots.append(turn)
                continue
            if parent not in turns and parent not in self.cut:
                self.cut.add(parent)
                self.roots.append(parent)
            self.children.setdefault(parent, []).append(turn)

    def below(self) -> Iterator[tuple[str, list[str]]]:
        """Every node after all its children."""
        for turn, _ in self.nodes:
            yield turn, self.children.get(turn, [])
        for turn in self.cut:
            yield turn, self.children[turn]


def upward(newest_first: Sequence[Node]) -> Iterator[Row]:
    """Rows from the newest turn to the roots; a tree with something newer comes first."""
    forest = TurnForest(newest_first)
    newest = _newest(forest)
    order = _branch_order(forest, newest)
    for i, root in enumerate(sorted(forest.roots, key=lambda turn: newest[turn])):
        if i:
            yield Row(GraphRow.GAP)
        yield from _draw_upward(forest, root, order)


def _draw_upward(forest: TurnForest, root: str, order: dict[str, list[str]]) -> Iterator[Row]:
    stack = [(root, 0, 0)]
    while stack:
        turn, column, done = stack.pop()
        branches = order.get(turn, [])
        if done > 1:
            yield Row(GraphRow.JOIN, column + 1)
        if done < len(branches):
            stack.append((turn, column, done + 1))
            stack.append((branches[done], column + min(done, 1), 0))
        elif turn in forest.cut:
            yield Row(GraphRow.CUT, column)
        else:
            yield Row(GraphRow.TURN, column, turn, turn != root)


def _newest(forest: TurnForest) -> dict[str, int]:
    """For every node, the place in the input of the newest turn at or above it."""
    place = {turn: i for i, (turn, _) in enumerate(forest.nodes)}
    newest: dict[str, int] = {}
    for turn, children in forest.below():
        newest[turn] = min([place.get(turn, len(place)), *(newest[child] for child in children)])
    return newest


def _branch_order(forest: TurnForest, newest: dict[str, int]) -> dict[str, list[str]]:
    """Branches of each fork, the newest first; where that would take too many columns, the widest first."""
    width: dict[str, int] = {}
    order: dict[str, list[str]] = {}
    for turn, children in forest.below():
        if not children:
            width[turn] = 1
            continue
        order[turn] = sorted(children, key=lambda child: newest[child])
        width[turn] = _columns_of(order[turn], width)
        if width[turn] > COLUMNS:
            order[turn] = sorted(children, key=lambda child: (-width[child], newest[child]))
            width[turn] = _columns_of(order[turn], width)
    return order


def _columns_of(branches: list[str], width: dict[str, int]) -> int:
    return max(width[branches[0]], *(1 + width[branch] for branch in branches[1:]), 1)


def downward(oldest_first: Sequence[Node]) -> Iterator[Row]:
    """Rows from the root on: an only child below its parent, of several the heaviest behind the others."""
    forest = TurnForest(oldest_first[::-1])
    size: dict[str, int] = {}
    for turn, children in forest.below():
        size[turn] = 1 + sum(size[child] for child in children)
    for root in reversed(forest.roots):
        stack = [Row(GraphRow.TURN, 0, root)]
        while stack:
            row = stack.pop()
            branches = forest.children.get(row.turn, [])[::-1]
            yield row._replace(goes_on=bool(branches))
            if branches:
                main = max(reversed(branches), key=lambda child: size[child])
                stack.append(_heaviest_below(row, main, is_only=len(branches) == 1))
                set_in = Row(GraphRow.BRANCH, row.column + 1, ended=row.ended)
                stack += [set_in._replace(turn=child) for child in reversed(branches) if child != main]


def _heaviest_below(row: Row, turn: str, *, is_only: bool) -> Row:
    """Where the heaviest child of a turn stands."""
    if is_only or row.column >= COLUMNS:
        return Row(GraphRow.TURN, row.column, turn, ended=row.ended)
    return Row(GraphRow.LAST, row.column + 1, turn, ended=row.ended | {row.column})


# --- Turns for reading: newest first and as lazily as they are looked at, with the sessions that stand at each.

SHORT_ID = 8
TITLE_COLUMNS = 48


def short(turn_id: str) -> str:
    """The end of an id: long enough to be unique, short enough to type."""
    return turn_id[-SHORT_ID:]


class Reader(TurnReader):
    """What stands beside a turn when people look at it, as they type and read it."""

    @cached_property
    def short_labels(self) -> dict[str, str]:
        """What to type for each session."""
        return self._ledger.listing().short_labels()

    def active_session(self, label: str | None) -> Session | None:
        named = (session for session in self._known.values() if session.label == label)
        return next((session for session in named if session.status == "active"), None)

    def short_label(self, session: Session) -> str:
        """What to type for it: of an id that another tool made only the beginning."""
        return self.short_labels.get(session.label, session.label)

    def places(self, turn_id: str) -> list[str]:
        """The sessions that stand here, for people, who want to know if one stands in the middle of the turn."""
        return [self._session_place(session) for session in self._heads.get(turn_id, ())] + self._elsewhere.get(
            turn_id, []
        )

    def _session_place(self, session: Session) -> str:
        where = "" if session.head_event is None else f" at event {session.head_event}"
        return f"{self.short_label(session)}{quoted_title(session.title)}{where}"

    @cached_property
    def _sources(self) -> dict[str, list[tuple[str, str]]]:
        return self._ledger.listing().sources()

    def sources(self, turn: Turn) -> list[str]:
        """What a turn was picked or summed up from, in words."""
        turns = self._sources.get(turn.id, [])
        return [f"{'turn' if why == 'cherry_pick' else 'the branch to'} {short(source)}" for why, source in turns]


def quoted_title(title: str | None) -> str:
    """A title as it stands behind a label: in quotation marks after a blank. Empty where it says nothing."""
    from weft.ledger.read.session_list import meaningful_title

    shown_title = meaningful_title(title)
    return f' "{cut(safe(" ".join(shown_title.split())), TITLE_COLUMNS)}"' if shown_title else ""


def is_foreign(session: Session) -> bool:
    """Another tool made it, and its label."""
    return session.origin != "weft"


# --- A turn as people read it in lists: one line, or a short entry.

INDENT = "    "
UNKNOWN = "unknown"
_DATED = re.compile(r"-20\d{6}$")
STATE_STYLES = {"normal": "", "compaction": "warn", "failed": "bad", "interrupted": "warn", "open": "good"}
STATE_WORDS = {"compaction": "compaction", "failed": "failed", "interrupted": "interrupted", "open": "being recorded"}


def state_of(turn: Turn) -> str:
    """What sets a turn apart from one that was simply completed."""
    if turn.turn_type == TurnType.COMPACTION:
        return "compaction"
    if turn.status == TurnStatus.FAILED:
        return "failed"
    if turn.interruption_reason is not None:
        return "interrupted"
    return "normal" if turn.status == TurnStatus.COMPLETED else "open"


def mark(turn: Turn, glyphs: GraphGlyphs) -> Span:
    state = state_of(turn)
    return Span(glyphs.turn[state], STATE_STYLES[state] or "id")


def decoration(labels: list[str]) -> Line:
    """The sessions that stand here, as git shows its branches."""
    if not labels:
        return []
    names = [span for label in labels for span in (", ", Span(label, "label"))]
    return [" (", *names[1:], ")"]


def flag(turn: Turn) -> Line:
    state = state_of(turn)
    flags: Line = [Span(f" [{STATE_WORDS[state]}]", STATE_STYLES[state])] if state in STATE_WORDS else []
    return flags if turn.substitutions is UNSET else [*flags, Span(" [substituted]", "warn")]


def one_line(turn: Turn, reader: Reader, columns: int) -> Line:
    """Id, sessions, state and subject, cut to the width there is."""
    lead = [Span(short(turn.id), "id"), *decoration(reader.places(turn.id)), *flag(turn)]
    beside = _words_beside(turn)
    room = columns - line_width(lead) - 1
    subject = cut(safe(reader.subject(turn)), max(20, room - len(beside)))
    shown = [*lead, f" {subject}"] if subject else lead
    return [*shown, Span(beside, "dim")] if beside and width(subject) + len(beside) <= room else shown


def _words_beside(turn: Turn) -> str:
    """Of a turn that another tool made: its model, and how many calls it took."""
    if turn.origin is None:
        return ""
    model = "" if turn.model in (None, UNKNOWN) else _DATED.sub("", safe(str(turn.model)))
    calls = counted(turn.tool_call_count, "call") if turn.tool_call_count else ""
    words = ", ".join(filter(None, (model, calls)))
    return f"  [{words}]" if words else ""


def crossing(older: Turn, reader: Reader, columns: int) -> Line:
    """Between the root of one chain and the turn of another that it goes on from."""
    session = reader.session(older.session_id)
    where = f"session {reader.short_label(session)}{quoted_title(session.title)}" if session else "another chain"
    return [Span(cut(safe(f"(goes on from {where})"), max(20, columns)), "dim")]


def line_width(line: Line) -> int:
    return sum(width(safe(span if isinstance(span, str) else span.text)) for span in line)


def entry(turn: Turn, reader: Reader, columns: int) -> Iterator[Line]:
    """A turn as `weft log` shows it."""
    yield [Span(f"turn {turn.id}", "id"), *decoration(reader.places(turn.id)), *flag(turn)]
    yield ["Date:  ", local_time(turn.started_at) if turn.time_known else NO_TIME]
    yield ["Agent: ", ", ".join(facts_of(turn))]
    if principals := reader.on_behalf_of(turn):
        yield ["For:   ", safe(" for ".join(principals))]
    if sources := reader.sources(turn):
        yield ["From:  ", ", ".join(sources)]
    if turn.error is not None:
        yield ["Error: ", Span(cut(safe(turn.error), max(20, columns - 7)), "bad")]
    if turn.status == TurnStatus.FAILED and turn.origin is None:
        yield ["Again: ", f"weft retry {shell_word(short(turn.id))}"]
    yield []
    yield [INDENT, cut(safe(reader.subject(turn)) or "(no text)", max(20, columns - len(INDENT)))]


def facts_of(turn: Turn) -> list[str]:
    """Who answered, and what it took."""
    facts = [turn.persona_id]
    if turn.model not in (None, UNKNOWN):
        facts.append(str(turn.model))
    if turn.tool_call_count:
        facts.append(counted(turn.tool_call_count, "tool call"))
    if tokens := total_of(turn.usage):
        facts.append(counted(tokens, "token"))
    return facts


def total_of(usage: Usage) -> int:
    return usage.total_tokens if isinstance(usage.total_tokens, int) else 0


# --- Turns that another tool is still writing, as people see them: marked, without an id, and gone once they are
# turns.

PROVISIONAL_MARK = "provisional"
PROVISIONAL_STYLE = "good"
FOLDED_LINES = 6


def note_left_out(call: Call, count: int, done: str) -> None:
    """One line beside an answer that leaves out turns which are still being written: they are not `done` yet. Under
    --json their number, on the error stream."""
    if count and call.json:
        from weft.surfaces.wire.forms import document

        click.echo(document({"provisional": count}, indent=False), err=True)
    elif count:
        verb = "is" if count == 1 else "are"
        call.note(
            f"{counted(count, 'turn')} {verb} still being written, and not {done} yet: `weft import` takes"
            f" {'it' if count == 1 else 'them'} once {'it has' if count == 1 else 'they have'} ended"
        )


def provisional_subject(tail: ProvisionalTurn) -> str:
    asked = next((item.text for item in tail.items if item.role == "user" and item.text), "")
    return " ".join(asked.split())


def provisional_line(tail: ProvisionalTurn, reader: Reader, columns: int) -> Line:
    lead = f"({_label(tail, reader)}) "
    so_far = counted(tail.items_so_far, "item")
    room = max(20, columns - len(PROVISIONAL_MARK) - len(lead) - len(so_far) - 5)
    return [
        Span(PROVISIONAL_MARK, PROVISIONAL_STYLE),
        " ",
        Span(lead, "label"),
        cut(safe(provisional_subject(tail)), room),
        Span(f"  [{so_far}]", "dim"),
    ]


def provisional_entry(tail: ProvisionalTurn, reader: Reader, columns: int) -> Iterator[Line]:
    """As `weft log` shows it, above the turn that it will follow."""
    yield [
        Span(PROVISIONAL_MARK, PROVISIONAL_STYLE),
        " (",
        Span(_label(tail, reader), "label"),
        ")",
        Span(" [still being written]", PROVISIONAL_STYLE),
    ]
    yield ["Seen:  ", local_time(tail.seen_at)]
    yield ["Agent: ", ", ".join(filter(None, (tail.origin, tail.model, counted(tail.items_so_far, "item"))))]
    yield []
    yield [INDENT, cut(safe(provisional_subject(tail)) or "(no text)", max(20, columns - len(INDENT)))]


def log_lines(tails: Sequence[ProvisionalTurn], reader: Reader, columns: int, *, oneline: bool) -> Iterator[Line]:
    for tail in tails:
        if oneline:
            yield provisional_line(tail, reader, columns)
        else:
            yield from provisional_entry(tail, reader, columns)
            yield []


def provisional_page(tails: Sequence[ProvisionalTurn], *, full: bool) -> Iterator[Line]:
    """As `weft show` shows it, below the turn that it follows."""
    for tail in tails:
        yield []
        yield [Span(f"{PROVISIONAL_MARK}: still being written, not a turn yet", PROVISIONAL_STYLE)]
        yield [Span("Seen:    ", "dim"), local_time(tail.seen_at)]
        yield [Span("Source:  ", "dim"), tail.source]
        if (left := tail.items_so_far - len(tail.items)) > 0:
            yield [Span(f"… {counted(left, 'earlier item')} after the first", "dim")]
        for item in tail.items:
            yield []
            yield from _item(item, full)


def _item(item: ProvisionalItem, full: bool) -> Iterator[Line]:
    if item.tool is not None:
        yield [Span(item.tool, "tool"), Span(f" [{item.status or 'no outcome yet'}]", "dim")]
    else:
        yield [Span(item.role, item.role if item.role in ("user", "assistant") else "heading")]
    lines = safe_lines(item.text)
    shown = lines if full else lines[:FOLDED_LINES]
    yield from (["  ", line] for line in shown)
    if len(lines) > len(shown):
        yield [Span(f"  … {counted(len(lines) - len(shown), 'more line')}", "dim")]


def _label(tail: ProvisionalTurn, reader: Reader) -> str:
    session = reader.session(tail.session_id)
    return reader.short_label(session) if session else tail.session_id


# --- The session that is meant where none is named: to read, the latest; to go on with, not one whose last turn a
# stranger wrote.

LATEST_TITLE_COLUMNS = 60


def named_or_latest(call: Call, ledger: Ledger, name: str | None, *, with_turn: bool = True) -> str | None:
    """The name that was given; without one, the label of the latest session, with a note that says which it is. None:
    there is no session, and the note says so."""
    from weft.verbs.session_verbs import NOTHING_YET, latest_session

    if name is not None:
        return place_in_latest(call, ledger, name)
    listed = latest_session(ledger, with_turn=with_turn)
    if listed is None:
        call.note(NOTHING_YET)
        return None
    return _session_note(call, listed)


def require_named_or_latest(call: Call, ledger: Ledger, name: str | None, *, with_turn: bool = True) -> str:
    """The same for what has no answer without a session: raises NotFound where there is none."""
    from weft.verbs import session_verbs

    if name is not None:
        return place_in_latest(call, ledger, name)
    listed = session_verbs.latest_session(ledger, with_turn=with_turn)
    if listed is None:
        return session_verbs.require_named_or_latest(ledger, None, with_turn=with_turn)
    return _session_note(call, listed)


def place_in_latest(call: Call, ledger: Ledger, name: str) -> str:
    """A name as it is; without a session before `@{…}` it is a place where the latest session stood."""
    return require_named_or_latest(call, ledger, None) + name if name.startswith("@{") else name


def _session_note(call: Call, listed: ListedSession) -> str:
    title = cut_at_word(safe(" ".join(listed.title.split())), LATEST_TITLE_COLUMNS)
    label = Span(listed.short_label, "label")
    call.note("the latest session: ", *((title, " (", label, ")") if title else (label,)))
    return listed.session.label


# --- Tools that a turn did not have, and how that is changed.

_HOW_TO_CHANGE = {
    "embedded_model": "name another model with --model",
    "not_the_owners": "name a toolset: `weft agent configure {agent} --toolset NAME`",
    "no_folder": "name one with --in DIR, or trust the one that you stand in: `weft trust .`",
    "sandbox": "`weft config` names the layer that says so",
    "nothing_fits": "`weft tools --agent {agent}` lists what there is and what is allowed",
}


def withheld_words(withheld: WithheldTools) -> str:
    names = ", ".join(withheld.tools)
    how = _HOW_TO_CHANGE.get(withheld.by, "").format(agent=shell_word(withheld.agent))
    return safe(f"{'no tools' if not names else f'without {names}'}: {withheld.why}{f'; {how}' if how else ''}")


def withheld_of(turn: Turn) -> list[str]:
    """Why a turn did not have tools that its agent is allowed or its toolset lists, as its record says, in words."""
    config = turn.effective_config
    record = config.get("withheld") if isinstance(config, dict) and turn.origin is None else None
    if record is None:
        return []
    from weft.runtime.tool.toolsets import WithheldTools

    try:
        return [withheld_words(tools) for tools in convert(record, list[WithheldTools])]
    except ValidationError:  # recorded by hand, or by another version
        return []
