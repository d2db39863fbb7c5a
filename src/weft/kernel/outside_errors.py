"""Something outside was asked for and not had: a key, a command, a server, a model. `acts` says who must act."""

from __future__ import annotations

from weft.kernel.advice import Action, Hint
from weft.kernel.weft_error import WeftError


class OutsideError(WeftError):
    """A key, a server or a model was asked for and not had. `acts` says who must act: you, the provider, or us."""

    code = "outside_error"
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

    code = "credential_missing"
    usual_action = Action.LIST_CREDENTIALS

    def __init__(self, name: str, reason: str, hint: Hint = "") -> None:
        super().__init__(f"credential {name!r}: {reason}", hint)
        self.name, self.reason = name, reason


class CredentialWithheld(OutsideError):
    """It exists, and whoever acts must not have it: it was not given to them, or belongs to another origin."""

    code = "credential_withheld"
    usual_action = Action.GIVE_CREDENTIAL

    def __init__(self, name: str, reason: str, hint: Hint = "") -> None:
        super().__init__(f"credential {name!r} is withheld: {reason}", hint)
        self.name, self.reason = name, reason


class CodeFailed(OutsideError):
    """A code program ended with an error of its own, or ran into a limit."""

    code = "code_failed"
    usual_action = Action.CORRECT_CODE

    def __init__(self, name: str, error: str, printed: str = "") -> None:
        super().__init__(f"code {name!r}: {error}")
        self.name, self.error, self.printed = name, error, printed


class CheckFailed(OutsideError):
    """A command that was to judge something gave no judgement: it took too long, printed too much, or broke off."""

    code = "check_failed"


class ConnectionForbidden(OutsideError):
    """The guard of outgoing connections refused it: another origin, no TLS, or an address that must not be reached."""

    code = "connection_forbidden"
    usual_action = Action.NAME_SERVER_URL


class RequestRefused(OutsideError):
    """The provider refused the request as it is."""

    code = "request_refused"
    usual_action = Action.CORRECT_MODEL_REQUEST


class CredentialRefused(RequestRefused):
    """A provider refused the key."""

    code = "credential_refused"
    usual_action = Action.CHECK_CREDENTIAL


class ModelUnknown(RequestRefused):
    """A provider knows no such model."""

    code = "model_unknown"
    usual_action = Action.CHECK_MODEL_NAME


class ContextTooLong(RequestRefused):
    """The provider refused a context as longer than the model takes."""

    code = "context_too_long"
    usual_action = Action.COMPACT_SESSION


class BudgetSpent(OutsideError):
    """The time or the money for this request is used up."""

    code = "budget_spent"
    usual_action = Action.ALLOW_MORE


class ProviderFailed(OutsideError):
    """A provider could not answer."""

    code = "provider_failed"
    acts = "the provider"
    usual_action = Action.TRY_LATER


class RateLimited(ProviderFailed):
    """A provider was asked too often."""

    code = "rate_limited"
    usual_action = Action.ASK_LESS_OFTEN


class ProviderUnreachable(ProviderFailed):
    """A provider's server could not be reached."""

    code = "provider_unreachable"
    usual_action = Action.CHECK_NETWORK


class ReplyMalformed(ProviderFailed):
    """What came is no reply of this provider's kind."""

    code = "reply_malformed"


class ReplyCut(ProviderFailed):
    """The reply ended before its end. `partial` is what had come."""

    code = "reply_cut"


class InferenceFault(OutsideError):
    """Something broke on our side of the connection."""

    code = "inference_fault"
    acts = "us"
    usual_action = Action.REPORT_FAULT
