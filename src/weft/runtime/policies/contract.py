"""What an approval policy is asked and what it may answer.

One JSON document goes in on standard input: the name of a tool, its arguments, the circumstances. One JSON document
comes out on standard output: a decision and why. The answer is read strictly, and whatever is not exactly that is an
error of the policy. An error never allows: the call is refused with a rationale that says what the policy did wrong.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from weft.kernel.contents import dumps, loads
from weft.kernel.enums import Decision
from weft.kernel.errors import WeftError
from weft.runtime.policies.harness import OUTPUT_BYTES

INPUT_BYTES = 8 * 1024 * 1024
"""A call that is larger is not shown to a policy, and is refused."""
RATIONALE_CHARACTERS = 2_000
DECISION_SECONDS = 1.0
_LONGEST_QUOTE_CHARACTERS = 200


class PolicyContext(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The circumstances of a call, as a policy sees them. All of it comes from the host, `shown` and `subjects` from
    what the tool plans to do with the arguments."""

    agent: str | None = None
    session: str | None = None
    turn: str | None = None
    workspace: str | None = None
    toolset: str | None = None
    on_behalf_of: tuple[str, ...] = ()
    is_untrusted: bool = False
    """Whether words of strangers are in the context of the turn."""
    read_only: bool = False
    is_contained: bool = False
    """Whether it stays in the sandbox of a folder that the person trusts for work, and what it changes can be taken
    back."""
    not_contained: str = ""
    """In such a folder, why it is not contained."""
    subjects: tuple[str, ...] | None = ()
    """What the call is used on; None where that cannot be told."""
    shown: str = ""


class PolicyCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool call that a policy decides on."""

    name: str
    arguments: Any = None
    context: PolicyContext = PolicyContext()


class PolicyAnswer(Struct, frozen=True, kw_only=True):
    """What came of asking a policy. Where `is_error`, it failed to answer, and the decision is a refusal."""

    decision: Decision
    rationale: str
    is_error: bool = False


class ScriptEnding(StrEnum):
    """How the process ended that ran a policy."""

    EXITED = "exited"
    TIMED_OUT = "timed_out"
    TOO_MUCH_OUTPUT = "too_much_output"
    LEFT_PROCESSES = "left_processes"
    UNREAD_INPUT = "unread_input"
    LOST = "lost"
    """It took its interpreter with it, or took more memory or processes than it may."""


class ScriptOutcome(Struct, frozen=True, kw_only=True):
    """What a policy wrote, and how it ended; a negative `code` is the signal that ended it."""

    ending: ScriptEnding
    code: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    why: str = ""
    """Of one that was lost."""


_ENDED = {
    ScriptEnding.TOO_MUCH_OUTPUT: "it wrote more than an answer can be",
    ScriptEnding.LEFT_PROCESSES: "it left processes running",
    ScriptEnding.UNREAD_INPUT: "it decided without reading the call",
    ScriptEnding.LOST: "it ended its interpreter",
}


class _Document(Struct, frozen=True, forbid_unknown_fields=True):
    decision: Decision
    rationale: str


def call_document(call: PolicyCall) -> bytes:
    """What a policy is given on its standard input. Raises a WeftError where the arguments have no JSON form."""
    return dumps(msgspec.to_builtins(call))


def failed_answer(why: str) -> PolicyAnswer:
    """The answer of a policy that gave none."""
    return PolicyAnswer(decision=Decision.DENY_CONTINUE, rationale=f"the policy failed: {why}", is_error=True)


def read_answer(outcome: ScriptOutcome, seconds: float = DECISION_SECONDS) -> PolicyAnswer:
    """The answer in what a policy wrote, or the error that it made."""
    if outcome.ending is not ScriptEnding.EXITED:
        limit = f"it took longer than {seconds:g} s"
        return failed_answer(outcome.why or _ENDED.get(outcome.ending, limit))
    if outcome.code != 0:
        ended = f"it was ended by signal {-outcome.code}" if outcome.code < 0 else f"it exited with {outcome.code}"
        return failed_answer(ended + _last_line(outcome.stderr))
    return _read_document(outcome.stdout)


def _read_document(data: bytes) -> PolicyAnswer:
    if len(data) > OUTPUT_BYTES:
        return failed_answer(_ENDED[ScriptEnding.TOO_MUCH_OUTPUT])
    if not data.strip():
        return failed_answer("it answered nothing")
    try:
        document = msgspec.convert(loads(data), _Document)
    except (WeftError, msgspec.ValidationError) as error:
        return failed_answer(f"its answer is not one JSON object with decision and rationale: {_short(str(error))}")
    if not document.rationale.strip():
        return failed_answer("its answer has no rationale")
    if len(document.rationale) > RATIONALE_CHARACTERS:
        return failed_answer(f"its rationale is longer than {RATIONALE_CHARACTERS} characters")
    return PolicyAnswer(decision=document.decision, rationale=document.rationale)


def _last_line(stderr: bytes) -> str:
    """What Python says last of an exception is what it was."""
    lines = stderr.decode(errors="replace").strip().splitlines()
    return f" ({_short(lines[-1])})" if lines else ""


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_QUOTE_CHARACTERS else text[: _LONGEST_QUOTE_CHARACTERS - 1] + "…"
