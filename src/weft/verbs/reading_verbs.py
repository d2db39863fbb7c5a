"""What was said and done, looked at: found by its words, turn by turn, thread by thread and file by file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import UNSET
from msgspec.structs import asdict, replace

from weft.kernel.enums import FileKind, MessageRole, TurnType
from weft.kernel.errors import NotFound, WeftError
from weft.kernel.events import HistoryAppend, ModelResponse, UnknownEvent
from weft.kernel.events import ToolCallRequested as ToolCallEvent
from weft.kernel.ledger_events import CompactionRecorded
from weft.ledger.api import FullTurn, Hit, Page, RoomHit, ThreadDiff, Touch
from weft.ledger.model import Message, NewMessage, RevisionTarget, ToolCall, Turn
from weft.verbs.answers import (
    BlamedLine,
    LazyList,
    ListedTurn,
    Listing,
    ReadTurn,
    ShownContext,
    ShownEvent,
    ShownTurn,
    UnfinishedTurn,
)
from weft.verbs.declaration import (
    HERE,
    SESSION,
    Cursor,
    LatestRevision,
    Machine,
    OpenMode,
    Original,
    ParameterGroup,
    RequestError,
    TypedForm,
    arg,
    opt,
    verb,
)
from weft.verbs.exchange_answers import ChangedFile, FilesDiff
from weft.verbs.session_verbs import (
    ensure_known_origin,
    named_or_latest,
    place_in_latest,
    require_named_or_latest,
)

if TYPE_CHECKING:
    from weft.exchange.file_changes import TurnEdit
    from weft.ledger.api import Context, Ledger
    from weft.ledger.imports import ProvisionalTurn
    from weft.ledger.model import Session
    from weft.runtime.assembly.turn_configuration import TurnConfiguration
    from weft.runtime.folder_snapshots.snapshot_objects import ChangedPath
    from weft.runtime.inference.model_requests import ModelSettings, TokenCount
    from weft.runtime.resources.turn_files import TurnFiles


# --- Turns, and what stands beside them.

PAGE = 64
LARGE_PAGE = 512
FIRST_LOOK = 32


def turn_pages(
    ledger: Ledger, *, thread: str | None = None, session: str | None = None, after: str | None = None
) -> Iterator[Turn]:
    """Turns as `Ledger.log` has them, all of them, in growing pages."""
    size = PAGE
    while True:
        page = ledger.log(size, after=after, thread=thread, session=session)
        yield from page
        if page.next is None:
            return
        after, size = page.next, LARGE_PAGE


class TurnReader:
    """What stands beside a turn in lists: the sessions whose head it is, what it is about, on whose behalf it ran."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._heads: dict[str, list[Session]] = {}
        self._subjects: dict[str, str] = {}
        self._on_behalf_of: dict[str, tuple[str, ...]] = {}
        self._known = {session.id: session for session in ledger.sessions(every=True)}
        for session in sorted(self._known.values(), key=lambda session: session.label):
            if session.head is not None and session.status == "active":
                self._heads.setdefault(session.head, []).append(session)
        self._elsewhere: dict[str, list[str]] = {}
        for branch in ledger.merges.branches():
            if branch.head is not None:
                self._elsewhere.setdefault(branch.head, []).append(branch.name)

    def ahead(self, turns: Iterable[Turn]) -> Iterator[Turn]:
        """The same turns; what they are about is read for many of them at a time."""
        rest, page = iter(turns), FIRST_LOOK
        while some := list(islice(rest, page)):
            listing, ids = self._ledger.listing(), [turn.id for turn in some]
            self._subjects, self._on_behalf_of = listing.subjects(ids), listing.on_behalf_of(ids)
            yield from some
            page = 2 * PAGE

    def recalled(self, listed: Iterable[ListedTurn]) -> Iterator[Turn]:
        """The turns of a list, which tells what is beside them already."""
        for entry in listed:
            self._subjects[entry.turn.id] = entry.subject
            self._on_behalf_of[entry.turn.id] = () if entry.on_behalf_of is UNSET else tuple(entry.on_behalf_of)
            yield entry.turn

    def on_behalf_of(self, turn: Turn) -> tuple[str, ...]:
        """The names of those on whose behalf it was run, of turns that were read ahead."""
        return self._on_behalf_of.get(turn.id, ())

    def session(self, session_id: str | None) -> Session | None:
        return None if session_id is None else self._known.get(session_id)

    def subject(self, turn: Turn) -> str:
        """What was asked, or a compaction's summary, in one line."""
        words = self._subjects.get(turn.id)
        return self._ledger.listing().subjects([turn.id]).get(turn.id, "") if words is None else words

    def listed(self, turns: Iterable[Turn]) -> Iterator[ListedTurn]:
        for turn in self.ahead(turns):
            heads = [session.label for session in self._heads.get(turn.id, ())] + self._elsewhere.get(turn.id, [])
            principals = self.on_behalf_of(turn)
            yield ListedTurn(turn=turn, subject=self.subject(turn), heads=heads, on_behalf_of=principals or UNSET)


def in_order(ledger: Ledger, turn_id: str) -> list[Message | ToolCall]:
    """The messages and tool calls of a turn in the order of their events."""
    messages = {message.id: message for message in ledger.messages(turn_id)}
    calls = iter(ledger.tool_calls(turn_id))
    items: list[Message | ToolCall | None] = []
    for recorded in ledger.events(turn_id):
        match recorded.event:
            case HistoryAppend(message=fact):
                items.append(messages.pop(fact.id, None))
            case ModelResponse(output=fact) if fact is not UNSET:
                items.append(messages.pop(fact.id, None))
            case ToolCallEvent():
                items.append(next(calls, None))
    return [item for item in (*items, *messages.values(), *calls) if item is not None]


def tails_after(ledger: Ledger, rev: str) -> list[ProvisionalTurn]:
    """What another tool is writing after the turn that these words mean; a session may have nothing else yet."""
    tails = ledger.imports.provisional()
    if not tails:
        return []
    try:
        tip = ledger.resolve(rev)
    except WeftError:  # whoever looks for that turn says what is wrong with these words
        return ledger.imports.provisional(rev) if is_only_provisional(ledger, rev) else []
    return [tail for tail in tails if tail.parent_id == tip]


def is_only_provisional(ledger: Ledger, rev: str) -> bool:
    """Is it a session of which nothing has come to an end yet?"""
    try:
        return ledger.session(rev).head is None and bool(ledger.imports.provisional(rev))
    except WeftError:
        return False


def _unfinished(tails: Iterable[ProvisionalTurn]) -> list[UnfinishedTurn]:
    return [UnfinishedTurn(turn=tail) for tail in tails]


# --- `log` and `tree`: turns in lists.


@verb("log")
def log(
    ledger: Ledger,
    rev: Annotated[str | None, arg("The turn that it ends at.", names=SESSION, in_latest=True)] = None,
    limit: Annotated[int | None, opt("At most N turns.", "-n", "--limit", metavar="N", least=0)] = None,
    session: Annotated[str | None, opt("Only turns that this session made.", metavar="SESSION", names=SESSION)] = None,
    after: Cursor = None,
) -> Listing[ListedTurn | UnfinishedTurn]:
    """Show turns, the newest first.

    Without REV all turns are shown; with REV that turn and its ancestors. -3 is short for -n 3. What another tool is
    still writing stands above the turn that it follows, marked as provisional. With --limit the cursor of the next page
    stands on the error stream, unless that is a terminal: there a larger -n shows more.

    Sessions stand in parentheses at their heads, with their titles; turns that are a compaction, failed, were
    interrupted or are still being recorded say so. A turn's subject is what a person asked, not what a tool put before
    it. Where the thread of an imported session goes on from another one, a line between the two says so. What is
    provisional has no id yet.
    """
    place = None if rev is None else place_in_latest(ledger, rev)
    tails = [] if limit == 0 or after is not None else _open_tails(ledger, place, session)
    page: Page[Turn] = Page()
    turns: Iterable[Turn] = page
    if place is None or not is_only_provisional(ledger, place):
        if limit is None:
            turns = turn_pages(ledger, thread=place, session=session, after=after)
        else:
            turns = page = ledger.log(limit, thread=place, session=session, after=after)
    listed = TurnReader(ledger).listed(turns)
    return Listing(items=LazyList(chain(_unfinished(tails), listed)), next=page.next)


def _open_tails(ledger: Ledger, rev: str | None, session: str | None) -> list[ProvisionalTurn]:
    """What other tools are still writing, of what was asked for."""
    tails = ledger.imports.provisional(session) if rev is None else tails_after(ledger, rev)
    made_by = None if session is None else ledger.session(session).id
    return [tail for tail in tails if made_by in (None, tail.session_id)]


@verb("tree")
def tree(ledger: Ledger, rev: LatestRevision = None) -> Listing[ListedTurn]:
    """Show the whole tree that a turn belongs to.

    Without REV it is that of the latest session. It begins at the root. Where several turns follow one, they are
    indented, and the longest branch comes last.
    """
    name = named_or_latest(ledger, rev)
    turns = [] if name is None else ledger.tree.turns(name)
    return Listing(items=list(TurnReader(ledger).listed(turns)))


# --- `show` and `read`: a turn, or a whole thread, with all that was said and done.


@verb("show")
def show(
    ledger: Ledger, rev: Annotated[LatestRevision, arg(is_needed_as_json=True)] = None, original: Original = False
) -> ShownTurn | UnfinishedTurn:
    """Show one turn: messages, tool calls, usage.

    Without REV it is where the latest session stands. Long results and thinking are folded to a few lines. Where REV is
    an event inside a turn, the turn is shown up to it. What another tool is still writing after it is shown below, as
    provisional.

    A tool call is a line: a mark for how it ended, the argument that matters, how long it took, the session that it
    started. Below it stand what came back, the change that it made to a file as a diff, or a list of things to do with
    check marks. Changes and what no person typed are folded, too.
    """
    ledger = ledger.originals() if original else ledger
    name = require_named_or_latest(ledger, rev)
    tails = tails_after(ledger, name)
    if is_only_provisional(ledger, name):
        return UnfinishedTurn(turn=tails[0])
    point = ledger.point(name)
    turn, events = ledger.turn(point.turn_id), ledger.events(point.turn_id)
    is_recorded = any(isinstance(stored.event, CompactionRecorded) for stored in events[: point.number])
    items = in_order(ledger, point.event_id or turn.id)
    event = None
    if point.number is not None:
        stored = events[point.number - 1]
        kind = stored.event.kind if isinstance(stored.event, UnknownEvent) else str(stored.event.__struct_config__.tag)
        event = ShownEvent(id=stored.id, kind=kind, number=point.number, of=len(events))
    return ShownTurn(
        turn=turn,
        event=event,
        messages=[item for item in items if isinstance(item, Message)],
        tool_calls=[item for item in items if isinstance(item, ToolCall)],
        compaction=ledger.compactions.get(turn.id) if is_recorded else None,
        provenance=ledger.merges.provenance(turn.id),
        provisional=_unfinished(tails),
        on_behalf_of=ledger.listing().on_behalf_of([turn.id]).get(turn.id, ()) or UNSET,
        prompt_changes=([] if turn.origin else ledger.listing().prompt_changes(turn.id)) or UNSET,
        items=items,
    )


class ThreadPage(Listing[ReadTurn], frozen=True, kw_only=True):
    """The turns of a thread, the oldest first. `first` is its first turn, `end` where it ends; both are null where
    nothing in it has come to an end."""

    first: str | None = None
    end: RevisionTarget | None = None
    provisional: Sequence[UnfinishedTurn] = ()


@verb("read")
def read(
    ledger: Ledger,
    rev: LatestRevision = None,
    original: Original = False,
    limit: Annotated[int | None, opt("At most so many turns.", least=0, is_untyped=True)] = None,
    after: Annotated[
        str | None, opt("Start after this turn, with which the page before ended.", is_untyped=True)
    ] = None,
) -> ThreadPage:
    """Read a whole conversation: prompts and answers in full.

    REV is a session, or a turn to read up to; without it, the latest session. What was done between a prompt and its
    answer stands in one line, such as "14 steps: 9 Bash, 2 Edit". On a terminal, `n` and `N` go to the next and the
    previous prompt, `/word` searches, `&` and Enter show the steps, and `q` leaves. Piped, it is plain text.

    Prompts are shown as they were typed, answers as formatted Markdown; one with more than 50,000 letters, or more than
    3,000 cells in tables, as it was written. With another PAGER than less the steps are only shown by --steps. Piped,
    nothing is wrapped and answers stay as they were written; with --json it is a list of turns with their messages and
    tool calls.

    \b
    weft read
    weft read main~3 --steps
    weft read main | grep -n changelog
    """
    ledger = ledger.originals() if original else ledger
    name = named_or_latest(ledger, rev)
    if name is None:
        return ThreadPage(items=())
    tails = _unfinished(tails_after(ledger, name))
    if is_only_provisional(ledger, name):
        return ThreadPage(items=(), provisional=tails)
    end = ledger.point(name)
    if limit is None and after is None:
        first, turns = thread_turns(ledger, name)
        return ThreadPage(items=LazyList(map(read_turn, turns)), first=first, end=end, provisional=tails)
    first, ids = _page_of_thread(ledger, end, limit, after)
    items = [read_turn(turn) for turn in _full_turns(ledger, end, ids)]
    is_last = not ids or ids[-1].id == end.turn_id
    return ThreadPage(
        items=items, next=None if is_last else ids[-1].id, first=first, end=end, provisional=tails if is_last else ()
    )


def _page_of_thread(
    ledger: Ledger, end: RevisionTarget, limit: int | None, after: str | None
) -> tuple[str, list[Turn]]:
    """The id of a thread's first turn, and so many of its turns, behind one of them."""
    thread = ledger.thread(end.turn_id)
    turns = iter(thread.turns)
    if after is not None and not any(turn.id == after for turn in turns):
        raise NotFound("turn in this thread", after, "take `next` of the page before")
    return next(thread.ancestry), list(islice(turns, limit))


def thread_turns(ledger: Ledger, name: str) -> tuple[str, Iterator[FullTurn]]:
    """The id of a thread's first turn, and all its turns in full; those who may not read everything get them one by
    one."""
    if ledger.authority.is_unlimited:
        threads = ledger.full_threads(name)
        return threads.strands[0].first, threads.turns
    thread = ledger.thread(name)
    return next(thread.ancestry), _full_turns(ledger, ledger.point(name), thread.turns)


def _full_turns(ledger: Ledger, end: RevisionTarget, turns: Iterable[Turn]) -> Iterator[FullTurn]:
    labels = {session.id: session.label for session in ledger.sessions(every=True)}
    for turn in turns:
        place = end.event_id or turn.id if turn.id == end.turn_id else turn.id
        summary = ledger.compactions.get(turn.id) if turn.turn_type == TurnType.COMPACTION else None
        items = tuple(in_order(ledger, place))
        yield FullTurn(turn=turn, items=items, session=labels.get(turn.session_id or ""), summary=summary)


def read_turn(full_turn: FullTurn) -> ReadTurn:
    return ReadTurn(
        turn=full_turn.turn,
        session=full_turn.session,
        messages=[item for item in full_turn.items if isinstance(item, Message)],
        tool_calls=[item for item in full_turn.items if isinstance(item, ToolCall)],
        compaction=full_turn.summary,
        items=full_turn.items,
    )


# --- `search`: messages and tool calls by their words.

SHOWN_HITS = 20
IN_ROOMS = 5
"""So many messages of rooms are shown behind the other hits; with a room there are more."""
NAMED = 5
"""So many sessions that are named so are shown; each counts as a hit."""


class HitFilters(ParameterGroup, frozen=True, kw_only=True):
    session: Annotated[
        str | None, opt("Only what this session made or goes on from.", metavar="SESSION", names=SESSION)
    ] = None
    role: Annotated[MessageRole | None, opt("Only messages of this role.")] = None
    tool: Annotated[str | None, opt("Only calls of tools with these words in their name.", metavar="NAME")] = None
    path: Annotated[str | None, opt("Only what names this file, or one below this folder.", metavar="PATH")] = None
    since: Annotated[
        str | None, opt("Only from this time on, such as '2 days ago'; a day means all of it.", metavar="TIME")
    ] = None
    until: Annotated[str | None, opt("Only until this time; a day means all of it.", metavar="TIME")] = None
    model: Annotated[str | None, opt("Only of models with these words in their name.", metavar="NAME")] = None
    project: Annotated[
        str | None, opt("Only of this project: its name, its repository or a folder of it.", metavar="NAME")
    ] = None
    origin: Annotated[str | None, opt("Only of this tool; weft for what was recorded here.", metavar="NAME")] = None

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


ANY_HIT = HitFilters()


class HitPage(Listing[Hit | RoomHit], frozen=True, kw_only=True):
    """First stand so many sessions that are `named` so, last so many messages `in_rooms`. `loosened` is a query whose
    phrases stand nowhere: its words were looked for. `has_more`: there are further hits, also where no page follows."""

    named: int = 0
    in_rooms: int = 0
    has_more: bool = False
    loosened: str = ""
    why_none: Literal["", "no turns", "project", "model", "filters", "words", "fewer"] = ""


def _check_search(room: str | None, rank: bool | None, filters: HitFilters) -> None:
    if room is not None and (rank is not None or filters.given()):
        raise RequestError("{room} goes with words, -n and {after} alone")


@verb("search", opens=OpenMode.SEARCHING, takes_actor=True, check=_check_search)
def search(
    ledger: Ledger,
    words: Annotated[tuple[str, ...], arg("What is looked for.")] = (),
    filters: HitFilters = ANY_HIT,
    limit: Annotated[
        int,
        opt(
            f"At most N hits, named sessions among them. Default: {SHOWN_HITS}.", "-n", "--limit", metavar="N", least=0
        ),
    ] = SHOWN_HITS,
    room: Annotated[str | None, opt("Only what was said in this room.", metavar="ROOM")] = None,
    after: Cursor = None,
    rank: Annotated[
        bool | None,
        opt(
            "The best first, as the database sees it, or the newest. Default: the best on a terminal, else the newest.",
            "--rank/--newest",
        ),
    ] = None,
) -> HitPage:
    """Find messages and tool calls by their words.

    Sessions whose title or project holds the words come first. All WORDS must stand in one message, or in one tool call
    with its result, in any case. An argument with spaces is a phrase, as is a name such as read_file or src/app.py; its
    words are looked for where it stands nowhere. The last word may be the beginning of one; any is, with a * after it.
    Filters alone list what fits them. On a terminal the best hits come first, under their sessions; elsewhere, and with
    --newest, the newest. If there are more, the cursor of the next page stands on the error stream, unless that is a
    terminal: there a larger -n shows more. Without filters what was said in rooms is found, too, and stands last; with
    --room it is that alone.

    At most 5 sessions are found by their title or project, and at most 5 messages of rooms; each counts as a hit. Where
    you may not read the whole ledger, hits stand by date under their sessions. With --json each hit carries the places
    of the words in its snippet. A hit of --room names room, position and author. docs/reading.md#search has more.

    \b
    weft search changelog --role user
    weft search "the changelog" --since yesterday --newest
    weft search --project shop --tool bash -n 50
    """
    asked = query = as_query(words)
    if room is not None:
        said = ledger.rooms.search(query, room=room, limit=limit or SHOWN_HITS, after=after)
        return HitPage(items=said, in_rooms=len(said), next=said.next, has_more=said.next is not None)
    given = filters.given()
    if is_phrase_missing(ledger, query, given):
        query = query.replace('"', " ")
    is_first = after is None and bool(words)
    named = ledger.search_sessions(query, limit=min(NAMED, limit), **given) if is_first else []
    rest = limit - len(named)
    page = ledger.search(query, limit=rest + bool(rank), after=after, rank=bool(rank), **given)
    room_page = ledger.rooms.search(query, limit=min(IN_ROOMS, limit)) if is_first and not given and limit else None
    hits = list(page) if room_page is None else _without_copies(ledger, page, room_page)
    room_hits = list(room_page or ())
    has_more, is_empty = page.next is not None or len(hits) > rest, not (hits or named or room_hits)
    if is_empty:
        ensure_known_origin(ledger, filters.origin, any_case=True)
    return HitPage(
        items=[*named, *hits[:rest], *room_hits],
        next=page.next,
        left_out=len(ledger.imports.provisional()),
        named=len(named),
        in_rooms=len(room_hits),
        has_more=has_more,
        loosened=asked if query != asked else "",
        why_none=_why_no_hits(ledger, words, given) if is_empty and not has_more else "",
    )


def as_query(words: Sequence[str]) -> str:
    """An argument with spaces was in quotation marks, which the shell has taken away."""
    return " ".join(f'"{word}"' if " " in word.strip() and '"' not in word else word for word in words)


def is_phrase_missing(ledger: Ledger, query: str, given: dict[str, Any]) -> bool:
    """Whether its phrases stand nowhere, and the words of these alone stand somewhere. Every page of one question is
    asked alike."""
    return '"' in query and not _is_found(ledger, query, given) and _is_found(ledger, query.replace('"', " "), given)


def _is_found(ledger: Ledger, query: str, given: dict[str, Any]) -> bool:
    searches = (
        lambda: ledger.search(query, limit=1, **given),
        lambda: ledger.search_sessions(query, limit=1, **given),
        lambda: () if given else ledger.rooms.search(query, limit=1),
    )
    return any(list(search()) for search in searches)


def _without_copies(ledger: Ledger, hits: Sequence[Hit], room_hits: Page[RoomHit]) -> list[Hit]:
    """Without what agents were sent of rooms and answered there, where the room's own message is shown. Where not all
    of those were looked for, one hit stays for each message."""
    messages = {hit.message_id for hit in room_hits}
    unique_hits: list[Hit] = []
    for hit, message in zip(hits, ledger.rooms.posted_as(hits), strict=True):
        if message is None or (room_hits.next is not None and message not in messages):
            unique_hits.append(hit)
            messages.add(message or "")
    return unique_hits


def _why_no_hits(
    ledger: Ledger, words: Sequence[str], given: dict[str, Any]
) -> Literal["no turns", "project", "model", "filters", "words", "fewer"]:
    if not ledger.log(1):
        return "no turns"
    if "project" in given and not ledger.search("", limit=1, project=given["project"]):
        return "project"
    if "model" in given and not ledger.search("", limit=1, model=given["model"]):
        return "model"
    return ("fewer" if given else "words") if words else "filters"


# --- `context`: exactly what an agent saw, or would see.


def _check_context(rev: str | None, session: str | None, is_counted: bool) -> None:
    if rev is not None and session is not None:
        raise RequestError("{rev} and {session} exclude each other")
    if rev is not None and is_counted:
        raise RequestError("{is_counted} is of what would be sent next, and {rev} of what was sent")


@verb("context", check=_check_context, is_slow=True)
def context(
    ledger: Ledger,
    rev: Annotated[str | None, arg("The turn that it was given for.", names=SESSION, in_latest=True)] = None,
    session: Annotated[
        str | None,
        opt(
            "What the next turn of this session would see. Default: the latest.",
            metavar="SESSION",
            names=SESSION,
            is_latest=True,
            has_turn=False,
            is_needed_as_json=True,
            not_latest_with="rev",
        ),
    ] = None,
    original: Original = False,
    is_counted: Annotated[bool, opt("Have the model's provider count the tokens.", "--count")] = False,
    machine: Machine = HERE,
) -> ShownContext:
    """Show what an agent saw at a turn, or would see next.

    With REV: what the agent was given before it answered that turn. Without: what the session's next request would
    send before its own query, with the agent's prompt, cut where it does not fit the model.

    Its tokens are estimated, unless --count sends it to the endpoint of the provider that counts. That costs nothing
    and asks no model. Where there is no such endpoint, or it fails, a line says so.
    """
    shown = ledger.originals() if original else ledger
    if rev is not None:
        return ShownContext(context=shown.context(place_in_latest(ledger, rev)))
    name = require_named_or_latest(ledger, session, with_turn=False)
    sent, size = _as_sent(ledger, name, shown.context(session=name), machine, is_counted=is_counted)
    why = size.why if is_counted and size.counted_by is None else ""
    return ShownContext(context=sent, tokens=size.tokens, counted_by=size.counted_by, why_estimated=why)


def _as_sent(
    ledger: Ledger, session: str, context: Context, machine: Machine, *, is_counted: bool
) -> tuple[Context, TokenCount]:
    """A session's context as its next request would send it, with the model that is configured now, and its size."""
    from weft.programs import Programs
    from weft.runtime.assembly.context_fitting import budget_of, next_request
    from weft.runtime.assembly.system_prompts import SystemPrompt
    from weft.runtime.assembly.turn_configuration import LayerReader, TurnRequest
    from weft.runtime.inference.inference import Inference
    from weft.runtime.inference.local_models import default_prompt
    from weft.runtime.inference.model_requests import TokenCount

    if not ledger.trust.is_trusted:  # nothing would be sent; its configuration may name variables
        sent, tokens = next_request(context, SystemPrompt(), None)
        return sent, TokenCount(tokens=tokens, why="this ledger is not trusted")
    opened = ledger.session(session)
    reader = LayerReader(Programs(ledger), Inference(), machine.variable, machine.acting())
    configuration = reader.configuration(TurnRequest(session=opened.id))
    model = configuration.model
    prompt = SystemPrompt(
        text=configuration.system_prompt,
        default=None if model is None else default_prompt(model),
        persona=configuration.persona_name,
        rules=machine.rules(configuration.workspace),
    )
    budget = None if model is None else budget_of(model, configuration.effective.request_parameters)
    sent, tokens = next_request(context, prompt, budget, _tokens_of_last_request(ledger, opened.head, context))
    estimate = TokenCount(tokens=tokens, why="no model is configured")
    if model is None or not is_counted:
        return sent, estimate
    count = _counted_by_provider(model, configuration, sent)
    return sent, count if count.counted_by is not None else replace(estimate, why=count.why)


def _counted_by_provider(model: ModelSettings, configuration: TurnConfiguration, sent: Context) -> TokenCount:
    """Behind the last answer stands a word to be answered: servers count no request that asks nothing."""
    import asyncio

    from weft.runtime.inference.inference import Inference
    from weft.runtime.inference.model_requests import InferenceRequest

    messages: list[Message | NewMessage] = list(sent.messages)
    if not messages or messages[-1].role not in (MessageRole.USER, MessageRole.TOOL):
        messages.append(NewMessage(role=MessageRole.USER, content="Go on"))
    request = InferenceRequest(model=model, messages=messages, parameters=configuration.effective.request_parameters)

    async def count() -> TokenCount:
        async with Inference() as inference:
            return await inference.count(request, context=configuration.context)

    return asyncio.run(count())


def _tokens_of_last_request(ledger: Ledger, head: str | None, context: Context) -> int | None:
    """What the session's last request and its answer took, under the same compaction."""
    from weft.ledger.api import counted_tokens

    if head is None or ledger.turn(head).compaction_id != context.compaction:
        return None
    return counted_tokens(recorded.event for recorded in ledger.events(head))


# --- `diff`: two threads from where they part, or the files of two turns.


def _check_diff(left: str | None, files: bool) -> None:
    if left is None and not files:
        raise RequestError("the argument {left} is missing; {files} alone compares the latest turn")


@verb("diff", check=_check_diff)
def diff(
    ledger: Ledger,
    left: Annotated[str | None, arg("One turn.", names=SESSION, in_latest=True)] = None,
    right: Annotated[
        str | None,
        arg(
            "The other; without it, the latest session.",
            names=SESSION,
            is_latest=True,
            is_needed=True,
            stays_unsaid=True,
        ),
    ] = None,
    patch: Annotated[
        bool, opt("What was said and done in the turns, not only their first lines.", "-p", "--patch")
    ] = False,
    files: Annotated[bool, opt("Compare the files of the two turns, not what was said.")] = False,
    machine: Machine = HERE,
) -> ThreadDiff | FilesDiff:
    """Show where two threads diverge, or how their files differ.

    Turns that only LEFT has are marked with -, turns that only RIGHT has with +. Without RIGHT it is the latest
    session. With --files: A added, D deleted, M modified, P another mode, T another type; with -p the lines, too.
    With --files alone: what the latest turn of the latest session changed.

    In a folder that is trusted for work (docs/permissions.md#folders-that-are-trusted-for-work) --files also tells what
    of git's (HEAD, branches, tags, the index) is not what it was before that turn.
    """
    other = require_named_or_latest(ledger, right)
    if left is None:
        return _changed_files(ledger, ledger.turn(other), machine, patch=patch)
    left = place_in_latest(ledger, left)
    if right is None and ledger.point(left) == ledger.point(other):
        raise RequestError("{turn} is the latest session itself: name another one to compare it with", turn=left)
    if not files:
        return ledger.diff(left, other)
    turn_files = _turn_files(ledger, machine)
    snapshots = turn_files.snapshot_of(left), turn_files.snapshot_of(other)
    changed = turn_files.changes(*snapshots)
    return FilesDiff(
        left_id=ledger.resolve(left),
        right_id=ledger.resolve(other),
        changes=[file_change(path, turn_files.text_diff(path) if patch else None) for path in changed],
        runs_by_itself=dict(machine.self_running(changed, turn_files.places_of(*snapshots))),
    )


def _changed_files(ledger: Ledger, turn: Turn, machine: Machine, *, patch: bool) -> FilesDiff:
    """What a turn changed, in all directories that it worked in."""
    if _only_read(ledger, turn):
        return FilesDiff(left_id=turn.parent_id, right_id=turn.id, changes=[], runs_by_itself={})
    files = _turn_files(ledger, machine)
    files.snapshot_of(turn.id)  # or nothing is known of its files
    changed, git_changes, git_unknown = files.changes_of_turn(turn.id), list[str](), ""
    try:
        git_changes = [change.words for change in files.git_changes_since([turn.id])]
    except (WeftError, OSError) as error:
        git_unknown = str(error)
    running = machine.self_running(changed, files.places_of_turn(turn.id))
    return FilesDiff(
        left_id=turn.parent_id,
        right_id=turn.id,
        changes=[file_change(path, files.text_diff(path) if patch else None) for path in changed],
        runs_by_itself={**running, **machine.ignored_self_running(files, [turn.id])},
        git_changes=git_changes,
        git_unknown=git_unknown,
    )


def _turn_files(ledger: Ledger, machine: Machine) -> TurnFiles:
    from weft.runtime.resources.turn_files import TurnFiles

    return TurnFiles(ledger, machine.directories())


def _only_read(ledger: Ledger, turn: Turn) -> bool:
    """Whether a turn that a broker ran called nothing that could change files."""
    from weft.runtime.tool.toolsets import CODE, READING

    is_brokers = turn.effective_config is not None and turn.origin is None
    names = [call.name for call in ledger.tool_calls(turn.id)]
    return is_brokers and all(name in READING or name.startswith(f"{CODE}/") for name in names)


def file_change(change: ChangedPath, lines: list[str] | None = None) -> ChangedFile:
    from weft.runtime.folder_snapshots.snapshot_objects import readable_path

    return ChangedFile(
        path=readable_path(change.path),
        status=change.status.value,
        old_kind=None if change.old_kind is None else change.old_kind.value,
        new_kind=None if change.new_kind is None else change.new_kind.value,
        lines=lines,
    )


# --- `files` and `blame`: which turns touched a file, and which last wrote each line of it.

FilePath = Annotated[str, arg("A whole path, or the end of one.", typed=TypedForm.PLACE)]


class TouchPage(Listing[Touch], frozen=True, kw_only=True):
    """`further`: how many there are beyond the limit."""

    further: int


@verb("files")
def files(
    ledger: Ledger,
    path: FilePath,
    kind: Annotated[FileKind | None, opt("Only notes of this kind.")] = None,
    limit: Annotated[int | None, opt("At most N notes.", "-n", "--limit", metavar="N", least=0)] = None,
) -> TouchPage:
    """List the turns that read or wrote a file.

    The newest first. PATH is a whole path, or the end of one: `parser.py` and `src/parser.py` are found in every
    checkout, `./src/parser.py` in this folder alone.
    """
    touches = [touch for touch in ledger.files(path) if kind in (None, touch.kind)]
    shown = touches[:limit]
    return TouchPage(items=shown, further=len(touches) - len(shown))


class BlamedFile(Listing[BlamedLine], frozen=True, kw_only=True):
    """`unplaced`: the turns whose edits are not found any more."""

    unplaced: Sequence[str]


@verb("blame")
def blame(
    ledger: Ledger,
    path: FilePath,
    recorded: Annotated[bool, opt("What the recorded edits leave, not what the file holds now.")] = False,
    machine: Machine = HERE,
) -> BlamedFile:
    """Show which turn last wrote each line of a file.

    The lines are those of the file as it is now; where it is not here, those that the recorded edits leave. A line
    that nobody is known to have written, because it is older or was changed by other means, is marked with `?`.

    Edits are taken back one by one, the newest first; edits that are not found any more are named.
    """
    from weft.exchange.file_changes import blame_file

    blamed = blame_file(ledger, path, None if recorded else machine.text_of(path))
    if blamed is None:
        hint = "check the path: the file is not here, and its recorded edits do not give its whole text"
        raise NotFound("recorded text of", path, hint)
    lines = zip(blamed.lines, blamed.blame.lines, strict=True)
    return BlamedFile(
        items=[_blamed_line(number, line, edit) for number, (line, edit) in enumerate(lines, 1)],
        unplaced=list(dict.fromkeys(edit.turn.id for edit in blamed.blame.unplaced)),
    )


def _blamed_line(number: int, text: str, edit: TurnEdit | None) -> BlamedLine:
    if edit is None:
        return BlamedLine(line=number, text=text)
    turn = edit.turn
    return BlamedLine(
        line=number,
        text=text,
        turn_id=turn.id,
        call_id=edit.call.id,
        session_id=turn.session_id,
        started_at=turn.started_at,
        time_known=turn.time_known,
        model=turn.model,
    )
