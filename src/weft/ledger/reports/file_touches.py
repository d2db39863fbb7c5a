"""Which turns touched a file: read it, wrote it, referred to it or carried it.

Tools name files as they like: absolutely, or from the folder they worked in. A stored path is held against the wanted
one as a whole path first, its turn's workspace before it where it is relative; a wanted path without a leading `/` or
`./` is the end of one, so that it is found in every checkout.
"""

from __future__ import annotations

from collections.abc import Iterator
from posixpath import normpath

from msgspec import Struct

from weft.kernel.errors import InvalidInput
from weft.ledger.views.values import text_of
from weft.store.port import ReadTxn
from weft.store.sql import Row, rows_in

_TOUCHES = (
    "SELECT f.path, f.id, f.message, f.kind, f.line_start, f.line_end, t.id, t.workspace, t.session, t.listed_at, t.n,"
    " t.synthesised"
    " FROM message_file f JOIN turn t ON t.n = (SELECT n FROM turn WHERE id < f.message ORDER BY id DESC LIMIT 1)"
    " WHERE t.current = 1 AND f.path IN"
)


class Touch(Struct, frozen=True, kw_only=True):
    """A turn's note of a file."""

    turn_id: str
    message_id: str
    kind: str
    path: str
    full_path: str
    """With the turn's workspace before it, where it was relative and that is known."""
    line_start: int | None
    line_end: int | None
    touched_at: int
    time_known: bool = True
    """False: its origin gives no time, and it stands where its turn came in."""
    session_id: str | None


class WantedPath:
    """What a person calls a file."""

    def __init__(self, path: str) -> None:
        words = _slashes(path)
        if not words.strip("/"):
            raise InvalidInput(f"{path!r} names no file", "give a path, or the end of one")
        self._is_end = not _is_absolute(words)
        self._path = normpath(words)

    def fits(self, path: str, workspace: str | None) -> bool:
        return self.is_at(full_path(path, workspace))

    def is_at(self, full: str) -> bool:
        return full == self._path or (self._is_end and full.endswith(f"/{self._path}"))

    def may_fit(self, path: str) -> bool:
        """Can it be the wanted one in some workspace?"""
        name = normpath(_slashes(path))
        return self.is_at(name) or self._path.endswith(f"/{name}")


def full_path(path: str, workspace: str | None) -> str:
    words = _slashes(path)
    return normpath(words if _is_absolute(words) or not workspace else f"{_slashes(workspace)}/{words}")


def _slashes(path: str) -> str:
    return path.replace("\\", "/")


def _is_absolute(path: str) -> bool:
    return path.startswith("/") or path[1:3] == ":/"


def touches(txn: ReadTxn, path: str) -> list[Touch]:
    """Every note of this file, the newest first."""
    wanted = WantedPath(path)
    names = dict(_names(txn, wanted))
    rows = list(rows_in(txn.sql, _TOUCHES, names))
    txn.facts.hold({row[7] for row in rows if row[7]})
    sessions: dict[int | None, str] = dict(
        rows_in(txn.sql, "SELECT n, id FROM session WHERE n IN", {row[8] for row in rows if row[8] is not None})
    )
    rows.sort(key=lambda row: (row[9], row[10], row[1]), reverse=True)
    found = (_touch(txn, row, names[row[0]], sessions.get(row[8])) for row in rows)
    return [touch for touch in found if wanted.is_at(touch.full_path)]


def _names(txn: ReadTxn, wanted: WantedPath) -> Iterator[tuple[int, str]]:
    """The contents that can be a name of the file. A ledger has far fewer names of files than notes of them."""
    numbers = [n for (n,) in txn.sql.all("SELECT DISTINCT path FROM message_file")]
    txn.facts.hold(numbers)
    for n in numbers:
        name = text_of(txn, n) or ""
        if wanted.may_fit(name):
            yield n, name


def _touch(txn: ReadTxn, row: Row, name: str, session: str | None) -> Touch:
    _, _, message, kind, start, end, turn, workspace, _, at, _, synthesised = row
    return Touch(
        turn_id=turn,
        message_id=message,
        kind=kind,
        path=name,
        full_path=full_path(name, text_of(txn, workspace)),
        line_start=start,
        line_end=end,
        touched_at=at,
        time_known=not synthesised,
        session_id=session,
    )
