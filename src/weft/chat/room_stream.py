"""Following a room: every message once and in order, answers while they are written, and who
does what meanwhile; and whom somebody may mean who types `@` and a few letters in it.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from collections.abc import AsyncGenerator, Container, Iterable, Iterator
from functools import lru_cache, partial
from unicodedata import category, normalize

from msgspec import Struct

from weft.kernel.enums import ParticipantKind, ProgramKind
from weft.kernel.message_text import write_mention
from weft.ledger.api import (
    PARTIAL_POLL_SECONDS,
    Ledger,
    OpenAnswer,
    Participant,
    RoomFeed,
    RoomMessage,
    RoomNews,
    Runs,
    store_of,
    system_kind_of,
)
from weft.ledger.arguments import checked_seconds
from weft.ledger.model import DEFAULT_AGENT
from weft.ledger.read.access import Access, access_of
from weft.ledger.views.rows import PROGRAM, ProgramRow, load_program
from weft.runtime.answer_streams import StreamHub, WakeSignal, hub_of
from weft.runtime.ledger_port import Executor, RuntimeLedger
from weft.store.port import ReadTxn
from weft.store.sql import Sql, rows_in

# --- Following a room: every message once and in order, answers while they are written, and who does what meanwhile.

HELD_SECONDS = 0.25
"""Items that were read so long ago are not handed out: what is new is read again."""
NO_THINKING = 2**62
"""Of what a model thinks nothing is told: so many letters of it count as told."""


class RoomItem(Struct, frozen=True, kw_only=True, tag_field="item"):
    """One thing that happened in a room. `position` is the number of the last message that was told."""

    position: int


class RoomMessageAdded(RoomItem, frozen=True, kw_only=True, tag="room_message"):
    """Somebody said something, or the system did."""

    message: RoomMessage


class RoomAnswerText(RoomItem, frozen=True, kw_only=True, tag="room_answer_text"):
    """An answer that is being written goes on. `start` is where the piece begins in it; 0 begins it anew."""

    participant: str
    agent: str
    name: str
    turn: str
    start: int
    text: str


class RoomAnswerEnded(RoomItem, frozen=True, kw_only=True, tag="room_answer_ended"):
    """A turn that was answering is over. Its answer is among the messages told before, if there is one."""

    participant: str
    agent: str
    name: str
    turn: str


class RoomApprovalAsked(RoomItem, frozen=True, kw_only=True, tag="room_approval"):
    """A tool call of an agent that is answering waits for a person; `approval` is its id among the approvals."""

    participant: str
    agent: str
    name: str
    turn: str
    approval: str


class RoomParticipantChanged(RoomItem, frozen=True, kw_only=True, tag="room_participant"):
    """Somebody came, went, or does something else now. Whoever begins to follow is told of everybody who is there."""

    participant: Participant


class RoomStateChanged(RoomItem, frozen=True, kw_only=True, tag="room_state"):
    """The room has another title, was archived or restored."""

    title: str | None
    status: str


class RoomFollowingEnded(RoomItem, frozen=True, kw_only=True, tag="room_ended"):
    """The last item: whoever follows takes part no longer. `reason` is left, removed or gone."""

    reason: str


ROOM_ITEMS: tuple[type[RoomItem], ...] = (
    RoomMessageAdded,
    RoomAnswerText,
    RoomAnswerEnded,
    RoomApprovalAsked,
    RoomParticipantChanged,
    RoomStateChanged,
    RoomFollowingEnded,
)


async def follow_room(
    ledger: RuntimeLedger, room: str, *, after: int | None = None, wait: float | None = None
) -> AsyncGenerator[RoomItem, None]:
    """What happens in a room behind a position, by default from now on. It ends with an item that says so when whoever
    follows takes part no longer, and without one when nothing has come for `wait` seconds."""
    seconds = None if wait is None else checked_seconds(wait, "wait")
    crossing, hub, clock = ledger.crossing, hub_of(ledger.crossing), asyncio.get_running_loop().time
    feed = await crossing.run(partial(RoomFeed, store_of(ledger.sync), room, after))
    with hub.bell(feed.id, Runs(ledger.sync), feed.newest) as bell:
        follower = _RoomFollower(crossing, hub, feed, bell)
        last = clock()
        while True:
            async for item in follower.items():
                yield item
                last = clock()
                if isinstance(item, RoomFollowingEnded):
                    return
            left = None if seconds is None else last + seconds - clock()
            if left is not None and left <= 0:
                return
            await follower.sleep(left)


class _RoomFollower:
    """One subscriber in this process, and what it was told until now."""

    def __init__(self, crossing: Executor, hub: StreamHub, feed: RoomFeed, bell: WakeSignal) -> None:
        self._crossing, self._hub, self._feed, self._bell = crossing, hub, feed, bell
        self._position = feed.position
        self._state: tuple[str | None, str] | None = None
        self._participants: dict[str, Participant] = {}
        self._answers: dict[str, OpenAnswer] = {}
        """By turn, those under way."""
        self._attempts: dict[str, tuple[int, int]] = {}
        """By turn, of which request the answer was told, and how many letters of it."""

    async def items(self) -> AsyncGenerator[RoomItem, None]:
        """What there is to be told now."""
        clock = asyncio.get_running_loop().time
        while self._bell.has_news:
            self._bell.has_news = False
            news, read_at = await self._crossing.run(self._feed.read), clock()
            for item in self._news_items(news):
                yield item
                if clock() - read_at >= HELD_SECONDS:
                    self._feed.go_back(self._position)
                    self._bell.has_news = True
                    break
            else:
                self._bell.has_news = self._bell.has_news or news.has_more
        if not self._answers:
            return
        async for item in self._text_items():
            yield item

    def _news_items(self, news: RoomNews) -> Iterator[RoomItem]:
        for message in news.messages:
            self._position = message.position
            yield RoomMessageAdded(position=self._position, message=message)
        if news.ended is not None:
            yield RoomFollowingEnded(position=self._position, reason=news.ended)
            return
        if news.has_more:
            return
        yield from self._state_items(news)
        yield from self._participant_items(news)
        yield from self._answer_items(news)

    def _state_items(self, news: RoomNews) -> Iterator[RoomItem]:
        before, self._state = self._state, (news.title, news.status)
        if before not in (None, self._state):
            yield RoomStateChanged(position=self._position, title=news.title, status=news.status)

    def _participant_items(self, news: RoomNews) -> Iterator[RoomItem]:
        for participant in news.participants:
            before = self._participants.get(participant.id)
            if before == participant or (before is None and participant.is_removed):
                continue
            self._participants[participant.id] = participant
            yield RoomParticipantChanged(position=self._position, participant=participant)

    def _answer_items(self, news: RoomNews) -> Iterator[RoomItem]:
        """Turns that are over are told; those under way are listened to from now on."""
        self._hub.ring_for(self._bell, {self._feed.id, *news.sessions})
        answers = {answer.turn: answer for answer in news.answers}
        for turn, answer in list(self._answers.items()):
            if turn in answers:
                continue
            del self._answers[turn]
            if self._attempts.pop(turn, None) is not None:
                yield RoomAnswerEnded(
                    position=self._position,
                    participant=answer.participant,
                    agent=answer.agent,
                    name=answer.name,
                    turn=turn,
                )
        for turn, answer in answers.items():
            yield from self._request_items(answer, self._answers.get(turn))
            self._answers[turn] = answer

    def _request_items(self, answer: OpenAnswer, before: OpenAnswer | None) -> Iterator[RoomItem]:
        for request in answer.requests:
            if before is None or request not in before.requests:
                yield RoomApprovalAsked(
                    position=self._position,
                    participant=answer.participant,
                    agent=answer.agent,
                    name=answer.name,
                    turn=answer.turn,
                    approval=request,
                )

    async def _text_items(self) -> AsyncGenerator[RoomItem, None]:
        """More of the answers under way, if whoever follows still takes part."""
        absent = [turn for turn in self._answers if self._hub.newest_text(turn) is None]
        clock = asyncio.get_running_loop().time
        partials, read_at = await self._crossing.run(partial(self._feed.read_partials, absent)), clock()
        if partials is None:  # the next reading says why
            self._bell.has_news = True
            return
        for turn, answer in list(self._answers.items()):
            live, kept = self._hub.newest_text(turn), partials.get(turn)
            if live is not None:
                start = self._sent_letters(turn, live.attempt)
                text = "".join(text for _, text in live.beyond(start, NO_THINKING))
                attempt = live.attempt
            elif kept is not None:
                attempt, start = kept.attempt, self._sent_letters(turn, kept.attempt)
                text = kept.text[start:]
            else:
                continue
            if text and attempt >= self._attempts.get(turn, (0, 0))[0]:
                self._attempts[turn] = (attempt, start + len(text))
                yield self._answer_text(answer, start, text)
            if clock() - read_at >= HELD_SECONDS:  # whether they still take part is asked again
                self._bell.ring()
                return

    def _sent_letters(self, turn: str, attempt: int) -> int:
        """How many letters were sent of the answer to a request of a turn."""
        sent_attempt, letters = self._attempts.get(turn, (0, 0))
        return letters if attempt == sent_attempt else 0

    def _answer_text(self, answer: OpenAnswer, start: int, text: str) -> RoomAnswerText:
        return RoomAnswerText(
            position=self._position,
            participant=answer.participant,
            agent=answer.agent,
            name=answer.name,
            turn=answer.turn,
            start=start,
            text=text,
        )

    async def sleep(self, seconds: float | None) -> None:
        """Until there is something new; what other processes keep of answers is looked at now and then."""
        if self._bell.has_news:
            return
        if any(self._hub.newest_text(turn) is None for turn in self._answers):
            seconds = PARTIAL_POLL_SECONDS if seconds is None else min(seconds, PARTIAL_POLL_SECONDS)
        await self._bell.wait(seconds)


# --- Names that a few typed letters may stand for, found among many.

LONGEST_QUERY = 64
"""So many typed letters are compared."""
FORMS_KEPT = 50_000
"""The forms of so many names are kept, so that an index is soon made again when one name is new."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_IGNORED = ("Mn", "Me", "Cf", "Cc", "Cs", "Co", "Cn")


class IndexedName(Struct, frozen=True, gc=False):
    """Somebody who can be mentioned. `active_at` is when they last said something; 0 where they never did."""

    kind: str
    id: str
    name: str
    active_at: int = 0


def folded_name(name: str) -> str:
    """A name as names are compared: decomposed, without case, marks and invisible characters; punctuation and blanks
    are one space each."""
    if name.isascii():
        plain = "".join(letter if letter.isalnum() else " " for letter in name.lower())
    else:
        plain = "".join(_plain_letters(normalize("NFKD", normalize("NFKD", name).casefold())))
    return " ".join(plain.split())


def _plain_letters(text: str) -> Iterator[str]:
    for letter in text:
        kind = category(letter)
        if kind not in _IGNORED:
            yield " " if kind[0] in "PZ" else letter


class NameIndex:
    """Names in the order in which they are suggested."""

    def __init__(self, names: Iterable[IndexedName]) -> None:
        entries = [((-name.active_at, _name_forms(name.name)[0], name.id), name) for name in names]
        entries.sort(key=lambda entry: entry[0])
        self._names = [name for _, name in entries]
        forms = [_name_forms(name.name) for name in self._names]
        self._keys = _NameLines(key for key, _, _ in forms)
        self._words = _NameLines(words for _, words, _ in forms)
        self._initials = _NameLines(initials for _, _, initials in forms)

    def __len__(self) -> int:
        return len(self._names)

    def matches(self, letters: str, limit: int, skipped: Container[str] = ()) -> list[IndexedName]:
        """The first `limit` names that the letters may stand for; without letters, of all. `skipped` are ids that are
        left out."""
        if limit <= 0:
            return []
        places: dict[int, None] = {}
        for place in self._places_of_query(folded_name(letters[:LONGEST_QUERY])):
            if place not in places and self._names[place].id not in skipped:
                places[place] = None
                if len(places) == limit:
                    break
        return [self._names[place] for place in places]

    def _places_of_query(self, query: str) -> Iterator[int]:
        if not query:
            yield from range(len(self._names))
            return
        yield from self._keys.beginning_with(query)
        yield from self._words.holding(f" {query}")
        joined = query.replace(" ", "")
        if len(joined) > 1:
            yield from self._initials.beginning_with(joined)
        yield from self._keys.holding_in_order(joined)


@lru_cache(maxsize=FORMS_KEPT)
def _name_forms(name: str) -> tuple[str, str, str]:
    """A name as it is compared: whole, as words with a space before each, and the initials of these. `camelCase` has
    two words."""
    key = folded_name(name)
    words = folded_name(_CAMEL.sub(" ", name)) if _CAMEL.search(name) else key
    return key, f" {words}", "".join(word[0] for word in words.split())


class _NameLines:
    """Texts as the lines of one, and their numbers."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._starts: list[int] = []
        parts, at = ["\n"], 1
        for line in lines:
            self._starts.append(at)
            parts += (line, "\n")
            at += len(line) + 1
        self._text = "".join(parts)

    def beginning_with(self, letters: str) -> Iterator[int]:
        return self.holding(f"\n{letters}")

    def holding(self, letters: str) -> Iterator[int]:
        """The numbers of the lines that hold the letters side by side."""
        at = self._text.find(letters)
        while at >= 0:
            number = bisect_right(self._starts, at + 1) - 1
            yield number
            at = self._text.find(letters, self._line_end(number))

    def holding_in_order(self, letters: str) -> Iterator[int]:
        """The numbers of the lines that hold the letters in this order, with others between them."""
        between = "".join(f"[^\n{_in_class(letter)}]*+{re.escape(letter)}" for letter in letters)
        for match in re.finditer("\n" + between, self._text):
            yield bisect_right(self._starts, match.start() + 1) - 1

    def _line_end(self, number: int) -> int:
        """Where the line break behind a line stands."""
        is_last = number + 1 == len(self._starts)
        return len(self._text) - 1 if is_last else self._starts[number + 1] - 1


def _in_class(letter: str) -> str:
    return f"\\{letter}" if letter in "\\]^-" else letter


# --- Whom somebody may mean who types `@` and a few letters in a room.

DEFAULT_SUGGESTIONS = 8
MENTIONED_KINDS = (ProgramKind.AGENT.value, ProgramKind.HUMAN.value)


class Suggestion(Struct, frozen=True, kw_only=True):
    """Somebody whom typed letters may mean."""

    kind: str
    id: str
    name: str
    is_participant: bool

    @property
    def mention(self) -> str:
        """The text that mentions them."""
        return write_mention(self.kind, self.id, self.name)


class _RoomNames(Struct, frozen=True):
    """Those who take part in a room and may be suggested."""

    index: NameIndex
    own: frozenset[str]
    """The ids of whoever asks."""
    skipped: frozenset[str]
    """The ids of whoever asks and of all who take part."""


class MentionSuggester:
    """Suggests in the name that a ledger is opened in. Use one object for several calls: it keeps the names. Not for
    several threads at once."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._store = ledger, store_of(ledger)
        self._read_up_to = -1
        """The arrival number of the newest event of a program that the names include."""
        self._names: dict[str, IndexedName] = {}
        self._agents, self._people = NameIndex(()), NameIndex(())
        self._here: tuple[str, int, _RoomNames] | None = None
        """Those who take part in a room, as of the newest event then."""

    def suggest(self, room: str, letters: str, limit: int = DEFAULT_SUGGESTIONS) -> list[Suggestion]:
        """At most `limit`, the best first. Raises NotFound for a room that whoever asks takes no part in."""
        here = self._room_names(room)
        found = [_suggestion_of(name, True) for name in here.index.matches(letters, limit, here.own)]
        for index in (self._agents, self._people):
            found += [_suggestion_of(name, False) for name in index.matches(letters, limit - len(found), here.skipped)]
        return found

    def _room_names(self, room: str) -> _RoomNames:
        with self._store.read() as txn:
            newest = txn.facts.tip().n
        if self._here is not None and self._here[:2] == (room, newest):
            return self._here[2]
        participants = self._ledger.rooms.participants(room)
        with self._store.read() as txn:
            self._read_newer_programs(txn)
            access = access_of(txn)
            own = frozenset(access.ids or (DEFAULT_AGENT,))
            offered = [one for one in participants if _is_offered(txn.sql, access, one)]
            names = _RoomNames(
                NameIndex(_active_names(txn.sql, offered)), own, own | {one.node for one in participants}
            )
        self._here = (room, newest, names)
        return names

    def _read_newer_programs(self, txn: ReadTxn) -> None:
        """Take up what became of programs since the last call."""
        (newest,) = txn.sql.fetch_row("SELECT coalesce(max(n), 0) FROM program_history") or (0,)
        if newest == self._read_up_to:
            return
        changed = _changed_programs(txn.sql, self._read_up_to)
        access = access_of(txn)
        if self._read_up_to < 0 or newest < self._read_up_to or not changed.isdisjoint(access.ids):
            self._names = {DEFAULT_AGENT: IndexedName(ParticipantKind.USER.value, DEFAULT_AGENT, DEFAULT_AGENT)}
            rows: Iterable[ProgramRow] = _all_programs(txn.sql)
        else:
            for id in changed:
                self._names.pop(id, None)
            rows = _program_rows(txn.sql, changed)
        for row in rows:
            if _is_suggested(txn, row):
                self._names[row.id] = IndexedName(_participant_kind(row), row.id, row.name, _active_at(txn.sql, row))
        by_kind = {kind: [name for name in self._names.values() if name.kind == kind] for kind in ParticipantKind}
        self._agents, self._people = NameIndex(by_kind[ParticipantKind.AGENT]), NameIndex(by_kind[ParticipantKind.USER])
        self._read_up_to = newest


def suggestions(ledger: Ledger, room: str, letters: str, limit: int = DEFAULT_SUGGESTIONS) -> list[Suggestion]:
    """The same for one call, such as one completion of a shell. Nothing is kept."""
    return MentionSuggester(ledger).suggest(room, letters, limit)


def _suggestion_of(name: IndexedName, is_participant: bool) -> Suggestion:
    return Suggestion(kind=name.kind, id=name.id, name=name.name, is_participant=is_participant)


def _is_offered(sql: Sql, access: Access, participant: Participant) -> bool:
    """Whether a participant would hear whoever asks: a private agent only those that it works for."""
    row = None if participant.agent_id is None else load_program(sql, participant.agent_id)
    return row is None or (not row.deleted and access.may_use(row))


def _active_names(sql: Sql, participants: Iterable[Participant]) -> list[IndexedName]:
    names = []
    for one in participants:
        row = sql.fetch_row("SELECT max(position) FROM room_message WHERE author = ?", (one.id,))
        names.append(IndexedName(one.kind, one.node, one.name, 0 if row is None else row[0] or 0))
    return names


def _is_suggested(txn: ReadTxn, row: ProgramRow) -> bool:
    if row.deleted or row.kind not in MENTIONED_KINDS or system_kind_of(txn, row) is not None:
        return False
    access = access_of(txn)
    return access.may_read_program(row) and access.may_use(row)


def _participant_kind(row: ProgramRow) -> str:
    return (ParticipantKind.AGENT if row.kind == ProgramKind.AGENT else ParticipantKind.USER).value


def _active_at(sql: Sql, row: ProgramRow) -> int:
    """When an agent last said something in any room, which everybody may know; of people only their rooms know."""
    if row.kind != ProgramKind.AGENT:
        return 0
    newest = sql.fetch_row("SELECT max(posted_at) FROM room_message WHERE node = ?", (row.id,))
    return 0 if newest is None else newest[0] or 0


def _changed_programs(sql: Sql, since: int) -> set[str]:
    return {id for (id,) in sql.fetch_rows("SELECT DISTINCT program FROM program_history WHERE n > ?", (since,))}


def _all_programs(sql: Sql) -> list[ProgramRow]:
    rows = sql.fetch_rows(f"{PROGRAM.select} WHERE kind IN (?, ?) AND deleted = 0", MENTIONED_KINDS)
    return [ProgramRow(*row) for row in rows]


def _program_rows(sql: Sql, ids: Iterable[str]) -> list[ProgramRow]:
    return [ProgramRow(*row) for row in rows_in(sql, f"{PROGRAM.select} WHERE id IN", list(ids))]
