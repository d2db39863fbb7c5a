"""What an examination of a ledger finds: how bad, what, why it matters, and what mends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum

from msgspec import Struct

from weft.kernel.advice import Action, Advice, Hint, advice_of
from weft.kernel.errors import WeftError
from weft.kernel.hidden_credentials import without_credentials
from weft.kernel.weft_error import quoted


class DiagnosisSeverity(StrEnum):
    """How bad it is. An error stops work or loses something; a warning may come to that; a note is worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"
    GOOD = "good"


class Diagnosis(Struct, frozen=True, kw_only=True):
    """One finding. `check` names what was looked at, `advice` says what mends it; a good one needs none."""

    grade: DiagnosisSeverity
    check: str
    what: str
    why: str = ""
    advice: Advice = Advice(Action.OTHER)

    @property
    def mend(self) -> str:
        """What to do, for whoever calls the library; it names no command."""
        return self.advice.hint


def good(check: str, what: str) -> Diagnosis:
    return _diagnosis(DiagnosisSeverity.GOOD, check, what, "", "")


def note(check: str, what: str, why: str = "", mend: Hint = "") -> Diagnosis:
    return _diagnosis(DiagnosisSeverity.NOTE, check, what, why, mend)


def warning(check: str, what: str, why: str, mend: Hint) -> Diagnosis:
    return _diagnosis(DiagnosisSeverity.WARNING, check, what, why, mend)


def error(check: str, what: str, why: str, mend: Hint) -> Diagnosis:
    return _diagnosis(DiagnosisSeverity.ERROR, check, what, why, mend)


def older_schema(found: int, known: int) -> Diagnosis:
    """Of a ledger in a server that an older version made."""
    what = f"schema {found} is older than this program's {known}"
    why = "the next opening for writing upgrades it, and makes no copy first"
    return warning("schema", what, why, Action.UPGRADE_AFTER_BACKUP)


def _diagnosis(grade: DiagnosisSeverity, check: str, what: str, why: str, mend: Hint) -> Diagnosis:
    """Passwords of addresses in it are hidden."""
    shown, reason = without_credentials(what), without_credentials(why)
    return Diagnosis(grade=grade, check=check, what=shown, why=reason, advice=advice_of(mend))


def mend_of(failure: WeftError) -> Hint:
    """What an error says to do; whoever examines the ledger already is not told to do that."""
    return Action.RESTORE_OR_SALVAGE if failure.action is Action.EXAMINE_OR_RECOVER else failure.advice


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
            f"could not be looked at to the end: {quoted(failure, 200)}",
            "something is damaged there",
            Action.RESTORE_OR_SALVAGE,
        )
