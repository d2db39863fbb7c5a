"""What is found by words and by meaning: `weft search`, with its hits under their sessions,
and `embed`, `similar`, `route` and `embed-stats`, with the model that embeds.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from msgspec import UNSET

from weft.kernel.clock import SystemClock
from weft.kernel.typed_names import shell_line, shell_word
from weft.ledger.api import ListedSession, SessionFilter
from weft.runtime.invoke.message_routes import (
    DEFAULT_ALTERNATIVES,
    DEFAULT_THRESHOLD,
    check_route_arguments,
    choose_route,
    ranked_threads,
)
from weft.surfaces.cli.arguments import NO_MODEL, NO_PROJECT
from weft.surfaces.cli.command_line import Call
from weft.surfaces.cli.command_line import command as weft_command
from weft.surfaces.cli.programs.program_call import acting_person, complete_programs
from weft.surfaces.cli.progress import counted, progress, size_text
from weft.surfaces.cli.screen import NO_DATE, Line, Span, local_time
from weft.surfaces.cli.turn_lists import Reader, note_left_out, quoted_title, short
from weft.surfaces.cli.verb_commands import shows
from weft.surfaces.plain_text import cut_at_word, safe, width
from weft.verbs.program_answers import EmbeddedNodes, ForgottenVectors
from weft.verbs.reading_verbs import SHOWN_HITS, HitPage, search

if TYPE_CHECKING:
    from weft.ledger.api import Hit, Ledger, RoomHit
    from weft.programs.lookups import Node
    from weft.programs.similarity import ModelCount, Similar, Similarity
    from weft.runtime.invoke.message_routes import RouteAlternative, RouteChoice


# --- `weft search`: messages and tool calls by their words.

GROUPED = 5
"""On a terminal so many times as many hits are looked at as are shown, so that more sessions are among them."""
WHY_NONE = {
    "": "nothing in this room holds all these words",
    "no turns": "no turns yet: `weft import` brings in the sessions of other tools, `weft record` makes one",
    "project": NO_PROJECT,
    "model": NO_MODEL,
    "fewer": "nothing there holds all these words: try fewer words, or fewer filters",
    "words": "nothing holds all these words: try fewer, or a beginning such as conf*",
    "filters": "nothing fits these",
}


def _is_grouped(words: Sequence[str], after: str | None, rank: bool | None, room: str | None) -> bool:
    """Whether a terminal shows hits under their sessions."""
    return after is None and bool(words) and rank is not False and room is None


def _of_more_sessions(ledger: Ledger, arguments: dict[str, Any]) -> dict[str, Any]:
    """The best hits, and several times as many, where they are shown under their sessions."""
    if not _is_grouped(*(arguments[name] for name in ("words", "after", "rank", "room"))):
        return arguments
    most = SHOWN_HITS if arguments["limit"] is None else arguments["limit"]
    rank = bool(arguments["rank"]) or ledger.authority.is_unlimited
    return {**arguments, "limit": most * GROUPED, "rank": rank}


@shows(search, widened=_of_more_sessions)
def show_hits(
    call: Call,
    page: HitPage,
    ledger: Ledger,
    words: tuple[str, ...],
    limit: int | None,
    after: str | None,
    rank: bool | None,
    room: str | None,
) -> None:
    most = SHOWN_HITS if limit is None else limit
    if page.loosened:
        call.note(f"{safe(page.loosened)} stands nowhere: these hold its words, not together")
    has_more, said = page.has_more, len(page.items) - page.in_rooms
    hits, room_hits = cast("list[Hit]", page.items[page.named : said]), cast("list[RoomHit]", page.items[said:])
    if room is not None:
        call.screen.page(_room_lines(room_hits))
    elif call.screen.terminal and _is_grouped(words, after, rank, room):
        named = cast("list[Hit]", page.items[: min(page.named, most)])
        groups = HitGroups(named, hits, most - len(named))
        call.screen.page(chain(groups.lines(ledger, call.screen.columns, words), _under_rooms(room_hits[:most])))
        has_more |= len(hits) > len(groups.shown)
    elif page.items:
        listed = cast("list[Hit]", page.items[:said])
        call.screen.page(chain(_lines(listed, Reader(ledger)), _under_rooms(room_hits)))
    if not page.items and not has_more:
        call.note(WHY_NONE[page.why_none])
    note_left_out(call, page.left_out, "searched")
    if has_more and room is not None:
        call.note(f"there may be more{call.page_hint(page.next)}")
    elif has_more:
        fewer = f"filters such as --since show fewer{call.page_hint(page.next)}"
        call.note(f"there are more: `-n {2 * most or SHOWN_HITS}` shows them, {fewer}")


def _lines(hits: list[Hit], reader: Reader) -> Iterator[Line]:
    for i, hit in enumerate(hits):
        if i:
            yield []
        yield _heading(hit, reader)
        yield ["    ", *marked(hit.snippet, hit.marks)]


def _under_rooms(hits: Sequence[RoomHit]) -> Iterator[Line]:
    if hits:
        yield []
        yield [Span("in rooms", "heading")]
        yield from _room_lines(hits)


def _room_lines(hits: Sequence[RoomHit]) -> Iterator[Line]:
    for hit in hits:
        room = hit.room_title or short(hit.room)
        yield (
            Span(short(hit.room), "id"),
            " ",
            Span(local_time(hit.posted_at), "dim"),
            " ",
            Span(room, "label"),
            f" {hit.position} ",
            Span(hit.author_name or "", "user"),
        )
        yield ["    ", *marked(hit.snippet, hit.marks)]


def _heading(hit: Hit, reader: Reader) -> Line:
    what = place_words(hit)
    state = f" [{hit.session_status}]" if hit.session_status not in (None, "active") else ""
    label = reader.short_labels.get(hit.session, hit.session) if hit.session else "no session"
    title = "" if hit.place == "title" else quoted_title(hit.session_title)
    style = ROLE_STYLES.get(hit.role, "tool")
    when, beside = local_time(hit.created_at) if hit.time_known else "time unknown", f", {what}" if what else ""
    session = (Span(label, "label"), title, Span(state, "dim"))
    lead = (Span(short(hit.turn_id), "id"), " ", Span(when, "dim"), " ", *session)
    return (*lead, " ", Span(hit.role, style), Span(beside, "dim"), *hit_mark(hit))


# --- Hits of a search as a terminal shows them: under their sessions, each with its title, project and date.

OF_A_SESSION = 3
"""So many hits of one session are shown."""
DAY = len("2026-11-15")
INDENT = "  "
ROLE_STYLES = {"user": "user", "assistant": "assistant", "session": "label"}
PLACES = {"title": "its title", "project": "its project", "text": "", "tool": "name"}
"""Where words stand, in words; other places have their own names."""
_TOKENS = re.compile(r"\s+|\S+")


class HitGroups:
    """At most so many hits, the best first, a few of each session; before them sessions that are named so."""

    def __init__(self, named: Sequence[Hit], hits: Sequence[Hit], most: int) -> None:
        self._by_session: dict[str | None, list[Hit]] = {hit.session: [] for hit in named}
        self._names = {hit.session: hit for hit in named}
        self.shown: list[Hit] = []
        self._has_more: set[str | None] = set()
        for hit in hits:
            of_session = self._by_session.get(hit.session, [])
            if len(of_session) >= OF_A_SESSION:
                self._has_more.add(hit.session)
            elif len(self.shown) < most:
                self._by_session.setdefault(hit.session, of_session).append(hit)
                self.shown.append(hit)

    def lines(self, ledger: Ledger, columns: int, words: Sequence[str]) -> Iterator[Line]:
        labels = tuple(label for label in self._by_session if label is not None)
        wanted = SessionFilter(labels=labels, every=True, subagents=True)
        sessions = {listed.session.label: listed for listed in ledger.listing().sessions(wanted).sessions}
        for number, (label, hits) in enumerate(self._by_session.items()):
            if number:
                yield []
            listed = sessions.get(label or "")
            yield from self._heading(label, listed, hits, columns)
            for hit in hits:
                yield from _hit_lines(hit, columns)
            if label in self._has_more:
                session = listed.short_label if listed else label or ""
                command = shell_line(("weft", "search", *words, "--session", session))
                yield [INDENT, Span(f"… more in this session: {command}", "dim")]

    def _heading(
        self, label: str | None, listed: ListedSession | None, hits: Sequence[Hit], columns: int
    ) -> Iterator[Line]:
        """The title of a session, and below it what to type for it, its origin, project and date."""
        if listed is None:
            yield [Span(label or "no session", "heading")]
            return
        session, name = listed.session, self._names.get(label)
        title = " ".join((listed.title or "(no title)").split())
        if name is not None and name.place == "title":
            yield list(_bold(marked(name.snippet, name.marks)))
        else:
            yield [Span(cut_at_word(safe(title), columns), "heading")]
        dated = [hit.created_at for hit in hits if hit.time_known] or [session.updated_at]
        is_dated = any(hit.time_known for hit in hits) if hits else session.time_known
        when = local_time(max(dated))[:DAY] if is_dated else NO_DATE
        state = "" if session.status == "active" else session.status
        facts = [fact for fact in (session.origin, listed.project, when, state) if fact]
        yield [Span(listed.short_label, "label"), Span(f", {', '.join(safe(fact) for fact in facts)}", "dim")]


def _bold(spans: Iterable[Span | str]) -> Iterator[Span]:
    for span in spans:
        yield Span(span, "heading") if isinstance(span, str) else span


def _hit_lines(hit: Hit, columns: int) -> Iterator[Line]:
    """Where the words stand, and the text around them, broken at words below its beginning."""
    place = place_words(hit)
    lead: Line = [INDENT, Span(short(hit.turn_id), "id"), " ", Span(hit.role, ROLE_STYLES.get(hit.role, "tool"))]
    yield [*lead, Span(f" {safe(place)}" if place else "", "dim"), *hit_mark(hit)]
    for line in wrapped_spans(marked(hit.snippet, hit.marks), max(20, columns - 2 * len(INDENT))):
        yield [INDENT * 2, *line]


def hit_mark(hit: Hit) -> Line:
    """Beside words that were put in the place of others."""
    return [] if hit.substituted is UNSET else [Span(" substituted", "warn")]


def place_words(hit: Hit) -> str:
    """Where the words of a hit stand; empty where that is a message's text."""
    place = PLACES.get(hit.place, hit.place)
    return place if hit.tool is None else f"{place} of {hit.tool}"


def marked(text: str, marks: Sequence[tuple[int, int]]) -> Iterator[Span | str]:
    """The text in pieces, with what was found standing out."""
    at = 0
    for low, high in marks:
        yield text[at:low]
        yield Span(text[low:high], "match")
        at = high
    yield text[at:]


def wrapped_spans(spans: Iterable[Span | str], columns: int) -> Iterator[list[Span]]:
    """Spans in lines of at most so many columns, broken at blanks; a longer word has a line of its own."""
    line: list[Span] = []
    word: list[Span] = []
    used = word_width = 0
    for span in spans:
        text, style = (span, "") if isinstance(span, str) else span
        for token in _TOKENS.findall(safe(text)):
            if not token.isspace():
                word.append(Span(token, style))
                word_width += width(token)
                continue
            line, used, full = _joined_word(line, used, word, word_width, columns)
            if full:
                yield full
            word, word_width = [], 0
            if line:
                line, used = [*line, Span(" ")], used + 1
    line, _, full = _joined_word(line, used, word, word_width, columns)
    if full:
        yield full
    if line:
        yield line[:-1] if line[-1].text.isspace() else line


def _joined_word(
    line: list[Span], used: int, word: list[Span], word_width: int, columns: int
) -> tuple[list[Span], int, list[Span]]:
    """The line with a word behind it; where that is too wide, a line of the word alone, and the one that is full."""
    if not line or used + word_width <= columns:
        return [*line, *word], used + word_width, []
    return list(word), word_width, line[:-1]


# --- Which model embeds, and how similar nodes are told apart on a terminal.

F = TypeVar("F", bound=Callable[..., Any])
EMBEDDED_KINDS = ("turn", "message", "session", "program", "room")


def by_model(function: F) -> F:
    return click.option(
        "--model",
        metavar="NAME",
        shell_complete=complete_programs("model"),
        help="A model program at an OpenAI-compatible provider, in place of the model that comes with Weft.",
    )(function)


@contextmanager
def similarity(call: Call, ledger: Ledger, model: str | None = None) -> Iterator[Similarity]:
    """By the model that needs no network, or by the one that a program names, in the name of the person here."""
    from weft.programs.similarity import Similarity

    if model is None:
        from weft.programs.similarity import MiniLM

        yield Similarity(ledger, MiniLM())
        return
    from weft.programs import Programs
    from weft.runtime.assembly.turn_configuration import model_settings
    from weft.runtime.inference.plain_requests import FarEmbedder

    ledger.trust.ensure("send its texts to a server")
    programs = Programs(ledger)
    find, person = programs.get, acting_person(call, programs)
    configured = model_settings(find(model, "model"), find, os.environ.get, person)
    with FarEmbedder(configured.model, configured.context) as embedder:
        yield Similarity(ledger, embedder)


def nearest_turns(call: Call, ledger: Ledger, text: str) -> dict[str, float]:
    """Turns with their cosines, by the model that comes with Weft; none, and no model is loaded, where nothing was
    embedded with it or what it needs is not installed."""
    from weft.programs.similarity import MINILM, has_vectors

    if find_spec("numpy") is None or not has_vectors(ledger, MINILM):
        return {}
    with similarity(call, ledger) as index:
        return index.nearest_turns(text)


def embedded_counts(ledger: Ledger) -> list[ModelCount]:
    """Without loading a model."""
    from weft.programs.similarity import MINILM, count_vectors

    return count_vectors(ledger, MINILM)


def about(ledger: Ledger, node: Node) -> str:
    """What a node says, in one line."""
    from weft.kernel.errors import InvalidInput
    from weft.ledger.read.session_list import in_one_line
    from weft.programs import Programs
    from weft.programs.similarity import text_of_node

    try:
        return in_one_line(text_of_node(Programs(ledger), node.kind, node.id))
    except InvalidInput:  # it has none of its own
        return ""


# --- `weft embed`: give nodes vectors, so that similar ones are found.


@weft_command("embed")
@click.argument("node", required=False)
@click.option("--text", metavar="TEXT", help="Embed this text in place of the node's own.")
@click.option("--all", "kind", type=click.Choice(EMBEDDED_KINDS), help="Every node of a kind that has no vector yet.")
@click.option("-n", "--limit", type=click.IntRange(min=1), metavar="N", help="With --all: at most N, the newest first.")
@click.option("--forget", is_flag=True, help="Delete the vector of NODE, or without NODE all vectors of the model.")
@by_model
def embed_command(
    call: Call,
    node: str | None,
    text: str | None,
    kind: str | None,
    limit: int | None,
    forget: bool,
    model: str | None,
) -> None:
    """Compute vectors of nodes, so that similar ones are found.

    NODE is a turn, a message, a session, a program or an event. The model that comes with Weft needs no network.

    docs/concepts.md#similarity tells of the model.
    """
    if (node is None and kind is None and not forget) or (kind is not None and (node or text or forget)):
        raise click.UsageError("give a NODE, --all KIND or --forget")
    if text is not None and forget:
        raise click.UsageError("--forget takes no --text")
    with call.writing() as ledger, similarity(call, ledger, model) as index:
        if forget:
            count = index.forget(node)
            call.answer(ForgottenVectors(forgotten=count), [f"took {count:,} vector{'s' * (count != 1)} away"])
        elif kind is not None:
            _embed_all(call, index, kind, limit)
        elif node is not None:
            done = index.embed(node, text=text)
            shown = Span(done.node.name, "label")
            call.answer(done, ["embedded ", done.node.kind, " ", shown, f" with {done.model}"])


def _embed_all(call: Call, index: Similarity, kind: str, limit: int | None) -> None:
    with progress(call, "embed") as bar:
        count = index.embed_missing(kind, limit=limit, progress=bar.counted)
    call.answer(EmbeddedNodes(embedded=count, kind=kind), [f"embedded {count:,} {kind}{'s' * (count != 1)}"])


# --- `weft similar`: nodes that mean nearly the same.

SIMILAR_HEADER = ("score", "kind", "node", "session", "about")
SIMILAR_SPARE = ("about", "session")


@weft_command("similar")
@click.argument("node", required=False)
@click.option("--text", metavar="TEXT", help="Nodes near to this text.")
@click.option("--words", is_flag=True, help="With --text: rank nodes higher that also contain its words.")
@click.option("--kind", type=click.Choice(EMBEDDED_KINDS), help="Only nodes of this kind.")
@click.option(
    "-n", "--limit", type=click.IntRange(min=1), default=10, metavar="N", help="At most N nodes. Default: 10."
)
@by_model
def similar_command(
    call: Call,
    node: str | None,
    text: str | None,
    words: bool,
    kind: str | None,
    limit: int,
    model: str | None,
) -> None:
    """Find nodes that mean nearly the same, the nearest first.

    Only nodes that were embedded are found. On a terminal it offers to embed the turns, or the nodes of --kind, that
    were not; elsewhere it says how many there are.

    `weft embed --all turn` embeds them. Beside each node stand the session that it belongs to and its title.

    \b
    weft similar --text "dates with an offset"
    weft similar main~2 --kind turn
    """
    if (node is None) == (text is None):
        raise click.UsageError(
            "say what to look near to: a turn, `weft similar main~2`, or a text, `weft similar --text 'flaky tests'`"
        )
    if words and text is None:
        raise click.UsageError("--words goes with --text.")
    _embed_missing(call, kind or EMBEDDED_KINDS[0], model)
    with call.reading() as ledger, similarity(call, ledger, model) as index:
        if text is not None:
            neighbours = index.find_similar_to_text(text, limit=limit, kind=kind, words=words)
        else:
            neighbours = index.find_similar_to_node(node or "", limit=limit, kind=kind)
        if call.json:
            call.documents(neighbours)
            return
        short_labels, is_terminal = ledger.listing().short_labels(), call.screen.terminal
        rows = [_similar_row(ledger, neighbour, short_labels, is_terminal) for neighbour in neighbours]
    if rows:
        call.screen.table(rows, SIMILAR_HEADER, spare=SIMILAR_SPARE)
    else:
        call.note("nothing near was embedded; `weft embed --all turn` embeds every turn")


def _similar_row(
    ledger: Ledger, neighbour: Similar, short_labels: dict[str, str], is_terminal: bool
) -> tuple[Span | str, ...]:
    """A terminal shows of ids and labels what is to be typed for them; programs get them whole."""
    node, label = neighbour.node, neighbour.session or ""
    shown, name = label, node.name
    if is_terminal:
        shown = short_labels.get(label, label)
        name = short(name) if node.kind == "turn" else short_labels.get(name, name) if node.kind == "session" else name
    session = f"{safe(shown)}{quoted_title(neighbour.session_title)}"
    return f"{neighbour.score:.3f}", node.kind, Span(name, "label"), session, about(ledger, node)


def is_asked() -> bool:
    """Is somebody there who can answer?"""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _embed_missing(call: Call, kind: str, model: str | None) -> None:
    """Nodes without a vector are not found: whoever is at the terminal is asked whether to embed them now."""
    if call.json or call.quiet:
        return
    with call.reading() as ledger, similarity(call, ledger, model) as index:
        missing = index.count_missing(kind)
    if not missing:
        return
    nodes, verb = counted(missing, kind), "is" if missing == 1 else "are"
    if not is_asked():
        command = f"`weft embed --all {shell_word(kind)}`"
        call.note(f"{nodes} {verb} not embedded and cannot be found: {command} embeds what is missing")
        return
    where = "" if model is None else f" with {model}, which is sent what they say"
    if click.confirm(f"{nodes} {verb} not embedded and cannot be found. Embed{where} now?", default=True, err=True):
        with call.writing() as ledger, similarity(call, ledger, model) as index, progress(call, "embed") as bar:
            index.embed_missing(kind, progress=bar.counted)


# --- `weft route`: the thread that a text belongs to.

ROUTE_HEADER = ("score", "turn", "session", "why")
ROUTE_SPARE = ("why", "session")
CHOSEN = "chosen"


@weft_command("route")
@click.argument("text")
@click.option("--dry-run", is_flag=True, help="No effect: this command never sends; `weft send --smart` does.")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    default=DEFAULT_THRESHOLD,
    metavar="SHARE",
    help=f"Choose no thread below this confidence. Default: {DEFAULT_THRESHOLD}.",
)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=0),
    default=DEFAULT_ALTERNATIVES,
    metavar="N",
    help=f"At most N alternatives. Default: {DEFAULT_ALTERNATIVES}.",
)
def route_command(call: Call, text: str, dry_run: bool, threshold: float, limit: int) -> None:
    """Find the thread that a text belongs to, and say why.

    Words are compared, and meanings where turns were embedded (`weft embed --all turn`). The confidence is the score of
    the best thread less that of the next; below the threshold no thread is chosen. Nothing is sent: `weft send --smart`
    finds the thread in the same way and sends the text there.

    A thread scores higher the more words it shares with the text, the closer its meaning is, and the more recently it
    was used. docs/concepts.md#routing-a-text-to-its-thread tells how the score is made.

    \b
    weft route "the hover demo flickers again"
    """
    check_route_arguments(text, threshold, limit)
    with call.reading() as ledger:
        cosines = nearest_turns(call, ledger, text)
        related = ledger.related_turns(text, also=tuple(cosines))
        now = SystemClock().now_ms()
        choice = choose_route(related, cosines, now_ms=now, threshold=threshold, limit=limit)
    if call.json:
        call.document(choice)
        return
    if choice.turn is None:
        _show(call, choice, choice.alternatives)
        return
    _show(call, choice, ranked_threads(related, cosines, now_ms=now, limit=limit + 1))
    call.note(f"`weft {shell_line(('send', '--smart', text))}` sends it there")


def _show(call: Call, choice: RouteChoice, threads: Sequence[RouteAlternative]) -> None:
    """The choice, and a table of threads that has the chosen one first, by its score."""
    if choice.turn is None:
        call.screen.show("no thread: ", "; ".join(choice.reasons))
    else:
        where = (
            "" if choice.thread_session is None else f" {'of' if choice.session is None else 'the head of'} session "
        )
        name = "" if choice.thread_session is None else safe(choice.thread_session)
        call.screen.show("turn ", Span(short(choice.turn), "label"), where, name)
        call.screen.show(f"confidence {choice.confidence:.2f}: ", "; ".join(choice.reasons))
    if threads:
        rows = [_route_row(thread, is_chosen=thread.turn == choice.turn) for thread in threads]
        call.screen.table(rows, ROUTE_HEADER, spare=ROUTE_SPARE)


def _route_row(thread: RouteAlternative, *, is_chosen: bool) -> tuple[Span | str, ...]:
    session = f"{safe(thread.thread_session or '')}{quoted_title(thread.title)}"
    why = CHOSEN if is_chosen else "; ".join(thread.reasons)
    return f"{thread.score:.2f}", Span(short(thread.turn), "label"), session, why


# --- `weft embed-stats`: how many nodes have vectors, and of which models.

EMBED_STATS_HEADER = ("model", "dimensions", "nodes", "of which", "size", "newest")


@weft_command("embed-stats")
def embed_stats_command(call: Call) -> None:
    """Show how many nodes have vectors, by model."""
    with call.reading() as ledger:
        counts = embedded_counts(ledger)
    if call.json:
        call.documents(counts)
        return
    if not counts:
        call.note("nothing was embedded yet; `weft embed --all turn` embeds every turn")
        return
    rows = [
        (
            Span(model_count.model, "label"),
            str(model_count.dimensions),
            f"{model_count.nodes:,}",
            ", ".join(f"{count:,} {kind}{'s' * (count != 1)}" for kind, count in model_count.kinds.items()),
            size_text(model_count.bytes),
            local_time(model_count.newest),
        )
        for model_count in counts
    ]
    call.screen.table(rows, EMBED_STATS_HEADER)
