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


class WeftError(Exception):
    """The root. `hint` says what to do next and is shown after the message."""

    hint: str = ""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        if hint:
            self.hint = hint


class InvalidInput(WeftError):
    """A value that cannot be recorded as it is."""

    hint = "mend the value and try again; nothing was recorded"


class NoCanonicalForm(InvalidInput):
    """RFC 8785 knows no form for this value; `path` says where it sits."""

    hint = "keep to JSON: finite numbers, text without lone surrogates, names that are text, no value inside itself"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


class InvalidJson(InvalidInput):
    hint = "write it as one JSON value in UTF-8"

    def __init__(self, reason: str, offset: int | None = None) -> None:
        where = "" if offset is None else f" at byte {offset}"
        super().__init__(f"not valid JSON{where}: {reason}")
        self.reason, self.offset = reason, offset


class ContentTooLarge(InvalidInput):
    hint = "keep it as a file beside the ledger and record a reference to it"

    def __init__(self, limit: int) -> None:
        super().__init__(f"a content holds at most {limit} bytes")
        self.limit = limit


class InvalidFact(InvalidInput):
    """A line of facts that is not what it says it is. Nothing of its batch was stored."""

    hint = "export the facts again from where they come; what came before this batch stays"

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.where, self.reason = where, reason


class InvalidBundle(InvalidInput):
    """A file that is no bundle, or one that does not prove what it says. Nothing of it was taken in."""

    hint = "ask for it again; what it says cannot be relied upon"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the bundle is refused: {reason}")
        self.reason = reason


class InvalidKey(InvalidInput):
    """A key, or the name of one, that cannot be used. Says nothing of what is in it."""

    hint = "`weft key list` shows the keys that there are"


class InvalidConfig(InvalidInput):
    """A program's configuration that its kind does not take; `path` says where."""

    hint = "docs/programs.md says what each kind of program is configured by"

    def __init__(self, path: str, reason: str, hint: str = "") -> None:
        super().__init__(f"{path}: {reason}", hint)
        self.path, self.reason = path, reason


class VariableMissing(InvalidInput):
    """A configuration names a variable of the environment that is not set."""

    def __init__(self, variable: str, path: str) -> None:
        super().__init__(f"{path} needs the variable {variable}, which is not set", f"set {variable} and try again")
        self.variable, self.path = variable, path


class SchemaMismatch(InvalidInput):
    """A value does not fit its JSON Schema; `problems` say where and why."""

    hint = "mend the value, or the schema"

    def __init__(self, what: str, problems: Sequence[str]) -> None:
        super().__init__(f"{what} does not fit its schema: {'; '.join(problems[:5])}")
        self.problems = tuple(problems)


class LedgerError(WeftError):
    """The request does not fit the ledger's present state."""

    hint = "read the ledger again and decide anew"


class NotFound(LedgerError):
    hint = "`weft sessions` and `weft log` list what there is"

    def __init__(self, what: str, name: str, hint: str = "") -> None:
        super().__init__(f"no {what} {name!r} in this ledger", hint)
        self.what, self.name = what, name


class ContentGone(LedgerError):
    """These bytes were erased on purpose: a tombstone says by whom, when and why."""

    hint = "`weft erase --list` shows who erased what, when and why"

    def __init__(self, ref: str) -> None:
        super().__init__(f"content {ref} was erased")
        self.ref = ref


class AmbiguousName(LedgerError):
    hint = "type more characters of the id"

    def __init__(self, name: str, candidates: Sequence[str]) -> None:
        super().__init__(f"{name!r} could be {', '.join(candidates)}")
        self.name, self.candidates = name, tuple(candidates)


class Conflict(LedgerError):
    """Somebody else was first, or something is in the way."""


class HeadMoved(Conflict):
    """Another writer moved this session first. Read `actual`, decide again, retry."""

    hint = "read the session again and decide with its new head"

    def __init__(self, label: str, expected: str | None, actual: str | None) -> None:
        super().__init__(f"session {label!r} is at {actual or 'no turn'}, not {expected or 'no turn'}")
        self.label, self.expected, self.actual = label, expected, actual


class SessionBusy(Conflict):
    """A turn is being recorded in this session by somebody who is alive."""

    hint = "wait for that turn to finish, or fork the session and go on there"

    def __init__(self, label: str, turn: str, owner: str) -> None:
        super().__init__(f"session {label!r} is recording turn {turn} (held by {owner})")
        self.label, self.turn, self.owner = label, turn, owner


class AgentBusy(Conflict):
    """Somebody else runs this agent: who is alive, or who took it up meanwhile. Nothing of this step was recorded."""

    hint = "wait until it is done; if nobody is at it any more, `weft agent reset` lets it go"

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"agent {name!r} {reason}")
        self.name, self.reason = name, reason


class LeaseLost(Conflict):
    """This writer was silent for too long and another one took the session; its turn is failed."""

    hint = "begin a new turn; what was recorded until then is kept in the failed one"

    def __init__(self, turn: str) -> None:
        super().__init__(f"the lease under which turn {turn} was recorded is gone")
        self.turn = turn


class ErasureChanged(Conflict):
    """Somebody wrote about the same things after the erasure was planned; what would go or stay is different now."""

    hint = "plan it again and look at what would go"

    def __init__(self) -> None:
        super().__init__("what was planned to be erased has changed since")


class LabelTaken(Conflict):
    def __init__(self, label: str, by: str) -> None:
        super().__init__(f"the name {label!r} is already {by}", "choose another name")
        self.label, self.by = label, by


class KeyTaken(Conflict):
    """A key stands for one command; it was given with another before."""

    hint = "give another key, or repeat the command that it was first given with"

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {key!r:.80} was used for something else")
        self.key = key


class TurnClosed(Conflict):
    """A step was recorded into a turn that has ended."""

    def __init__(self, turn: str, status: str) -> None:
        super().__init__(f"turn {turn} is {status}; it takes no more steps", "begin a new turn")
        self.turn, self.status = turn, status


class IdCollision(Conflict):
    """A fresh id was already taken (equal randomness in the same millisecond); the ledger mints another and retries."""

    hint = "try again; should it stay so, give the ledger better randomness"


class ReplicaDiverged(Conflict):
    """Two ledgers go by one replica id and say different things under it."""

    hint = "one of them is a copy made behind Weft's back: run `weft replica --new` in both, then sync again"


class NotApplicable(LedgerError):
    """The parts exist but do not fit together, such as a compaction of another thread."""

    hint = "look at both with `weft show`, and name others"


class WithheldShows(NotApplicable):
    """Words of a text that was to be withheld stand in what would be disclosed."""

    hint = "withhold those places too, or say --force"

    def __init__(self, places: Sequence[str], more: int = 0) -> None:
        rest = f" and in {more} more places" if more else ""
        super().__init__(f"withheld words also stand in {'; '.join(places)}{rest}")
        self.places = tuple(places)


class IllegalTransition(NotApplicable):
    """A program's lifecycle knows no such step from where it stands; `legal` are those it knows."""

    def __init__(self, what: str, name: str, state: str, verb: str, legal: Mapping[str, str]) -> None:
        ways = ", ".join(f"{way} (to {to})" for way, to in legal.items())
        super().__init__(
            f"{what} {name!r} is {state}: it cannot {verb} from there",
            f"it can {ways}" if ways else "nothing follows it",
        )
        self.what, self.name, self.state, self.verb, self.legal = what, name, state, verb, dict(legal)


class CriteriaUnmet(NotApplicable):
    """Success criteria of a task do not hold; what was observed is recorded. `failed` are their places from 0."""

    hint = "see to what is missing, then complete it again"

    def __init__(self, name: str, failed: Sequence[int], told: Sequence[str]) -> None:
        super().__init__(f"task {name!r} cannot complete: {'; '.join(told)}")
        self.name, self.failed, self.told = name, tuple(failed), tuple(told)


class NotAllowed(LedgerError):
    """Whoever acts does not have this right, or somebody on whose behalf they act does not. `chain` begins with who
    acts; `what` says what they would have done."""

    hint = "ask somebody who has the right, or have it given to every one in the chain"

    def __init__(self, right: str, chain: Sequence[str], what: str = "", hint: str = "") -> None:
        super().__init__(f"{' for '.join(chain)} may not {what or f'use {right!r}'}", hint)
        self.right, self.chain = right, tuple(chain)


class VersionConflict(Conflict):
    """Somebody else changed this program first. Read it again, decide again, retry."""

    hint = "read the program again and decide with its new configuration"

    def __init__(self, name: str, expected: int, actual: int) -> None:
        super().__init__(f"program {name!r} is at version {actual}, not {expected}")
        self.name, self.expected, self.actual = name, expected, actual


class PeerRefused(LedgerError):
    """The other ledger refused what it was sent or asked for. Nothing of it was stored there."""

    hint = "mend it there, then sync again"

    def __init__(self, error: str, message: str, hint: str = "") -> None:
        super().__init__(f"the other side refuses: {message}", hint)
        self.error = error


class StoreError(WeftError):
    """The machine, the file or its permissions are in the way."""

    hint = "`weft doctor` explains what is wrong and what to do"


class NotALedger(StoreError):
    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} is not a Weft ledger: {reason}", "name another place; `weft init` makes a ledger")
        self.path, self.reason = path, reason


class LedgerMissing(StoreError):
    def __init__(self, path: str) -> None:
        super().__init__(f"there is no ledger at {path}", "make one with `weft init`, or name another with --ledger")
        self.path = path


class LedgerTooNew(StoreError):
    """A newer program wrote this ledger; this one would not understand it and touches nothing."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(
            f"this ledger has schema {found}, this program knows up to {known}", "upgrade weft, then open it again"
        )
        self.found, self.known = found, known


class CopyUnfinished(StoreError):
    """A copy was cut short: this ledger holds the beginning of another one, and nothing of its own."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is a copy that was not finished", "run the same `weft copy` again; it goes on there")
        self.path = path


class InUse(StoreError):
    """Another program has the ledger open."""

    def __init__(self, path: str, by: str = "") -> None:
        who = f" ({by})" if by else ""
        super().__init__(f"{path} is open in another program{who}", "end it, then try again")
        self.path, self.by = path, by


class ReadOnlyLedger(StoreError):
    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is open for reading only", "open it for writing, or check the file's permissions")
        self.path = path


class WeakDurability(StoreError):
    hint = "put the ledger on a local disk that SQLite can lock and sync"

    def __init__(self, setting: str, wanted: str, found: str, hint: str = "") -> None:
        super().__init__(f"the database would not keep its promise: {setting} is {found}, not {wanted}", hint)
        self.setting, self.wanted, self.found = setting, wanted, found


class Unsupported(StoreError):
    """This cannot be done on this platform, file system or backend, and is not pretended."""

    hint = "do it where it is supported: a local file on Linux or macOS, or PostgreSQL"


class ProtocolBroken(StoreError):
    """The other side of a sync said something that has no place there. Nothing of that batch was stored."""

    hint = "is the other side a weft that speaks the same version of the protocol?"


class ConnectionCut(StoreError):
    """The other side of a sync went away."""

    hint = "run it again: it goes on where it was cut"


class StoreFailed(StoreError):
    """The engine refused a read or a write (disk full, I/O error). Nothing of this append was stored."""

    hint = "free space or mend the disk, then try again; nothing was acknowledged"


class OutcomeUnknown(StoreFailed):
    """The connection died at a commit and the server cannot be asked: the append is there whole or not at all."""

    hint = "when the server is back, look whether it is there before you try again"


class Damaged(StoreError):
    """What is stored is not what was written. `weft verify` lists every place."""

    hint = "run `weft doctor`; `weft recover --from` restores a backup, `weft recover --salvage` saves what verifies"


class FactDamaged(Damaged):
    def __init__(self, what: str, name: str, reason: str) -> None:
        super().__init__(f"{what} {name} is damaged: {reason}")
        self.what, self.name, self.reason = what, name, reason


class ContentMissing(Damaged):
    """The bytes of this content are not here: withheld, erased or lost; its place in the chain still verifies."""

    hint = "import the facts again from a ledger that has it"

    def __init__(self, ref: str) -> None:
        super().__init__(f"content {ref} is not in this ledger")
        self.ref = ref


class LogCut(Damaged):
    """The database is shorter than, or differs from, what was acknowledged."""

    hint = "put the newer copy back, or accept the loss with `weft recover --accept`"

    def __init__(self, n: int, found: int, reason: str) -> None:
        super().__init__(f"event {n} was acknowledged, but the log {reason} (it ends at {found})")
        self.n, self.found, self.reason = n, found, reason


class OutsideError(WeftError):
    """A key, a server or a model was asked for and not had. `acts` says who must act: you, the provider, or us."""

    acts: str = "you"
    hint = "mend what is asked for, then try again"
    status: int | None = None
    request_id: str | None = None
    retry_after: float | None = None
    partial: str = ""
    """What had come of a reply until then."""


class CredentialMissing(OutsideError):
    """There is no such credential, or nothing is found where it should lie."""

    hint = "`weft credential list` shows what is known; `weft credential add` says where to find a key"

    def __init__(self, name: str, reason: str, hint: str = "") -> None:
        super().__init__(f"credential {name!r}: {reason}", hint)
        self.name, self.reason = name, reason


class CredentialWithheld(OutsideError):
    """It exists, and whoever acts must not have it: it was not given to them, or belongs to another origin."""

    hint = "give it to whoever acts, or name a credential of the server that is asked"

    def __init__(self, name: str, reason: str, hint: str = "") -> None:
        super().__init__(f"credential {name!r} is withheld: {reason}", hint)
        self.name, self.reason = name, reason


class CodeFailed(OutsideError):
    """A code program ended with an error of its own, or ran into a limit."""

    hint = "mend the program; what it printed is told beside the error"

    def __init__(self, name: str, error: str, printed: str = "") -> None:
        super().__init__(f"code {name!r}: {error}")
        self.name, self.error, self.printed = name, error, printed


class ConnectionForbidden(OutsideError):
    """The guard of outgoing connections refused it: another origin, no TLS, or an address that must not be reached."""

    hint = "name the server by the URL that is meant; docs/inference.md tells which addresses may be reached"


class RequestRefused(OutsideError):
    """The provider refused the request as it is."""

    hint = "mend the request or the model's settings; trying again will not help"


class CredentialRefused(RequestRefused):
    hint = "check the key itself and what it may be used for; `weft credential list` shows where it is read from"


class ModelUnknown(RequestRefused):
    hint = "check the model's name and the provider's URL"


class ContextTooLong(RequestRefused):
    hint = "compact the session, or use a model with a larger context"


class BudgetSpent(OutsideError):
    """The time or the money for this request is used up."""

    hint = "allow more, or ask for less"


class ProviderFailed(OutsideError):
    acts = "the provider"
    hint = "try again later, or name a fallback model"


class RateLimited(ProviderFailed):
    hint = "wait as long as it says, ask less often, or name a fallback model"


class ProviderUnreachable(ProviderFailed):
    hint = "check the network and the provider's URL, then try again"


class ReplyMalformed(ProviderFailed):
    """What came is no reply of this provider's kind."""


class ReplyCut(ProviderFailed):
    """The reply ended before its end. `partial` is what had come."""


class InferenceFault(OutsideError):
    """Something broke on our side of the connection."""

    acts = "us"
    hint = "this is a fault of weft; its message is worth a report"
