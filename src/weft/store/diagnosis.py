"""What an examination of a ledger finds: how bad, what, why it matters, and the command that mends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum

from msgspec import Struct

from weft.kernel.errors import WeftError

COPY_BACK = "copy a backup to a new ledger: `weft copy BACKUP ADDRESS`"
"""What mends a ledger that is no file, where nothing but a backup does."""


class Grade(StrEnum):
    """How bad it is. An error stops work or loses something; a warning may come to that; a note is worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"
    GOOD = "good"


class Diagnosis(Struct, frozen=True, kw_only=True):
    """One finding. `check` names what was looked at, `mend` is what to run or do; a good one needs neither."""

    grade: Grade
    check: str
    what: str
    why: str = ""
    mend: str = ""


def good(check: str, what: str) -> Diagnosis:
    return Diagnosis(grade=Grade.GOOD, check=check, what=what)


def note(check: str, what: str, why: str = "", mend: str = "") -> Diagnosis:
    return Diagnosis(grade=Grade.NOTE, check=check, what=what, why=why, mend=mend)


def warning(check: str, what: str, why: str, mend: str) -> Diagnosis:
    return Diagnosis(grade=Grade.WARNING, check=check, what=what, why=why, mend=mend)


def error(check: str, what: str, why: str, mend: str) -> Diagnosis:
    return Diagnosis(grade=Grade.ERROR, check=check, what=what, why=why, mend=mend)


def mend_of(failure: WeftError) -> str:
    """What an error says to do, but for what whoever examines a ledger is doing already."""
    return failure.hint.removeprefix("run `weft doctor`; ")


def as_far_as_it_goes(check: str, look: Callable[[], Iterator[Diagnosis]]) -> Iterator[Diagnosis]:
    """A damaged ledger can fail in any way while it is looked at; that is a finding, not the end of the examination."""
    try:
        yield from look()
    except WeftError as failure:
        what = f"could not be looked at to the end: {failure}"
        yield error(check, what, "something is damaged there", mend_of(failure))
    except PermissionError as failure:
        what = f"could not be looked at to the end: {failure.filename} may not be read"
        yield error(check, what, "it belongs to somebody else", "chmod u+r, or chown")
    except Exception as failure:  # whatever a damaged value made of itself
        yield error(
            check,
            f"could not be looked at to the end: {failure!r:.200}",
            "something is damaged there",
            "restore a backup with `weft recover --from FILE`, or save what verifies with `weft recover --salvage`",
        )
