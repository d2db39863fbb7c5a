"""A turn that works with tools, as whoever waits for it sees it: the answer as it comes, and a
line for each call.
"""

from __future__ import annotations

from msgspec.structs import replace

from weft.kernel.enums import Decision, DecisionSource
from weft.runtime.replies import ReplyToken
from weft.runtime.tool.gate import OK as CALL_OK
from weft.runtime.tool.gate import ObservedCall
from weft.surfaces.cli.command_line import Call
from weft.surfaces.cli.programs.program_call import ReplyStream
from weft.surfaces.cli.screen import Span
from weft.surfaces.plain_text import cut
from weft.surfaces.wire.tool_answers import WatchedCall

ABOUT_CHARACTERS = 120
WHY_CHARACTERS = 300
DENIED = "denied"
ALLOWED_BY: dict[str, str] = {
    DecisionSource.POLICY: ", allowed by the policy",
    DecisionSource.GRANT: ", allowed by a person",
    DecisionSource.SESSION_GRANT: ", allowed by a person for this session",
}
DENIED_BY: dict[str, str] = {
    DecisionSource.ARGUMENTS: "cannot run",
    DecisionSource.PERMISSION: "denied by the permissions",
    DecisionSource.POLICY: "denied by the policy",
}
"""For any other source the reason says all of it."""


class RunView:
    """Collects the calls of a turn, and shows them while they happen. Its texts are pieces of one answer each."""

    def __init__(self, call: Call, stream: ReplyStream | None = None) -> None:
        self._call = call
        self._stream = stream or ReplyStream(call)
        self.calls: list[WatchedCall] = []
        self._reasons = set[str]()
        """Those that were shown."""

    @property
    def has_answer(self) -> bool:
        """Whether the answer stands on the terminal already."""
        return self._call.screen.terminal and self._stream.has_begun

    def token(self, token: ReplyToken) -> None:
        if self._call.screen.terminal:
            self._stream.token(token)

    def observe(self, observed: ObservedCall) -> None:
        call = self._updated(observed)
        if observed.decision is Decision.ALLOW:
            return
        self._break_line()
        if observed.decision is not Decision.ASK:  # requests to people are shown with how to answer them
            self._call.note(*_line(call, self._told_reason(call)))

    def _told_reason(self, call: WatchedCall) -> str:
        """Why a call did not run or failed. What was said of an earlier call already is not said again."""
        why = cut(" ".join((call.error or "").split()), WHY_CHARACTERS)
        if not why:
            return ""
        is_known = why in self._reasons
        self._reasons.add(why)
        return ", as before" if is_known else f": {why}"

    def end(self) -> None:
        self._stream.end()

    def _break_line(self) -> None:
        """What follows is another answer."""
        if self._stream.has_begun:
            self._stream.end()
            self._stream = ReplyStream(self._call)

    def _updated(self, observed: ObservedCall) -> WatchedCall:
        """The call that it tells of: of those with the same tool and subject the first that is under way."""
        for place, call in enumerate(self.calls):
            if call.outcome is None and (call.tool, call.about) == (observed.tool, observed.about):
                is_end = observed.outcome is not None and call.decision == Decision.ALLOW
                if is_end or (observed.decision is not None and call.decision == Decision.ASK):
                    self.calls[place] = _changed(call, observed)
                    return self.calls[place]
        self.calls.append(_changed(WatchedCall(tool=observed.tool, about=observed.about), observed))
        return self.calls[-1]


def _changed(call: WatchedCall, observed: ObservedCall) -> WatchedCall:
    if observed.decision is None:
        return replace(call, outcome=observed.outcome, error=observed.message)
    is_denied = observed.decision in (Decision.DENY_CONTINUE, Decision.DENY_ABORT)
    return replace(
        call,
        decision=observed.decision.value,
        by=observed.by,
        outcome=DENIED if is_denied else None,
        error=observed.rationale if is_denied else None,
    )


def _line(call: WatchedCall, reason: str) -> list[Span | str]:
    use = f"{call.tool}({cut(' '.join(call.about.split()), ABOUT_CHARACTERS)})" if call.about else call.tool
    if call.outcome == CALL_OK:
        return [Span("tool", "tool"), f" {use} ", Span("ok", "good"), Span(ALLOWED_BY.get(call.by or "", ""), "dim")]
    if call.outcome == DENIED:
        return [Span("tool", "tool"), f" {use} ", Span(DENIED_BY.get(call.by or "", DENIED), "bad"), reason]
    return [Span("tool", "tool"), f" {use} ", Span(f"failed, {call.outcome}", "bad"), reason]
