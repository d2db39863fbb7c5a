"""What was said and done, looked at: found by its words, turn by turn, thread by thread and file by file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec.structs import asdict

from weft.kernel.enums import MessageRole
from weft.ledger.api import Hit, Page, RoomHit
from weft.verbs.answers import Listing
from weft.verbs.declaration import (
    SESSION,
    Cursor,
    OpenMode,
    ParameterGroup,
    RequestError,
    arg,
    opt,
    verb,
)
from weft.verbs.session_verbs import ensure_known_origin

if TYPE_CHECKING:
    from weft.ledger.api import Ledger


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
        int | None,
        opt(
            f"At most N hits, named sessions among them. Default: {SHOWN_HITS}.", "-n", "--limit", metavar="N", least=0
        ),
    ] = None,
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
    most = SHOWN_HITS if limit is None else limit
    if room is not None:
        said = ledger.rooms.search(query, room=room, limit=most or SHOWN_HITS, after=after)
        return HitPage(items=said, in_rooms=len(said), next=said.next, has_more=said.next is not None)
    given = filters.given()
    if is_phrase_missing(ledger, query, given):
        query = query.replace('"', " ")
    is_first = after is None and bool(words)
    named = ledger.search_sessions(query, limit=min(NAMED, most), **given) if is_first else []
    rest = most - len(named)
    page = ledger.search(query, limit=rest + bool(rank), after=after, rank=bool(rank), **given)
    room_page = ledger.rooms.search(query, limit=min(IN_ROOMS, most)) if is_first and not given and most else None
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
