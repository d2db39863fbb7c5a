"""What was found, as people see it: by fingerprint, with where it is used, and what is ignored left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from weft.kernel.advice import Action
from weft.kernel.errors import AmbiguousName, InvalidInput, NotFound
from weft.ledger.arguments import checked_text
from weft.ledger.imports.sources import KEY
from weft.ledger.read.listing import HERE, of_project
from weft.ledger.read.projects import Projects
from weft.ledger.read.revisions import require
from weft.ledger.read.threads import ranges_to
from weft.ledger.secrets.names import NamedSecret, fingerprints_found
from weft.ledger.secrets.places import KEPT_PLACES, PlaceFinder, Report, SecretOwner, SecretPlace, Used
from weft.ledger.secrets.repeats import AGAIN
from weft.ledger.secrets.scan import SecretScan
from weft.ledger.secrets.scanner import DIGITS, SecretScanner
from weft.ledger.views.rows import SESSION, SessionRow
from weft.store.facts import local_value
from weft.store.port import ReadTxn, WriteTxn
from weft.store.sql import Sql

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
    return {mark for (mark,) in txn.sql.all(_IGNORED)}


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

    rows = _found(txn.sql)
    listed = [row for row in rows if is_listed(row)]
    key = bytes.fromhex(local_value(txn.sql, KEY))

    def is_clean(text: str) -> bool:
        return not scanner.scan(text.encode("utf-8", "replace"), key)

    fits = _sieve(txn, wanted, projects)
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
    secrets = [_secret(rows, used, scanner, finder) for rows in by_mark.values()]
    marks = {row.fingerprint for row in rows} | {name.fingerprint for name in names}
    left_out = (marks & chosen if chosen else marks) & ignored
    return SecretReport(
        secrets=tuple(sorted(secrets, key=lambda secret: (secret.rules, -secret.times, secret.fingerprint))),
        ignored=0 if wanted.ignored else len(left_out),
        scanned=scanned,
        rules=scanner.rules,
    )


def _found(sql: Sql) -> list[FoundSecret]:
    rows = sql.all(
        "SELECT c.ref, f.content, f.start, f.rule, f.fingerprint, f.shown FROM secret_found f"
        " JOIN content c ON c.n = f.content ORDER BY f.content, f.start, f.rule"
    )
    return [FoundSecret(bytes(ref), *rest) for ref, *rest in rows]


def _secret(
    found: Sequence[FoundSecret | NamedSecret],
    used: Mapping[bytes, Used],
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


def _sieve(txn: ReadTxn, wanted: SecretsWanted, projects: Projects) -> Callable[[SecretOwner], bool]:
    judges: list[Callable[[SecretOwner], bool]] = []
    if wanted.session is not None:
        judges.append(_in_session(txn, require(txn, wanted.session)))
    if wanted.origin is not None:
        judges.append(_from_origin(checked_text(wanted.origin, "origin")))
    if wanted.project is not None:
        rows = [SessionRow(*row) for row in txn.sql.all(SESSION.select)]
        of_it = {row.id for row in of_project(txn, rows, checked_text(wanted.project, "project"), projects)}
        judges.append(lambda spot: spot.session is not None and spot.session.id in of_it)
    if wanted.since is not None:
        judges.append(_since(wanted.since))
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


def _since(moment: int) -> Callable[[SecretOwner], bool]:
    def judge(spot: SecretOwner) -> bool:
        if spot.turn is not None:
            return (spot.turn.started_at or 0) >= moment
        return spot.session is not None and spot.session.updated_at >= moment

    return judge


def full(sql: Sql, beginning: str) -> str:
    """The fingerprint that begins so, among those found or ignored."""
    digits = _checked_digits(beginning)
    query = f"SELECT fingerprint FROM secret_found UNION {_IGNORED}"
    marks = {str(mark) for (mark,) in sql.all(query)} | fingerprints_found(sql)
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
