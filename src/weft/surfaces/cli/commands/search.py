"""`weft search`: messages and tool calls by their words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from weft.kernel.enums import MessageRole
from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.filter_values import NO_MODEL, NO_PROJECT, ensure_known_origin
from weft.surfaces.cli.history import Reader, quoted_title, short
from weft.surfaces.cli.hit_groups import ROLE_STYLES, HitGroups, hit_mark, marked, place_words
from weft.surfaces.cli.program_call import as_actor
from weft.surfaces.cli.provisional import note_left_out
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.times import local_time

if TYPE_CHECKING:
    from weft.ledger.api import Hit, Ledger, Page, RoomHit

SHOWN = 20
WORTH_INDEXING = 2048
"""So many events that search does not know yet are looked through each time; more are indexed first."""
GROUPED = 5
"""On a terminal so many times as many hits are looked at as are shown, so that more sessions are among them."""
IN_ROOMS = 5
"""So many messages of rooms are shown behind the other hits; `--room` shows more."""
NAMED = 5
"""So many sessions that are named so are shown; each counts as a hit."""


@weft_command("search")
@click.argument("words", nargs=-1)
@arguments.session_option("Only what this session made or goes on from.")
@click.option("--role", type=click.Choice([role.value for role in MessageRole]), help="Only messages of this role.")
@click.option("--tool", metavar="NAME", help="Only calls of tools with these words in their name.")
@click.option("--path", "file", metavar="PATH", help="Only what names this file, or one below this folder.")
@click.option("--since", metavar="WHEN", help="Only from this time on, such as '2 days ago'; a day means all of it.")
@click.option("--until", metavar="WHEN", help="Only until this time; a day means all of it.")
@click.option("--model", metavar="NAME", help="Only of models with these words in their name.")
@click.option("--project", metavar="NAME", help="Only of this project: its name, its repository or a folder of it.")
@click.option("--origin", metavar="NAME", help="Only of this tool; weft for what was recorded here.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"At most N hits, named sessions among them; {SHOWN} by default.",
)
@click.option("--room", metavar="ROOM", help="Only what was said in this room.")
@arguments.after_option()
@click.option(
    "--rank/--newest",
    default=None,
    help="The best first, as the database sees it, or the newest. Default: the best on a terminal, else the newest.",
)
@as_actor
def command(
    call: Call,
    words: tuple[str, ...],
    limit: int | None,
    after: str | None,
    room: str | None,
    rank: bool | None,
    file: str | None,
    actor: str,
    **options: Any,
) -> None:
    """Find messages and tool calls by their words.

    Sessions whose title or project holds the words come first. All WORDS must stand in one message, or in one tool call
    with its result, in any case. An argument with spaces is a phrase, as is a name such as read_file or src/app.py. The
    last word may be the beginning of one; any word is, with a * after it. Filters alone list what fits them. On a
    terminal the best hits come first, under their sessions; elsewhere, and with --newest, the newest. If there are
    more, the cursor of the next page stands on the error stream, unless that is a terminal: there a larger -n shows
    more. Without filters what was said in rooms is found, too, and stands last; with --room it is that alone.

    \b
    weft search changelog --role user
    weft search "the changelog" --since yesterday --newest
    weft search --project shop --tool bash -n 50
    """
    call.actor = actor
    most = SHOWN if limit is None else limit
    if room is not None:
        if rank is not None or file is not None or any(options.values()):
            raise click.UsageError("--room goes with words, -n and --after alone")
        _search_room(call, room, as_query(words), most, after)
        return
    filters = {name: value for name, value in {**options, "path": file}.items() if value is not None}
    is_grouped = call.screen.terminal and not call.json and after is None and bool(words) and rank is not False
    _index_much(call)
    with call.reading() as ledger:
        query = as_query(words)
        ranked = bool(rank) or (is_grouped and ledger.authority.is_unlimited)
        is_first = after is None and bool(words)
        named = ledger.search_sessions(query, limit=min(NAMED, most), **filters) if is_first else []
        rest = most - len(named)
        wide = rest * GROUPED if is_grouped else rest
        page = ledger.search(query, limit=wide + ranked, after=after, rank=ranked, **filters)
        room_page = ledger.rooms.search(query, limit=min(IN_ROOMS, most)) if is_first and not filters and most else None
        hits, room_hits = (list(page), []) if room_page is None else (_once(ledger, page, room_page), list(room_page))
        shown, is_empty = hits[:rest], not (hits or named or room_hits)
        if is_empty:
            ensure_known_origin(ledger, filters.get("origin"), any_case=True)
        if call.json:
            call.documents([*named, *shown, *room_hits])
        elif is_grouped and not is_empty:
            groups = HitGroups(named, hits[:wide], rest)
            call.screen.page(chain(groups.lines(ledger, call.screen.columns, words), _under_rooms(room_hits)))
            shown = groups.shown
        elif not is_empty:
            call.screen.page(chain(_lines([*named, *shown], Reader(ledger)), _under_rooms(room_hits)))
        more = page.next is not None or len(hits) > len(shown)
        if is_empty and not more:
            call.note(_nothing(ledger, bool(words), filters))
        note_left_out(call, len(ledger.imports.provisional()), "searched")
    if call.json:
        call.next_page(page.next)
    elif more:
        _note_more(call, most, page.next)


def _note_more(call: Call, most: int, cursor: str | None) -> None:
    fewer = f"filters such as --since show fewer{call.page_hint(cursor)}"
    call.note(f"there are more: `-n {2 * most or SHOWN}` shows them, {fewer}")


def as_query(words: Sequence[str]) -> str:
    """An argument with spaces was in quotation marks, which the shell has taken away."""
    return " ".join(f'"{word}"' if " " in word.strip() and '"' not in word else word for word in words)


def _index_much(call: Call) -> None:
    """Where search is far behind, as after an import that was cut off, its index is brought up to date first."""
    from weft.kernel.errors import StoreError
    from weft.surfaces.cli.progress import progress

    with call.reading() as ledger:
        if ledger.upkeep.search_lag() <= WORTH_INDEXING:
            return
    try:
        with call.writing() as ledger, progress(call, "index") as bar:
            ledger.upkeep.catch_up(progress=bar.counted)
    except StoreError as error:  # where nothing can be written, everything is looked through instead
        call.note(f"the index cannot be brought up to date ({error}), so this takes longer")


def _lines(hits: list[Hit], reader: Reader) -> Iterator[Line]:
    for i, hit in enumerate(hits):
        if i:
            yield []
        yield _heading(hit, reader)
        yield ["    ", *marked(hit.snippet, hit.marks)]


def _once(ledger: Ledger, hits: Sequence[Hit], room_hits: Page[RoomHit]) -> list[Hit]:
    """Without what agents were sent of rooms and answered there, where the room's own message is shown. Where not all
    of those were looked for, one hit stays for each message."""
    messages = {hit.message_id for hit in room_hits}
    kept: list[Hit] = []
    for hit, message in zip(hits, ledger.rooms.posted_as(hits), strict=True):
        if message is None or (room_hits.next is not None and message not in messages):
            kept.append(hit)
            messages.add(message or "")
    return kept


def _search_room(call: Call, room: str, query: str, most: int, after: str | None) -> None:
    with call.reading() as ledger:
        hits = ledger.rooms.search(query, room=room, limit=most or SHOWN, after=after)
        if call.json:
            call.documents(hits)
            call.next_page(hits.next)
            return
        call.screen.page(_room_lines(hits))
        if hits.next is not None:
            call.note(f"there may be more{call.page_hint(hits.next)}")
        elif not hits:
            call.note("nothing in this room holds all these words")


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


def _nothing(ledger: Ledger, words: bool, filters: dict[str, Any]) -> str:
    if not ledger.log(1):
        return "no turns yet: `weft import` brings in the sessions of other tools, `weft record` makes one"
    for name, unknown in {"project": NO_PROJECT, "model": NO_MODEL}.items():
        if name in filters and not list(ledger.search("", limit=1, **{name: filters[name]})):
            return unknown
    if words and filters:
        return "nothing there holds all these words: try fewer words, or fewer filters"
    return "nothing holds all these words: try fewer, or a beginning such as conf*" if words else "nothing fits these"
