"""The root of all errors of Weft: a message, and what can be done about it."""

from __future__ import annotations

from typing import Any, ClassVar

from weft.kernel.advice import Action, Hint, advice_of
from weft.kernel.hidden_credentials import without_credentials


def quoted(value: Any, length: int | None = 80) -> str:
    """A stranger's value in a message: its beginning (or all) as Python writes it, or its type where Python cannot."""
    try:
        return repr(value)[:length]
    except Exception:  # a whole number of too many digits, a list within itself, or a value's own `__repr__`
        return f"<{type(value).__name__}>"


class WeftError(Exception):
    """The root. `advice` is an action code with arguments, which each surface phrases. A class has a usual action; an
    error may have another, or a sentence for its case alone. Passwords of addresses in its message are hidden."""

    code: ClassVar[str] = "error"
    """What is recorded and published of the class; it stays when the class gets another name."""
    usual_action: Action = Action.OTHER
    again: str = ""
    """The command line that asks again, where a surface knows one for what failed."""

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


TIMED_OUT, SYSTEM_ERROR, INTERNAL_ERROR = "timed_out", "system_error", "internal_error"
"""Of errors that are not of the tree: what took too long, what the operating system refused, a defect."""


def error_code(error: BaseException) -> str:
    """The published code of an error, also of one that is not of the tree."""
    if isinstance(error, WeftError):
        return error.code
    if isinstance(error, TimeoutError):
        return TIMED_OUT
    return SYSTEM_ERROR if isinstance(error, OSError) else INTERNAL_ERROR


def error_text(error: BaseException) -> str:
    """What an error says; one that is not of the tree says of which kind it is as well, since its code does not."""
    if isinstance(error, WeftError):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


_FORMER_CODES = {
    name: "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
    for name in (
        "AgentBusy AmbiguousName ArchiveRefused BudgetSpent CheckFailed CodeFailed Conflict ConnectionCut "
        "ConnectionForbidden ContentGone ContentMissing ContentTooLarge ContextTooLong CopyUnfinished "
        "CredentialMissing CredentialRefused CredentialWithheld CriteriaUnmet Damaged EngineObjectMissing "
        "EngineRefused EngineUnreachable ErasureChanged FactDamaged FilesElsewhere HeadMoved IdCollision "
        "IllegalTransition InUse InboxFull InferenceFault InvalidBundle InvalidConfig InvalidFact InvalidInput "
        "InvalidJson InvalidKey KeyTaken LabelTaken LeaseLost LedgerError LedgerMissing LedgerMoved LedgerTooNew "
        "LedgerTooOld LimitExceeded LogCut ModelUnknown NoCanonicalForm NotALedger NotAllowed NotApplicable "
        "NotFound NotTrusted OutcomeUnknown OutsideError PeerRefused ProtocolBroken ProviderFailed "
        "ProviderUnreachable RateLimited ReadOnlyLedger ReplicaDiverged ReplyCut ReplyMalformed RequestRefused "
        "SchemaMismatch SessionBusy SeveralNames StoreError StoreFailed TokenRefused TurnClosed UnknownObjects "
        "Unsupported VariableMissing VersionConflict WeakDurability WithheldShows"
    ).split()
} | {"TimeoutError": TIMED_OUT}


def current_code(code: str) -> str:
    """The code that stands today for a recorded one: names of classes were recorded before codes were."""
    return _FORMER_CODES.get(code, code)
