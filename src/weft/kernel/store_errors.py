"""The machine or the file is in the way: errors of opening, reading and writing a ledger, and of damaged ones."""

from __future__ import annotations

from collections.abc import Sequence

from weft.kernel.advice import Action, Hint
from weft.kernel.hidden_credentials import hidden_address
from weft.kernel.weft_error import WeftError


class StoreError(WeftError):
    """The machine, the file or its permissions are in the way."""

    code = "store_error"
    usual_action = Action.EXAMINE_LEDGER


class NotALedger(StoreError):
    """What is at this address is not a ledger."""

    code = "not_a_ledger"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} is not a Weft ledger: {reason}", Action.CREATE_LEDGER_ELSEWHERE)
        self.path, self.reason = path, reason


class LedgerMissing(StoreError):
    """There is no ledger at this address."""

    code = "ledger_missing"

    def __init__(self, path: str, hint: Hint | None = None) -> None:
        usual = Action.CREATE_OR_NAME_LEDGER.of(path=hidden_address(path))
        super().__init__(f"there is no ledger at {path}", usual if hint is None else hint)
        self.path = path


class LedgerTooNew(StoreError):
    """A newer program wrote this ledger; this one would not understand it and touches nothing."""

    code = "ledger_too_new"

    def __init__(self, found: int, known: int) -> None:
        super().__init__(f"this ledger has schema {found}, this program knows up to {known}", Action.UPGRADE_WEFT)
        self.found, self.known = found, known


class LedgerTooOld(StoreError):
    """An older program wrote this ledger, and it was opened for reading only: its views are not those of this one."""

    code = "ledger_too_old"

    def __init__(self, found: int, known: int) -> None:
        super().__init__(f"this ledger has schema {found}, this program reads {known}", Action.UPGRADE_LEDGER)
        self.found, self.known = found, known


class CopyUnfinished(StoreError):
    """A copy was cut short: this ledger holds the beginning of another one, and nothing of its own."""

    code = "copy_unfinished"

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is a copy that was not finished", Action.REPEAT_COPY)
        self.path = path


class InUse(StoreError):
    """Another program has the ledger open."""

    code = "in_use"

    def __init__(self, path: str, by: str = "") -> None:
        who = f" ({by})" if by else ""
        super().__init__(f"{path} is open in another program{who}", Action.END_OTHER_PROGRAM)
        self.path, self.by = path, by


class LedgerMoved(StoreError):
    """The file under the ledger's name is no longer the one that was opened. Nothing of this append is acknowledged."""

    code = "ledger_moved"

    def __init__(self, path: str, change: str) -> None:
        super().__init__(f"{path} {change} while it was open; the append is not acknowledged", Action.OPEN_WHERE_IT_IS)
        self.path, self.change = path, change


class SeveralNames(StoreError):
    """The file has several names, each of which would have a lock and a write-ahead log of its own."""

    code = "several_names"
    usual_action = Action.KEEP_ONE_NAME

    def __init__(self, path: str, names: int) -> None:
        super().__init__(f"{path} is one of {names} names (hard links) of the same file, and turns would be lost")
        self.path, self.names = path, names


class ReadOnlyLedger(StoreError):
    """The ledger was opened for reading."""

    code = "read_only_ledger"

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is open for reading only", Action.OPEN_FOR_WRITING)


class WeakDurability(StoreError):
    """A commit would not survive a power cut here."""

    code = "weak_durability"
    usual_action = Action.USE_LOCAL_DISK

    def __init__(self, setting: str, wanted: str, found: str, hint: Hint = "") -> None:
        super().__init__(f"the database would not keep its promise: {setting} is {found}, not {wanted}", hint)
        self.setting, self.wanted, self.found = setting, wanted, found


class Unsupported(StoreError):
    """This cannot be done on this platform, file system or backend, and is not pretended."""

    code = "unsupported"
    usual_action = Action.USE_SUPPORTED_PLACE


class ProtocolBroken(StoreError):
    """The other side of a sync said something that has no place there. Nothing of that batch was stored."""

    code = "protocol_broken"
    usual_action = Action.CHECK_PROTOCOL_VERSION


class ConnectionCut(StoreError):
    """The other side of a sync went away."""

    code = "connection_cut"
    usual_action = Action.SYNC_AGAIN


class StoreFailed(StoreError):
    """The engine refused a read or a write (disk full, I/O error). Nothing of this append was stored."""

    code = "store_failed"
    usual_action = Action.FREE_SPACE


class OutcomeUnknown(StoreFailed):
    """The connection died at a commit and the server cannot be asked: the append is there whole or not at all."""

    code = "outcome_unknown"
    usual_action = Action.LOOK_BEFORE_RETRY


class Damaged(StoreError):
    """What is stored is not what was written. Verifying the ledger lists every place."""

    code = "damaged"
    usual_action = Action.EXAMINE_OR_RECOVER


class UnknownObjects(Damaged):
    """The database holds tables, views, indexes or triggers that Weft did not make. It is not opened."""

    code = "unknown_objects"
    usual_action = Action.RESTORE_OR_SALVAGE

    def __init__(self, path: str, objects: Sequence[str], hint: Hint = "") -> None:
        shown = [*objects[:5], *([f"and {len(objects) - 5} more"] if len(objects) > 5 else [])]
        super().__init__(f"{path} holds what Weft did not make: {', '.join(shown)}", hint)
        self.path, self.objects = path, tuple(objects)


class FactDamaged(Damaged):
    """A stored event or content does not match its hash."""

    code = "fact_damaged"

    def __init__(self, what: str, name: str, reason: str) -> None:
        super().__init__(f"{what} {name} is damaged: {reason}")
        self.what, self.name, self.reason = what, name, reason


class ContentMissing(Damaged):
    """The bytes of this content are not here: withheld, erased or lost; its place in the chain still verifies."""

    code = "content_missing"
    usual_action = Action.IMPORT_FACTS_AGAIN

    def __init__(self, ref: str) -> None:
        super().__init__(f"content {ref} is not in this ledger")
        self.ref = ref


class LogCut(Damaged):
    """The database is shorter than, or differs from, what was acknowledged."""

    code = "log_cut"
    usual_action = Action.ACCEPT_LOSS

    def __init__(self, n: int, found: int, reason: str) -> None:
        super().__init__(f"event {n} was acknowledged, but the log {reason} (it ends at {found})")
        self.n, self.found, self.reason = n, found, reason
