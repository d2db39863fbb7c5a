"""What to do after a failure, as a pure function: wait and ask again, ask the next model, or give up."""

from __future__ import annotations

from msgspec import Struct

from weft.kernel.errors import ProviderFailed, WeftError
from weft.runtime.inference.settings import RetryPolicy


class Again(Struct, frozen=True):
    """The same model, after so many seconds."""

    wait: float


class NextModel(Struct, frozen=True):
    """The next fallback, at once."""


class GiveUp(Struct, frozen=True):
    """The failure stands."""


def next_step(
    error: WeftError,
    tries: int,
    policy: RetryPolicy,
    *,
    fraction: float,
    seconds_left: float | None,
    has_fallback: bool,
) -> Again | NextModel | GiveUp:
    """`tries` were made of this model; `fraction` is chance, from 0 to 1. What only you can mend is not tried again."""
    if not isinstance(error, ProviderFailed):
        return GiveUp()
    wait = _wait(error.retry_after, tries, policy, fraction)
    hopeless = error.lasting or tries >= policy.attempts or wait is None
    too_late = seconds_left is not None and (wait or 0.0) >= seconds_left
    if hopeless or too_late or wait is None:
        return NextModel() if has_fallback else GiveUp()
    return Again(wait)


def _wait(retry_after: float | None, tries: int, policy: RetryPolicy, fraction: float) -> float | None:
    """As long as the provider asks for, else longer each time, by some chance, so that not all come back at once."""
    if retry_after is not None:
        return max(0.0, retry_after) if retry_after <= policy.longest_retry_after else None
    longest = min(policy.longest_wait, policy.first_wait * policy.factor ** (tries - 1))
    return longest * (0.5 + fraction / 2)
