"""Every refusal of Weft, as one tree; the branches say who must act.

WeftError
├── InvalidInput        the caller passed something that has no single form: mend the value
├── LedgerError         the request does not fit the ledger's state: read again and decide
│   ├── NotFound
│   ├── NotApplicable   the parts do not fit together, or not at this moment
│   └── Conflict        somebody else was first, or something is in the way
├── StoreError          the machine or the file is in the way: mend the environment
│   ├── StoreFailed     the engine refused a read or a write: nothing of it was stored, or nobody knows
│   └── Damaged         what is stored is not what was written: restore or recover
└── OutsideError        something outside was asked for and not had; `acts` says who must act
    ├── RequestRefused  you: a provider refused the request as it is
    └── ProviderFailed  the provider: it failed, was not reached, or answered with nonsense

The errors of the store and those of what is outside are defined beside it; all of them are imported from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.kernel.advice import Action, Hint
from weft.kernel.engine_errors import EngineObjectMissing as EngineObjectMissing
from weft.kernel.engine_errors import EngineRefused as EngineRefused
from weft.kernel.engine_errors import EngineUnreachable as EngineUnreachable
from weft.kernel.outside_errors import BudgetSpent as BudgetSpent
from weft.kernel.outside_errors import CheckFailed as CheckFailed
from weft.kernel.outside_errors import CodeFailed as CodeFailed
from weft.kernel.outside_errors import ConnectionForbidden as ConnectionForbidden
from weft.kernel.outside_errors import ContextTooLong as ContextTooLong
from weft.kernel.outside_errors import CredentialMissing as CredentialMissing
from weft.kernel.outside_errors import CredentialRefused as CredentialRefused
from weft.kernel.outside_errors import CredentialWithheld as CredentialWithheld
from weft.kernel.outside_errors import InferenceFault as InferenceFault
from weft.kernel.outside_errors import ModelUnknown as ModelUnknown
from weft.kernel.outside_errors import OutsideError as OutsideError
from weft.kernel.outside_errors import ProviderFailed as ProviderFailed
from weft.kernel.outside_errors import ProviderUnreachable as ProviderUnreachable
from weft.kernel.outside_errors import RateLimited as RateLimited
from weft.kernel.outside_errors import ReplyCut as ReplyCut
from weft.kernel.outside_errors import ReplyMalformed as ReplyMalformed
from weft.kernel.outside_errors import RequestRefused as RequestRefused
from weft.kernel.store_errors import ConnectionCut as ConnectionCut
from weft.kernel.store_errors import ContentMissing as ContentMissing
from weft.kernel.store_errors import CopyUnfinished as CopyUnfinished
from weft.kernel.store_errors import Damaged as Damaged
from weft.kernel.store_errors import FactDamaged as FactDamaged
from weft.kernel.store_errors import InUse as InUse
from weft.kernel.store_errors import LedgerMissing as LedgerMissing
from weft.kernel.store_errors import LedgerMoved as LedgerMoved
from weft.kernel.store_errors import LedgerTooNew as LedgerTooNew
from weft.kernel.store_errors import LedgerTooOld as LedgerTooOld
from weft.kernel.store_errors import LogCut as LogCut
from weft.kernel.store_errors import NotALedger as NotALedger
from weft.kernel.store_errors import OutcomeUnknown as OutcomeUnknown
from weft.kernel.store_errors import ProtocolBroken as ProtocolBroken
from weft.kernel.store_errors import ReadOnlyLedger as ReadOnlyLedger
from weft.kernel.store_errors import SeveralNames as SeveralNames
from weft.kernel.store_errors import StoreError as StoreError
from weft.kernel.store_errors import StoreFailed as StoreFailed
from weft.kernel.store_errors import UnknownObjects as UnknownObjects
from weft.kernel.store_errors import Unsupported as Unsupported
from weft.kernel.store_errors import WeakDurability as WeakDurability
from weft.kernel.weft_error import WeftError as WeftError
from weft.kernel.weft_error import quoted


class InvalidInput(WeftError):
    """A value that cannot be recorded as it is."""

    code = "invalid_input"
    usual_action = Action.CORRECT_VALUE


class ArchiveRefused(InvalidInput):
    """An archive of a volume or an image that holds what must not be unpacked. Nothing of it was."""

    code = "archive_refused"
    usual_action = Action.TAKE_ANOTHER_ARCHIVE

    def __init__(self, reason: str, hint: Hint = "") -> None:
        super().__init__(f"the archive is refused: {reason}", hint)
        self.reason = reason


class NoCanonicalForm(InvalidInput):
    """RFC 8785 knows no form for this value; `path` says where it sits."""

    code = "no_canonical_form"
    usual_action = Action.KEEP_TO_JSON

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


class InvalidJson(InvalidInput):
    """A text that should be JSON is not."""

    code = "invalid_json"
    usual_action = Action.WRITE_JSON

    def __init__(self, reason: str, offset: int | None = None) -> None:
        super().__init__(f"not valid JSON{'' if offset is None else f' at byte {offset}'}: {reason}")
        self.reason, self.offset = reason, offset


class ContentTooLarge(InvalidInput):
    """A content has more than 256 MiB."""

    code = "content_too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"a content holds at most {limit} bytes", Action.REFER_TO_FILE)
        self.limit = limit


class LimitExceeded(InvalidInput):
    """An input that somebody else wrote takes more than is read of it. What was read before stays."""

    code = "limit_exceeded"

    def __init__(self, what: str, found: int, limit: int, hint: Hint = "") -> None:
        super().__init__(f"{what}: {found}, where {limit} is the most that is read", hint)
        self.what, self.found, self.limit = what, found, limit


class InvalidFact(InvalidInput):
    """A line of facts that is not what it says it is. Nothing of its batch was stored."""

    code = "invalid_fact"
    usual_action = Action.EXPORT_FACTS_AGAIN

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.where, self.reason = where, reason


class InvalidBundle(InvalidInput):
    """A file that is no bundle, or one that does not prove what it says. Nothing of it was taken in."""

    code = "invalid_bundle"
    usual_action = Action.ASK_FOR_BUNDLE_AGAIN

    def __init__(self, reason: str) -> None:
        super().__init__(f"the bundle is refused: {reason}")
        self.reason = reason


class InvalidKey(InvalidInput):
    """A key, or the name of one, that cannot be used. Says nothing of what is in it."""

    code = "invalid_key"
    usual_action = Action.LIST_KEYS


class InvalidConfig(InvalidInput):
    """A program's configuration that its kind does not take; `path` says where. Several faults are each in `faults`."""

    code = "invalid_config"
    usual_action = Action.READ_PROGRAM_SETTINGS

    def __init__(self, path: str, reason: str, hint: Hint = "", faults: Sequence[WeftError] = ()) -> None:
        super().__init__(f"{path}: {reason}", hint)
        self.path, self.reason, self.faults = path, reason, tuple(faults)


class VariableMissing(InvalidInput):
    """A configuration names a variable of the environment that is not set."""

    code = "variable_missing"

    def __init__(self, variable: str, path: str) -> None:
        super().__init__(f"{path} needs the variable {variable}, not set", Action.SET_VARIABLE.of(variable=variable))
        self.variable, self.path = variable, path


class SchemaMismatch(InvalidInput):
    """A value does not fit its JSON Schema; `problems` say where and why."""

    code = "schema_mismatch"
    usual_action = Action.CORRECT_VALUE_OR_SCHEMA

    def __init__(self, what: str, problems: Sequence[str]) -> None:
        super().__init__(f"{what} does not fit its schema: {'; '.join(problems[:5])}")
        self.problems = tuple(problems)


class LedgerError(WeftError):
    """The request does not fit the ledger's present state."""

    code = "ledger_error"
    usual_action = Action.READ_AGAIN


class NotFound(LedgerError):
    """Nothing has this name; without a name, there is nothing of this kind at all."""

    code = "not_found"
    usual_action = Action.LIST_HISTORY

    def __init__(self, what: str, name: str | None, hint: Hint = "") -> None:
        message = f"this ledger has no {what}" if name is None else f"no {what} {name!r} in this ledger"
        super().__init__(message, hint)
        self.what, self.name = what, name


class ContentGone(LedgerError):
    """These bytes were erased on purpose: a tombstone says by whom, when and why."""

    code = "content_gone"
    usual_action = Action.LIST_ERASURES

    def __init__(self, ref: str) -> None:
        super().__init__(f"content {ref} was erased")
        self.ref = ref


class FilesElsewhere(LedgerError):
    """A snapshot is known here, and what it holds is not: facts travel between ledgers, files do not."""

    code = "files_elsewhere"

    def __init__(self, snapshot: str, where: str, hint: Hint) -> None:
        super().__init__(f"the files of snapshot {snapshot} are not here: {where}", hint)
        self.snapshot, self.where = snapshot, where


class AmbiguousName(LedgerError):
    """A name fits several things; it lists them."""

    code = "ambiguous_name"
    usual_action = Action.TYPE_MORE_CHARACTERS

    def __init__(self, name: str, candidates: Sequence[str], hint: Hint = "") -> None:
        super().__init__(f"{name!r} could be {', '.join(candidates)}", hint)
        self.name, self.candidates = name, tuple(candidates)


class Conflict(LedgerError):
    """Somebody else was first, or something is in the way."""

    code = "conflict"


class HeadMoved(Conflict):
    """Another writer moved this session first. Read `actual`, decide again, retry."""

    code = "head_moved"
    usual_action = Action.READ_SESSION_AGAIN

    def __init__(self, label: str, expected: str | None, actual: str | None) -> None:
        super().__init__(f"session {label!r} is at {actual or 'no turn'}, not {expected or 'no turn'}")
        self.label, self.expected, self.actual = label, expected, actual


class SessionBusy(Conflict):
    """A turn is being recorded in this session, or about to begin there, by somebody who is alive."""

    code = "session_busy"
    usual_action = Action.WAIT_OR_FORK

    def __init__(self, label: str, turn: str, owner: str, hint: Hint = "") -> None:
        what = f"is recording turn {turn} (held by {owner})" if turn else f"is held by {owner}"
        super().__init__(f"session {label!r} {what}", hint)
        self.label, self.turn, self.owner = label, turn, owner


class InboxFull(Conflict):
    """More messages wait than are admitted. Nothing of this one was written; it may be sent again later."""

    code = "inbox_full"
    usual_action = Action.WAIT_FOR_INBOX


class AgentBusy(Conflict):
    """Somebody else runs this agent: who is alive, or who took it up meanwhile. Nothing of this step was recorded."""

    code = "agent_busy"
    usual_action = Action.WAIT_OR_RESET_ABANDONED_AGENT

    def __init__(self, name: str, reason: str, *, was_held: bool = False) -> None:
        super().__init__(f"agent {name!r} {reason}")
        self.name, self.reason, self.was_held = name, reason, was_held  # held by us, until somebody took it


class LeaseLost(Conflict):
    """This writer was silent for too long and another one took the session; its turn is failed."""

    code = "lease_lost"
    usual_action = Action.BEGIN_TURN_AFTER_LOSS

    def __init__(self, turn: str) -> None:
        super().__init__(f"the lease under which turn {turn} was recorded is gone")
        self.turn = turn


class ErasureChanged(Conflict):
    """Somebody wrote about the same things after the erasure was planned; what would go or stay is different now."""

    code = "erasure_changed"
    usual_action = Action.PLAN_ERASURE_AGAIN


class LabelTaken(Conflict):
    """A label or name belongs to something else."""

    code = "label_taken"

    def __init__(self, label: str, by: str) -> None:
        super().__init__(f"the name {label!r} is already {by}", Action.CHOOSE_ANOTHER_NAME)
        self.label, self.by = label, by


class KeyTaken(Conflict):
    """A key stands for one command; it was given with another before."""

    code = "key_taken"
    usual_action = Action.REPEAT_COMMAND_OR_CHANGE_KEY

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {quoted(key)} was used for something else")
        self.key = key


class TurnClosed(Conflict):
    """A step was recorded into a turn that has ended."""

    code = "turn_closed"

    def __init__(self, turn: str, status: str) -> None:
        super().__init__(f"turn {turn} is {status}; it takes no more steps", Action.BEGIN_TURN)
        self.turn, self.status = turn, status


class IdCollision(Conflict):
    """A fresh id was already taken (equal randomness in the same millisecond); the ledger mints another and retries."""

    code = "id_collision"
    usual_action = Action.TRY_AGAIN_WITH_NEW_ID


class ReplicaDiverged(Conflict):
    """Two ledgers go by one replica id and say different things under it."""

    code = "replica_diverged"
    usual_action = Action.RENEW_BOTH_REPLICAS
    is_from_peer = False
    """The other side of a sync said so: what is remembered of it here is not what it said."""


class NotApplicable(LedgerError):
    """The parts exist but do not fit together, such as a compaction of another thread."""

    code = "not_applicable"
    usual_action = Action.COMPARE_BOTH


class WithheldShows(NotApplicable):
    """Words of a text that was to be withheld stand in what would be disclosed."""

    code = "withheld_shows"
    usual_action = Action.WITHHOLD_MORE_OR_FORCE

    def __init__(self, places: Sequence[str], more: int = 0) -> None:
        rest = f" and in {more} more places" if more else ""
        super().__init__(f"withheld words also stand in {'; '.join(places)}{rest}")
        self.places = tuple(places)


class IllegalTransition(NotApplicable):
    """A program's lifecycle knows no such step from where it stands; `legal` are those it knows."""

    code = "illegal_transition"

    def __init__(self, what: str, name: str, state: str, verb: str, legal: Mapping[str, str]) -> None:
        ways = ", ".join(f"{way} (to {to})" for way, to in legal.items())
        advice = Action.USE_LEGAL_STEP.of(steps=ways) if ways else Action.NOTHING_FOLLOWS
        super().__init__(f"{what} {name!r} is {state}: it cannot {verb} from there", advice)
        self.what, self.name, self.state, self.verb, self.legal = what, name, state, verb, dict(legal)


class CriteriaUnmet(NotApplicable):
    """Success criteria of a task do not hold; what was observed is recorded. `failed` are their places from 0."""

    code = "criteria_unmet"
    usual_action = Action.COMPLETE_WHAT_IS_MISSING

    def __init__(self, name: str, failed: Sequence[int], reasons: Sequence[str]) -> None:
        super().__init__(f"task {name!r} cannot complete: {'; '.join(reasons)}")
        self.name, self.failed, self.reasons = name, tuple(failed), tuple(reasons)


class NotAllowed(LedgerError):
    """Whoever acts, or somebody on whose behalf they act, lacks this right. `chain` begins with who acts."""

    code = "not_allowed"
    usual_action = Action.HAVE_RIGHT_GIVEN

    def __init__(self, right: str, chain: Sequence[str], what: str = "", hint: Hint = "") -> None:
        super().__init__(f"{' for '.join(chain)} may not {what or f'use {right!r}'}", hint)
        self.right, self.chain = right, tuple(chain)


class TokenRefused(LedgerError):
    """A token that nobody can act with."""

    code = "token_refused"
    usual_action = Action.GET_TOKEN


class NotTrusted(LedgerError):
    """The ledger was neither made nor allowed by the person who opened it, so nothing in it acts."""

    code = "not_trusted"

    def __init__(self, path: str, action: str, why: str, hint: Hint) -> None:
        super().__init__(f"{path} is not trusted ({why}), so it may not {action}", hint)
        self.path, self.why = path, why


class VersionConflict(Conflict):
    """Somebody else changed this program first. Read it again, decide again, retry."""

    code = "version_conflict"
    usual_action = Action.READ_PROGRAM_AGAIN

    def __init__(self, name: str, expected: int, actual: int) -> None:
        super().__init__(f"program {name!r} is at version {actual}, not {expected}")
        self.name, self.expected, self.actual = name, expected, actual


class PeerRefused(LedgerError):
    """The other ledger refused what it was sent or asked for. Nothing of it was stored there."""

    code = "peer_refused"
    usual_action = Action.MEND_OTHER_LEDGER

    def __init__(self, error: str, message: str, hint: Hint = "") -> None:
        super().__init__(f"the other side refuses: {message}", hint)
        self.error = error
