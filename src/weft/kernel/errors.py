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
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.kernel.advice import Action, Hint, advice_of
from weft.kernel.hidden_credentials import without_credentials


class WeftError(Exception):
    """The root. `advice` is an action code with arguments, which each surface phrases. A class has a usual action; an
    error may have another, or a sentence for its case alone. Passwords of addresses in its message are hidden."""

    usual_action: Action = Action.OTHER

    def __init__(self, message: str, hint: Hint = "") -> None:
        super().__init__(without_credentials(message))
        self.advice = advice_of(hint, self.usual_action)

    @property
    def action(self) -> Action:
        return self.advice.action

    @property
    def hint(self) -> str:
        """What to do next, for whoever calls the library; it names no command."""
        return self.advice.hint


class InvalidInput(WeftError):
    """A value that cannot be recorded as it is."""

    usual_action = Action.CORRECT_VALUE


class NoCanonicalForm(InvalidInput):
    """RFC 8785 knows no form for this value; `path` says where it sits."""

    usual_action = Action.KEEP_TO_JSON

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


class InvalidJson(InvalidInput):
    usual_action = Action.WRITE_JSON

    def __init__(self, reason: str, offset: int | None = None) -> None:
        super().__init__(f"not valid JSON{'' if offset is None else f' at byte {offset}'}: {reason}")
        self.reason, self.offset = reason, offset


class ContentTooLarge(InvalidInput):
    def __init__(self, limit: int) -> None:
        super().__init__(f"a content holds at most {limit} bytes", Action.REFER_TO_FILE)
        self.limit = limit


class LimitExceeded(InvalidInput):
    """An input that somebody else wrote takes more than is read of it. What was read before stays."""

    def __init__(self, what: str, found: int, limit: int, hint: Hint = "") -> None:
        super().__init__(f"{what}: {found}, where {limit} is the most that is read", hint)
        self.what, self.found, self.limit = what, found, limit


class InvalidFact(InvalidInput):
    """A line of facts that is not what it says it is. Nothing of its batch was stored."""

    usual_action = Action.EXPORT_FACTS_AGAIN

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.where, self.reason = where, reason


class InvalidBundle(InvalidInput):
    """A file that is no bundle, or one that does not prove what it says. Nothing of it was taken in."""

    usual_action = Action.ASK_FOR_BUNDLE_AGAIN

    def __init__(self, reason: str) -> None:
        super().__init__(f"the bundle is refused: {reason}")
        self.reason = reason


class InvalidKey(InvalidInput):
    """A key, or the name of one, that cannot be used. Says nothing of what is in it."""

    usual_action = Action.LIST_KEYS


class InvalidConfig(InvalidInput):
    """A program's configuration that its kind does not take; `path` says where. Several faults are each in `faults`."""

    usual_action = Action.READ_PROGRAM_SETTINGS

    def __init__(self, path: str, reason: str, hint: Hint = "", faults: Sequence[WeftError] = ()) -> None:
        super().__init__(f"{path}: {reason}", hint)
        self.path, self.reason, self.faults = path, reason, tuple(faults)


class VariableMissing(InvalidInput):
    """A configuration names a variable of the environment that is not set."""

    def __init__(self, variable: str, path: str) -> None:
        super().__init__(f"{path} needs the variable {variable}, not set", Action.SET_VARIABLE.of(variable=variable))
        self.variable, self.path = variable, path


class SchemaMismatch(InvalidInput):
    """A value does not fit its JSON Schema; `problems` say where and why."""

    usual_action = Action.CORRECT_VALUE_OR_SCHEMA

    def __init__(self, what: str, problems: Sequence[str]) -> None:
        super().__init__(f"{what} does not fit its schema: {'; '.join(problems[:5])}")
        self.problems = tuple(problems)


class LedgerError(WeftError):
    """The request does not fit the ledger's present state."""

    usual_action = Action.READ_AGAIN


class NotFound(LedgerError):
    usual_action = Action.LIST_HISTORY

    def __init__(self, what: str, name: str, hint: Hint = "") -> None:
        super().__init__(f"no {what} {name!r} in this ledger", hint)
        self.what, self.name = what, name


class ContentGone(LedgerError):
    """These bytes were erased on purpose: a tombstone says by whom, when and why."""

    usual_action = Action.LIST_ERASURES

    def __init__(self, ref: str) -> None:
        super().__init__(f"content {ref} was erased")
        self.ref = ref


class AmbiguousName(LedgerError):
    usual_action = Action.TYPE_MORE_CHARACTERS

    def __init__(self, name: str, candidates: Sequence[str], hint: Hint = "") -> None:
        super().__init__(f"{name!r} could be {', '.join(candidates)}", hint)
        self.name, self.candidates = name, tuple(candidates)


class Conflict(LedgerError):
    """Somebody else was first, or something is in the way."""


class HeadMoved(Conflict):
    """Another writer moved this session first. Read `actual`, decide again, retry."""

    usual_action = Action.READ_SESSION_AGAIN

    def __init__(self, label: str, expected: str | None, actual: str | None) -> None:
        super().__init__(f"session {label!r} is at {actual or 'no turn'}, not {expected or 'no turn'}")
        self.label, self.expected, self.actual = label, expected, actual


class SessionBusy(Conflict):
    """A turn is being recorded in this session by somebody who is alive."""

    usual_action = Action.WAIT_OR_FORK

    def __init__(self, label: str, turn: str, owner: str) -> None:
        super().__init__(f"session {label!r} is recording turn {turn} (held by {owner})")
        self.label, self.turn, self.owner = label, turn, owner


class InboxFull(Conflict):
    """More messages wait than are admitted. Nothing of this one was written; it may be sent again later."""

    usual_action = Action.WAIT_FOR_INBOX


class AgentBusy(Conflict):
    """Somebody else runs this agent: who is alive, or who took it up meanwhile. Nothing of this step was recorded."""

    usual_action = Action.WAIT_OR_RESET_ABANDONED_AGENT

    def __init__(self, name: str, reason: str, *, was_held: bool = False) -> None:
        super().__init__(f"agent {name!r} {reason}")
        self.name, self.reason, self.was_held = name, reason, was_held  # held by us, until somebody took it


class LeaseLost(Conflict):
    """This writer was silent for too long and another one took the session; its turn is failed."""

    usual_action = Action.BEGIN_TURN_AFTER_LOSS

    def __init__(self, turn: str) -> None:
        super().__init__(f"the lease under which turn {turn} was recorded is gone")
        self.turn = turn


class ErasureChanged(Conflict):
    """Somebody wrote about the same things after the erasure was planned; what would go or stay is different now."""

    usual_action = Action.PLAN_ERASURE_AGAIN


class LabelTaken(Conflict):
    def __init__(self, label: str, by: str) -> None:
        super().__init__(f"the name {label!r} is already {by}", Action.CHOOSE_ANOTHER_NAME)
        self.label, self.by = label, by


class KeyTaken(Conflict):
    """A key stands for one command; it was given with another before."""

    usual_action = Action.REPEAT_COMMAND_OR_CHANGE_KEY

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {key!r:.80} was used for something else")
        self.key = key


class TurnClosed(Conflict):
    """A step was recorded into a turn that has ended."""

    def __init__(self, turn: str, status: str) -> None:
        super().__init__(f"turn {turn} is {status}; it takes no more steps", Action.BEGIN_TURN)
        self.turn, self.status = turn, status


class IdCollision(Conflict):
    """A fresh id was already taken (equal randomness in the same millisecond); the ledger mints another and retries."""

    usual_action = Action.TRY_AGAIN_WITH_NEW_ID


class ReplicaDiverged(Conflict):
    """Two ledgers go by one replica id and say different things under it."""

    usual_action = Action.RENEW_BOTH_REPLICAS
    is_told = False
    """The other side of a sync said so: what is remembered of it here is not what it said."""


class NotApplicable(LedgerError):
    """The parts exist but do not fit together, such as a compaction of another thread."""

    usual_action = Action.COMPARE_BOTH


class WithheldShows(NotApplicable):
    """Words of a text that was to be withheld stand in what would be disclosed."""

    usual_action = Action.WITHHOLD_MORE_OR_FORCE

    def __init__(self, places: Sequence[str], more: int = 0) -> None:
        rest = f" and in {more} more places" if more else ""
        super().__init__(f"withheld words also stand in {'; '.join(places)}{rest}")
        self.places = tuple(places)


class IllegalTransition(NotApplicable):
    """A program's lifecycle knows no such step from where it stands; `legal` are those it knows."""

    def __init__(self, what: str, name: str, state: str, verb: str, legal: Mapping[str, str]) -> None:
        ways = ", ".join(f"{way} (to {to})" for way, to in legal.items())
        advice = Action.USE_LEGAL_STEP.of(steps=ways) if ways else Action.NOTHING_FOLLOWS
        super().__init__(f"{what} {name!r} is {state}: it cannot {verb} from there", advice)
        self.what, self.name, self.state, self.verb, self.legal = what, name, state, verb, dict(legal)


class CriteriaUnmet(NotApplicable):
    """Success criteria of a task do not hold; what was observed is recorded. `failed` are their places from 0."""

    usual_action = Action.COMPLETE_WHAT_IS_MISSING

    def __init__(self, name: str, failed: Sequence[int], told: Sequence[str]) -> None:
        super().__init__(f"task {name!r} cannot complete: {'; '.join(told)}")
        self.name, self.failed, self.told = name, tuple(failed), tuple(told)


class NotAllowed(LedgerError):
    """Whoever acts, or somebody on whose behalf they act, lacks this right. `chain` begins with who acts."""

    usual_action = Action.HAVE_RIGHT_GIVEN

    def __init__(self, right: str, chain: Sequence[str], what: str = "", hint: Hint = "") -> None:
        super().__init__(f"{' for '.join(chain)} may not {what or f'use {right!r}'}", hint)
        self.right, self.chain = right, tuple(chain)


class TokenRefused(LedgerError):
    usual_action = Action.GET_TOKEN


class NotTrusted(LedgerError):
    """The ledger was neither made nor allowed by the person who opened it, so nothing in it acts."""

    def __init__(self, path: str, action: str, why: str, hint: Hint) -> None:
        super().__init__(f"{path} is not trusted ({why}), so it may not {action}", hint)
        self.path, self.why = path, why


class VersionConflict(Conflict):
    """Somebody else changed this program first. Read it again, decide again, retry."""

    usual_action = Action.READ_PROGRAM_AGAIN

    def __init__(self, name: str, expected: int, actual: int) -> None:
        super().__init__(f"program {name!r} is at version {actual}, not {expected}")
        self.name, self.expected, self.actual = name, expected, actual


class PeerRefused(LedgerError):
    """The other ledger refused what it was sent or asked for. Nothing of it was stored there."""

    usual_action = Action.MEND_OTHER_LEDGER

    def __init__(self, error: str, message: str, hint: Hint = "") -> None:
        super().__init__(f"the other side refuses: {message}", hint)
        self.error = error


class StoreError(WeftError):
    """The machine, the file or its permissions are in the way."""

    usual_action = Action.EXAMINE_LEDGER


class NotALedger(StoreError):
    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} is not a Weft ledger: {reason}", Action.CREATE_LEDGER_ELSEWHERE)
        self.path, self.reason = path, reason


class LedgerMissing(StoreError):
    def __init__(self, path: str, hint: Hint = Action.CREATE_OR_NAME_LEDGER) -> None:
        super().__init__(f"there is no ledger at {path}", hint)
        self.path = path


class LedgerTooNew(StoreError):
    """A newer program wrote this ledger; this one would not understand it and touches nothing."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(f"this ledger has schema {found}, this program knows up to {known}", Action.UPGRADE_WEFT)
        self.found, self.known = found, known


class LedgerTooOld(StoreError):
    """An older program wrote this ledger, and it was opened for reading only: its views are not those of this one."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(f"this ledger has schema {found}, this program reads {known}", Action.UPGRADE_LEDGER)
        self.found, self.known = found, known


class CopyUnfinished(StoreError):
    """A copy was cut short: this ledger holds the beginning of another one, and nothing of its own."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is a copy that was not finished", Action.REPEAT_COPY)
        self.path = path


class InUse(StoreError):
    """Another program has the ledger open."""

    def __init__(self, path: str, by: str = "") -> None:
        who = f" ({by})" if by else ""
        super().__init__(f"{path} is open in another program{who}", Action.END_OTHER_PROGRAM)
        self.path, self.by = path, by


class LedgerMoved(StoreError):
    """The file under the ledger's name is no longer the one that was opened. Nothing of this append is acknowledged."""

    def __init__(self, path: str, change: str) -> None:
        super().__init__(f"{path} {change} while it was open; the append is not acknowledged", Action.OPEN_WHERE_IT_IS)
        self.path, self.change = path, change


class SeveralNames(StoreError):
    """The file has several names, each of which would have a lock and a write-ahead log of its own."""

    usual_action = Action.KEEP_ONE_NAME

    def __init__(self, path: str, names: int) -> None:
        super().__init__(f"{path} is one of {names} names (hard links) of the same file, and turns would be lost")
        self.path, self.names = path, names


class ReadOnlyLedger(StoreError):
    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is open for reading only", Action.OPEN_FOR_WRITING)


class WeakDurability(StoreError):
    usual_action = Action.USE_LOCAL_DISK

    def __init__(self, setting: str, wanted: str, found: str, hint: Hint = "") -> None:
        super().__init__(f"the database would not keep its promise: {setting} is {found}, not {wanted}", hint)
        self.setting, self.wanted, self.found = setting, wanted, found


class Unsupported(StoreError):
    """This cannot be done on this platform, file system or backend, and is not pretended."""

    usual_action = Action.USE_SUPPORTED_PLACE


class ProtocolBroken(StoreError):
    """The other side of a sync said something that has no place there. Nothing of that batch was stored."""

    usual_action = Action.CHECK_PROTOCOL_VERSION


class ConnectionCut(StoreError):
    """The other side of a sync went away."""

    usual_action = Action.SYNC_AGAIN


class StoreFailed(StoreError):
    """The engine refused a read or a write (disk full, I/O error). Nothing of this append was stored."""

    usual_action = Action.FREE_SPACE


class OutcomeUnknown(StoreFailed):
    """The connection died at a commit and the server cannot be asked: the append is there whole or not at all."""

    usual_action = Action.LOOK_BEFORE_RETRY


class Damaged(StoreError):
    """What is stored is not what was written. Verifying the ledger lists every place."""

    usual_action = Action.EXAMINE_OR_RECOVER


class UnknownObjects(Damaged):
    """The database holds tables, views, indexes or triggers that Weft did not make. It is not opened."""

    usual_action = Action.RESTORE_OR_SALVAGE

    def __init__(self, path: str, objects: Sequence[str], hint: Hint = "") -> None:
        shown = [*objects[:5], *([f"and {len(objects) - 5} more"] if len(objects) > 5 else [])]
        super().__init__(f"{path} holds what Weft did not make: {', '.join(shown)}", hint)
        self.path, self.objects = path, tuple(objects)


class FactDamaged(Damaged):
    def __init__(self, what: str, name: str, reason: str) -> None:
        super().__init__(f"{what} {name} is damaged: {reason}")
        self.what, self.name, self.reason = what, name, reason


class ContentMissing(Damaged):
    """The bytes of this content are not here: withheld, erased or lost; its place in the chain still verifies."""

    usual_action = Action.IMPORT_FACTS_AGAIN

    def __init__(self, ref: str) -> None:
        super().__init__(f"content {ref} is not in this ledger")
        self.ref = ref


class LogCut(Damaged):
    """The database is shorter than, or differs from, what was acknowledged."""

    usual_action = Action.ACCEPT_LOSS

    def __init__(self, n: int, found: int, reason: str) -> None:
        super().__init__(f"event {n} was acknowledged, but the log {reason} (it ends at {found})")
        self.n, self.found, self.reason = n, found, reason


class OutsideError(WeftError):
    """A key, a server or a model was asked for and not had. `acts` says who must act: you, the provider, or us."""

    acts: str = "you"
    usual_action = Action.CORRECT_REQUEST
    status: int | None = None
    request_id: str | None = None
    retry_after: float | None = None
    lasting: bool = False
    """Whether it is known that asking again would fail likewise."""
    partial: str = ""
    """What had come of a reply until then."""


class CredentialMissing(OutsideError):
    """There is no such credential, or nothing is found where it should lie."""

    usual_action = Action.LIST_CREDENTIALS

    def __init__(self, name: str, reason: str, hint: Hint = "") -> None:
        super().__init__(f"credential {name!r}: {reason}", hint)
        self.name, self.reason = name, reason


class CredentialWithheld(OutsideError):
    """It exists, and whoever acts must not have it: it was not given to them, or belongs to another origin."""

    usual_action = Action.GIVE_CREDENTIAL

    def __init__(self, name: str, reason: str, hint: Hint = "") -> None:
        super().__init__(f"credential {name!r} is withheld: {reason}", hint)
        self.name, self.reason = name, reason


class CodeFailed(OutsideError):
    """A code program ended with an error of its own, or ran into a limit."""

    usual_action = Action.CORRECT_CODE

    def __init__(self, name: str, error: str, printed: str = "") -> None:
        super().__init__(f"code {name!r}: {error}")
        self.name, self.error, self.printed = name, error, printed


class CheckFailed(OutsideError):
    """A command that was to judge something gave no judgement: it took too long, printed too much, or broke off."""


class ConnectionForbidden(OutsideError):
    """The guard of outgoing connections refused it: another origin, no TLS, or an address that must not be reached."""

    usual_action = Action.NAME_SERVER_URL


class RequestRefused(OutsideError):
    """The provider refused the request as it is."""

    usual_action = Action.CORRECT_MODEL_REQUEST


class CredentialRefused(RequestRefused):
    usual_action = Action.CHECK_CREDENTIAL


class ModelUnknown(RequestRefused):
    usual_action = Action.CHECK_MODEL_NAME


class ContextTooLong(RequestRefused):
    usual_action = Action.COMPACT_SESSION


class BudgetSpent(OutsideError):
    """The time or the money for this request is used up."""

    usual_action = Action.ALLOW_MORE


class ProviderFailed(OutsideError):
    acts = "the provider"
    usual_action = Action.TRY_LATER


class RateLimited(ProviderFailed):
    usual_action = Action.ASK_LESS_OFTEN


class ProviderUnreachable(ProviderFailed):
    usual_action = Action.CHECK_NETWORK


class ReplyMalformed(ProviderFailed):
    """What came is no reply of this provider's kind."""


class ReplyCut(ProviderFailed):
    """The reply ended before its end. `partial` is what had come."""


class InferenceFault(OutsideError):
    """Something broke on our side of the connection."""

    acts = "us"
    usual_action = Action.REPORT_FAULT
