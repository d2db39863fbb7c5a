"""What was found, as people see it: by fingerprint, with where it is used, in names that stand
in events and said again where no rule knows it; and the credentials themselves, for whoever asks to
see them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from json import loads
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from weft.kernel.contents import bytes_text
from weft.kernel.errors import Action, AmbiguousName, ContentGone, ContentMissing, InvalidInput, NotFound
from weft.kernel.events import (
    Event,
    HistoryAppend,
    MessageFact,
    ModelResponse,
    Substitution,
    ToolCallRequested,
    ToolResult,
    UnknownEvent,
)
from weft.kernel.ledger_events import Sighting
from weft.ledger.arguments import checked_text
from weft.ledger.imports.sources import KEY, MAGIC, import_secret
from weft.ledger.read.content_uses import references
from weft.ledger.read.revisions import require
from weft.ledger.read.session_list import HERE, of_project
from weft.ledger.read.sessions import Projects
from weft.ledger.read.turns import ranges_to
from weft.ledger.secrets.scan import (
    DIGITS,
    LONG,
    SecretScan,
    SecretScanner,
    SecretTrace,
    next_contents,
    redacted,
    windows_of,
    without_escapes,
)
from weft.ledger.secrets.scan import note_found as note_found_secret
from weft.ledger.views.rows import (
    SESSION,
    SessionRow,
    TurnRow,
    decoded,
    load_session,
    load_session_number,
    load_turn,
    stream_of,
)
from weft.store.fact_log import local_value
from weft.store.port import ReadTxn, Store, WriteTxn
from weft.store.sql import Sql, rows_in

# --- Credentials in names that stand in events themselves: of models, providers, tools, toolsets and servers.

FOUND = "secret_names"
"""The key of local state that keeps the fingerprints of what was found, for whoever ignores one."""
_COLUMNS = {
    "turn": ("model", "provider", "provider_program", "toolset", "tools"),
    "message": ("model", "provider", "finish"),
    "tool_call": ("tool", "server"),
    "compaction": ("model", "provider"),
}
_TURNS = {
    "turn": "SELECT id FROM turn WHERE {} = ? ORDER BY n",
    "message": "SELECT DISTINCT t.id, t.n FROM message u JOIN turn t ON t.n = u.turn WHERE u.{} = ? ORDER BY t.n",
    "tool_call": "SELECT DISTINCT t.id, t.n FROM tool_call u JOIN turn t ON t.n = u.turn WHERE u.{} = ? ORDER BY t.n",
    "compaction": "SELECT turn FROM compaction WHERE {} = ? ORDER BY turn",
}
"""The turns whose row has a value in a column."""


class NamedSecret(Struct, frozen=True, kw_only=True):
    """A credential in a value of a column, and the turns that have it."""

    fingerprint: str
    rule: str
    shown: str
    what: str
    """The table and the column: `tool_call tool`."""
    turns: tuple[str, ...]


def find_names(txn: ReadTxn, scanner: SecretScanner, key: bytes) -> list[NamedSecret]:
    return [
        NamedSecret(
            fingerprint=trace.fingerprint,
            rule=trace.rule,
            shown=trace.shown,
            what=f"{table} {column}",
            turns=tuple(str(id) for id, *_ in txn.sql.fetch_rows(_TURNS[table].format(column), (value,))),
        )
        for table, columns in _COLUMNS.items()
        for column in columns
        for value, name in _names_in_column(txn.sql, table, column)
        for trace in scanner.scan(name.encode("utf-8", "replace"), key)
    ]


def _names_in_column(sql: Sql, table: str, column: str) -> Iterator[tuple[str, str]]:
    """Values of a column and the names in each. One that begins with # is the number of a content."""
    query = f"SELECT DISTINCT {column} FROM {table} WHERE {column} IS NOT NULL AND substr({column}, 1, 1) <> '#'"
    for (value,) in sql.fetch_rows(query):
        names = [str(value)] if column != "tools" else [name for name in loads(value) if isinstance(name, str)]
        for name in names:
            if not name.startswith("#"):
                yield str(value), name


def fingerprints_found(sql: Sql) -> set[str]:
    row = sql.fetch_row("SELECT value FROM local WHERE key = ?", (FOUND,))
    return set(str(row[0]).split()) if row else set()


def note_found(fingerprints: set[str], txn: WriteTxn) -> None:
    """What was found last, and nothing of what was found before."""
    txn.sql.run("DELETE FROM local WHERE key = ?", (FOUND,))
    if fingerprints:
        txn.sql.run("INSERT INTO local(key, value) VALUES (?, ?)", (FOUND, " ".join(sorted(fingerprints))))


# --- Where a content is used: read out of the log, since no view knows it.

KEPT_PLACES = 16
"""So many places are told of one content; of a system prompt there may be thousands."""
REMEMBERED = 4096
_hex = re.compile(rb"[0-9a-f]{64}").findall
Report = Callable[[str, int, int], None]
_SHOWING = (
    "SELECT t.id FROM substitution s JOIN turn t ON t.n = s.turn"
    " WHERE s.n = ? OR s.replacement_n = ? ORDER BY s.n LIMIT 1"
)
"""The turn that shows what an event says in the place of what was recorded."""


class SecretPlace(Struct, frozen=True, kw_only=True):
    """One use of a content that holds a credential."""

    content: str
    """Its reference; empty: it stands in a name of the event itself, which cannot be erased."""
    what: str
    """The kind of event that uses it, and where in it: `tool_result result`."""
    session_id: str | None = None
    session: str | None = None
    """Its label, unless that holds a credential, too."""
    turn_id: str | None = None
    message_id: str | None = None
    call_id: str | None = None
    """The tool's own name for the call, unless that holds a credential, too."""


class SecretOwner(Struct, frozen=True):
    """What a use belongs to."""

    turn: TurnRow | None
    session: SessionRow | None
    label: str | None


class KeptUses(Struct):
    """How a content is used: all uses that fit are counted, some are kept."""

    uses: int = 0
    places: list[SecretPlace] = field(default_factory=list)


Fits = Callable[[SecretOwner], bool]
IsClean = Callable[[str], bool]


class PlaceFinder:
    """Goes through the log once and tells of every use of some contents."""

    def __init__(self, txn: ReadTxn, wanted: Iterable[bytes], fits: Fits, is_clean: IsClean) -> None:
        self._txn, self._fits, self._is_clean = txn, fits, is_clean
        self.used: dict[bytes, KeptUses] = {ref: KeptUses() for ref in wanted}
        self._spots: dict[tuple[str | None, str | None], SecretOwner] = {}

    def run(self, report: Report) -> Mapping[bytes, KeptUses]:
        facts, until = self._txn.facts, self._txn.facts.tip().n
        wanted = {ref.hex().encode() for ref in self.used}
        for row in facts.rows() if wanted else ():
            if not wanted.isdisjoint(_hex(row.events)):
                for n, line in enumerate(row.lines(), row.first):
                    if not wanted.isdisjoint(_hex(line)):
                        self._note_event(n, line)
            report("places", row.n, until)
        return self.used

    def _note_event(self, n: int, line: bytes) -> None:
        event = decoded(n, line)
        turn, session = self._turn_and_session(n, event)
        spot = self.owner(turn, session)
        if not self._fits(spot):
            return
        for path, text in references(event):
            used = self.used.get(bytes.fromhex(text))
            if used is not None:
                used.uses += 1
                if len(used.places) < KEPT_PLACES:
                    used.places.append(self._secret_place(text, event, path[2:], spot))

    def _turn_and_session(self, n: int, event: Event | UnknownEvent) -> tuple[str | None, str | None]:
        """The turn and the session that an event tells of."""
        kind, _, name = event.stream.partition(":")
        if isinstance(event, Sighting):
            return (event.turn or None), event.session
        if isinstance(event, ToolResult) and kind == "ledger":
            called = self._txn.facts.find_event(bytes.fromhex(event.call.event_id))
            line = None if called is None else self._txn.facts.line(called)
            kind, _, name = stream_of(called, line).partition(":") if called and line else ("", "", "")
        elif kind == "ledger" and isinstance(event, HistoryAppend | ModelResponse | Substitution):
            shown = self._txn.sql.fetch_row(_SHOWING, (n, n))
            return (None if shown is None else shown[0]), None
        return (name if kind == "run" else None), (name if kind == "session" else None)

    def owner(self, turn: str | None, session: str | None) -> SecretOwner:
        """The turn and the session that a use belongs to."""
        found = self._spots.get((turn, session))
        if found is None:
            row = load_turn(self._txn.sql, turn) if turn else None
            if session is not None:
                owner = load_session(self._txn.sql, session)
            else:
                owner = load_session_number(self._txn.sql, row.session) if row and row.session is not None else None
            if len(self._spots) >= REMEMBERED:
                self._spots.clear()
            found = self._spots[turn, session] = SecretOwner(
                row, owner, self._clean_text(owner.label) if owner else None
            )
        return found

    def _secret_place(self, ref: str, event: Event | UnknownEvent, path: str, spot: SecretOwner) -> SecretPlace:
        kind = event.kind if isinstance(event, UnknownEvent) else str(event.__struct_config__.tag)
        return SecretPlace(
            content=ref,
            what=f"{kind} {path}",
            session_id=spot.session.id if spot.session else None,
            session=spot.label,
            turn_id=spot.turn.id if spot.turn else None,
            message_id=_message_of(event),
            call_id=self._call_of(event),
        )

    def _call_of(self, event: Any) -> str | None:
        if not isinstance(event, ToolCallRequested | ToolResult):
            return None
        n = self._txn.facts.find_content(bytes.fromhex(event.call_id))
        return None if n is None else self._clean_text(self._txn.facts.beginning(n).decode("utf-8", "replace"))

    def _clean_text(self, text: str) -> str | None:
        return text if text and self._is_clean(text) else None


def _message_of(event: Any) -> str | None:
    for name in ("message", "output"):
        found = getattr(event, name, None)
        if isinstance(found, MessageFact):
            return found.id
        if isinstance(found, str) and found:
            return found
    return None


# --- The same credential said again, where no rule knows it for one: a password of an address, alone in a sentence.

AGAIN = "weft.said-again"
_HOLDING = "SELECT DISTINCT content, fingerprint FROM secret_found WHERE rule <> ? AND fingerprint NOT IN"
Values = Mapping[bytes, SecretTrace]
"""Credentials as they are written, with what is told of them."""


def find_again(store: Store, scanner: SecretScanner, beginnings: Sequence[str], report: Report) -> None:
    """Note where else there is what was found and is not ignored; only of these fingerprints, if any are given."""
    values = _known_values(store, scanner, [each.lower() for each in beginnings])
    mark = 0
    while values:
        with store.read() as txn:
            numbers = next_contents(txn.sql, mark)
            (last,) = txn.sql.fetch_row("SELECT max(n) FROM content") or (0,)
            occurrences = [(n, trace) for n, _ in numbers for trace in _occurrences_in(txn, n, values)]
            known = set(
                rows_in(
                    txn.sql, "SELECT content, start FROM secret_found WHERE content IN", (n for n, _ in occurrences)
                )
            )
            found = [(n, trace) for n, trace in occurrences if (n, trace.start) not in known]
        if not numbers:
            return
        if found:
            store.write(partial(note_found_secret, found))
        mark = numbers[-1][0]
        report("said again", mark, last)
        store.pause_reading()


def _known_values(store: Store, scanner: SecretScanner, beginnings: Sequence[str]) -> Values:
    key, values = import_secret(store), {}
    with store.read() as txn:
        rows = txn.sql.fetch_rows(f"{_HOLDING} (SELECT fingerprint FROM secret_ignored) ORDER BY content", (AGAIN,))
        wanted = {mark for _, mark in rows if not beginnings or mark.startswith(tuple(beginnings))}
        for n in dict.fromkeys(n for n, mark in rows if mark in wanted):
            for window in windows_of(txn, n):
                for data in dict.fromkeys((window.data, without_escapes(window.data))):
                    for mark, secret in scanner.values(data, key):
                        written = secret.encode("utf-8", "surrogatepass")
                        if mark in wanted and len(written) >= LONG:
                            values[written] = SecretTrace(AGAIN, 0, mark, redacted(secret))
    return values


def _occurrences_in(txn: ReadTxn, n: int, values: Values) -> Iterator[SecretTrace]:
    for window in windows_of(txn, n):
        for written, trace in values.items():
            at = window.data.find(written)
            while at >= 0:
                start = window.at + at
                if window.low <= start < window.high:
                    yield SecretTrace(AGAIN, start, trace.fingerprint, trace.shown)
                at = window.data.find(written, at + 1)


# --- What was found, as people see it: by fingerprint, with where it is used, and what is ignored left out.

FEWEST_DIGITS = 6
REPEATED_CREDENTIAL = "credential said again"
_IGNORED = "SELECT fingerprint FROM secret_ignored"


class SecretsWanted(Struct, frozen=True, kw_only=True):
    """Which findings to tell of; null: whatever it is."""

    session: str | None = None
    origin: str | None = None
    project: str | None = None
    since: int | None = None
    fingerprints: tuple[str, ...] = ()
    """Beginnings of fingerprints."""
    ignored: bool = False
    """Those that are ignored, instead of the others."""

    @property
    def narrow(self) -> bool:
        return not (self.session is None and self.origin is None and self.project is None and self.since is None)


class SecretFinding(Struct, frozen=True, kw_only=True):
    """A credential that lies in contents or in names, without being shown."""

    fingerprint: str
    rules: tuple[str, ...]
    kind: str
    shown: str
    """At most its first four characters."""
    times: int
    """How often it stands in contents and in different names; each is counted once, however often it is used."""
    contents: tuple[str, ...]
    """References of the contents that hold it."""
    uses: int
    """How often events use these contents, and how many turns have such a name."""
    places: tuple[SecretPlace, ...]
    """Some of these uses, in order of arrival."""


class SecretReport(Struct, frozen=True, kw_only=True):
    """The credentials that were found, by fingerprint."""

    secrets: tuple[SecretFinding, ...]
    ignored: int
    """Further findings that were left out since somebody said so."""
    scanned: SecretScan
    rules: str


class FoundSecret(Struct, frozen=True, gc=False):
    ref: bytes
    n: int
    start: int
    rule: str
    fingerprint: str
    shown: str


def ensure_answerable(txn: ReadTxn, wanted: SecretsWanted) -> None:
    """Refuse what no scan could answer, before it begins."""
    for beginning in wanted.fingerprints:
        _checked_digits(beginning)
    if wanted.session is not None:
        require(txn, wanted.session)


def ignored_fingerprints(txn: ReadTxn) -> set[str]:
    return {mark for (mark,) in txn.sql.fetch_rows(_IGNORED)}


def make_report(
    txn: ReadTxn,
    scanner: SecretScanner,
    wanted: SecretsWanted,
    scanned: SecretScan,
    names: Sequence[NamedSecret],
    report: Report,
    projects: Projects,
) -> SecretReport:
    ignored = ignored_fingerprints(txn)
    chosen = {full(txn.sql, each) for each in wanted.fingerprints}

    def is_listed(row: FoundSecret | NamedSecret) -> bool:
        return (not chosen or row.fingerprint in chosen) and (row.fingerprint in ignored) == wanted.ignored

    rows = _stored_findings(txn.sql)
    listed = [row for row in rows if is_listed(row)]
    key = bytes.fromhex(local_value(txn.sql, KEY))

    def is_clean(text: str) -> bool:
        return not scanner.scan(text.encode("utf-8", "replace"), key)

    fits = _owner_filter(txn, wanted, projects)
    finder = PlaceFinder(txn, (row.ref for row in listed), fits, is_clean)
    used = finder.run(report)
    by_mark: dict[str, list[FoundSecret | NamedSecret]] = {}
    for row in listed:
        if used[row.ref].uses or not wanted.narrow:
            by_mark.setdefault(row.fingerprint, []).append(row)
    for name in names:
        turns = tuple(turn for turn in name.turns if fits(finder.owner(turn, None)))
        if is_listed(name) and turns:
            by_mark.setdefault(name.fingerprint, []).append(replace(name, turns=turns))
    secrets = [_secret_finding(rows, used, scanner, finder) for rows in by_mark.values()]
    marks = {row.fingerprint for row in rows} | {name.fingerprint for name in names}
    left_out = (marks & chosen if chosen else marks) & ignored
    return SecretReport(
        secrets=tuple(sorted(secrets, key=lambda secret: (secret.rules, -secret.times, secret.fingerprint))),
        ignored=0 if wanted.ignored else len(left_out),
        scanned=scanned,
        rules=scanner.rules,
    )


def _stored_findings(sql: Sql) -> list[FoundSecret]:
    rows = sql.fetch_rows(
        "SELECT c.ref, f.content, f.start, f.rule, f.fingerprint, f.shown FROM secret_found f"
        " JOIN content c ON c.n = f.content ORDER BY f.content, f.start, f.rule"
    )
    return [FoundSecret(bytes(ref), *rest) for ref, *rest in rows]


def _secret_finding(
    found: Sequence[FoundSecret | NamedSecret],
    used: Mapping[bytes, KeptUses],
    scanner: SecretScanner,
    finder: PlaceFinder,
) -> SecretFinding:
    rows = [row for row in found if isinstance(row, FoundSecret)]
    names = [row for row in found if isinstance(row, NamedSecret)]
    rules = tuple(sorted({row.rule for row in found}))
    refs = dict.fromkeys(row.ref for row in rows)
    name_places = [_name_place(finder, name.what, turn) for name in names for turn in name.turns[:KEPT_PLACES]]
    return SecretFinding(
        fingerprint=found[0].fingerprint,
        rules=rules,
        kind=REPEATED_CREDENTIAL if rules[0] == AGAIN else scanner.kind(rules[0]),
        shown=found[0].shown,
        times=len({(row.n, row.start) for row in rows}) + len({name.what for name in names}),
        contents=tuple(ref.hex() for ref in refs),
        uses=sum(used[ref].uses for ref in refs) + sum(len(name.turns) for name in names),
        places=(*(place for ref in refs for place in used[ref].places), *name_places),
    )


def _name_place(finder: PlaceFinder, what: str, turn: str) -> SecretPlace:
    owner = finder.owner(turn, None)
    session_id = owner.session.id if owner.session else None
    return SecretPlace(content="", what=what, session_id=session_id, session=owner.label, turn_id=turn)


def _owner_filter(txn: ReadTxn, wanted: SecretsWanted, projects: Projects) -> Callable[[SecretOwner], bool]:
    judges: list[Callable[[SecretOwner], bool]] = []
    if wanted.session is not None:
        judges.append(_in_session(txn, require(txn, wanted.session)))
    if wanted.origin is not None:
        judges.append(_from_origin(checked_text(wanted.origin, "origin")))
    if wanted.project is not None:
        rows = [SessionRow(*row) for row in txn.sql.fetch_rows(SESSION.select)]
        of_it = {row.id for row in of_project(txn, rows, checked_text(wanted.project, "project"), projects)}
        judges.append(lambda spot: spot.session is not None and spot.session.id in of_it)
    if wanted.since is not None:
        judges.append(_since_filter(wanted.since))
    return lambda spot: all(judge(spot) for judge in judges)


def _in_session(txn: ReadTxn, session: SessionRow) -> Callable[[SecretOwner], bool]:
    """Its own, or in the thread that it stands on."""
    reach: dict[int, int] = {}
    if session.head_segment is not None and session.head_depth is not None:
        reach = {part.segment: part.high for part in ranges_to(txn.sql, session.head_segment, session.head_depth)}

    def judge(spot: SecretOwner) -> bool:
        own = spot.session is not None and spot.session.id == session.id
        return own or (spot.turn is not None and spot.turn.depth <= reach.get(spot.turn.segment, 0))

    return judge


def _from_origin(origin: str) -> Callable[[SecretOwner], bool]:
    def judge(spot: SecretOwner) -> bool:
        row = spot.turn or spot.session
        return row is not None and (row.origin or HERE) == origin

    return judge


def _since_filter(moment: int) -> Callable[[SecretOwner], bool]:
    def judge(spot: SecretOwner) -> bool:
        if spot.turn is not None:
            return (spot.turn.started_at or 0) >= moment
        return spot.session is not None and spot.session.updated_at >= moment

    return judge


def full(sql: Sql, beginning: str) -> str:
    """The fingerprint that begins so, among those found or ignored."""
    digits = _checked_digits(beginning)
    query = f"SELECT fingerprint FROM secret_found UNION {_IGNORED}"
    marks = {str(mark) for (mark,) in sql.fetch_rows(query)} | fingerprints_found(sql)
    known = sorted(mark for mark in marks if mark.startswith(digits))
    if not known:
        raise NotFound("secret with fingerprint", digits, Action.LIST_SECRETS)
    if len(known) > 1:
        raise AmbiguousName(digits, known)
    return known[0]


def _checked_digits(beginning: str) -> str:
    digits = checked_text(beginning, "fingerprint").lower().removesuffix("…")
    if not FEWEST_DIGITS <= len(digits) <= DIGITS or set(digits) - set("0123456789abcdef"):
        raise InvalidInput(
            f"a fingerprint is {DIGITS} hexadecimal digits, or {FEWEST_DIGITS} and more that it begins with",
            Action.LIST_SECRETS,
        )
    return digits


def ignore(beginning: str, txn: WriteTxn) -> str:
    mark = full(txn.sql, beginning)
    txn.sql.run(
        "INSERT INTO secret_ignored(fingerprint, ignored_at) VALUES (?, ?) ON CONFLICT (fingerprint) DO NOTHING",
        (mark, txn.facts.now_ms),
    )
    return mark


def unignore(beginning: str, txn: WriteTxn) -> str:
    mark = full(txn.sql, beginning)
    txn.sql.run("DELETE FROM secret_ignored WHERE fingerprint = ?", (mark,))
    return mark


# --- The credentials themselves: shown to whoever owns the ledger, and taken out of the texts that hold them.

REDACTED = "[redacted]"
LARGEST_BYTES = 16 * 1024 * 1024
"""A larger content is erased as a whole."""
AROUND = 60
"""So many characters are shown before and after a match."""


class SecretMatch(Struct, frozen=True, kw_only=True):
    """A credential as it stands in a content, with the words around it."""

    fingerprint: str
    content: str
    """The reference of the content that holds it."""
    secret: str
    before: str
    after: str


def matches(store: Store, scanner: SecretScanner, wanted: Iterable[tuple[str, Sequence[str]]]) -> Iterator[SecretMatch]:
    """By fingerprint and the references of its contents: the first match in each content that is still there."""
    key = import_secret(store)
    with store.read() as txn:
        for mark, refs in wanted:
            for ref in refs:
                n = txn.facts.find_content(bytes.fromhex(ref))
                match = None if n is None else _first_match(txn, n, scanner, key, mark)
                if match is not None:
                    secret, text = match
                    at = text.find(secret)
                    yield SecretMatch(
                        fingerprint=mark,
                        content=ref,
                        secret=secret,
                        before=text[max(0, at - AROUND) : max(0, at)],
                        after=text[at + len(secret) : at + len(secret) + AROUND] if at >= 0 else "",
                    )


def _first_match(txn: ReadTxn, n: int, scanner: SecretScanner, key: bytes, mark: str) -> tuple[str, str] | None:
    """The credential of this fingerprint, and the text that it was found in."""
    for window in windows_of(txn, n):
        for data in dict.fromkeys((window.data, without_escapes(window.data))):
            for fingerprint, secret in scanner.values(data, key):
                if fingerprint == mark:
                    return secret, data.decode("utf-8", "replace")
    return None


def remainders(store: Store, scanner: SecretScanner, refs: Iterable[str], marks: Iterable[str]) -> dict[str, str]:
    """By reference what is left of each of these contents without the credentials of these fingerprints. A content
    whose credentials cannot be taken out cleanly, or that is a copy of an imported source, is not among them."""
    key, wanted = import_secret(store), frozenset(marks)
    texts: dict[str, str] = {}
    with store.read() as txn:
        contents = [(ref, _text_bytes(txn, ref)) for ref in dict.fromkeys(refs)]
        secrets = {
            secret for _, data in contents if data is not None for secret in _secrets_in(scanner, data, key, wanted)
        }
        for ref, data in contents:
            text = None if data is None else _text_without(data, secrets)
            if text is not None and not any(True for _ in _secrets_in(scanner, text.encode("utf-8"), key, wanted)):
                texts[ref] = text
    return texts


def _text_bytes(txn: ReadTxn, ref: str) -> bytes | None:
    """The bytes of a content that is text; None of any other."""
    n = txn.facts.find_content(bytes.fromhex(ref))
    if n is None or txn.facts.content_size(n) > LARGEST_BYTES:
        return None
    try:
        data = txn.facts.content(n)
        data.decode("utf-8")
    except (ContentGone, ContentMissing, UnicodeDecodeError):
        return None
    return None if data.startswith(MAGIC) else data


def _secrets_in(scanner: SecretScanner, data: bytes, key: bytes, wanted: frozenset[str]) -> Iterator[str]:
    for text in dict.fromkeys((data, without_escapes(data))):
        yield from (secret for mark, secret in scanner.values(text, key) if mark in wanted)


def _text_without(data: bytes, secrets: Iterable[str]) -> str | None:
    """The text with a mark in place of each credential, however it is written; None where none of them is in it."""
    text = before = bytes_text(data)
    for secret in sorted(secrets, key=len, reverse=True):
        for written in (secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]):
            text = text.replace(written, REDACTED)
    return None if text == before else text
