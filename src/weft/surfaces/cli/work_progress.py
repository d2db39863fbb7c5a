"""An agent's work on a task, as lines for people: what it does, what it has spent, which criteria hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.surfaces.cli.figures import abbreviated, counted, dollar_text
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.plain_text import cut

if TYPE_CHECKING:
    from weft.runtime.agent_work import Move, WorkFacts, WorkProgress
    from weft.surfaces.cli.call import Call

DOING_CHARACTERS = 200
PLAN_MARKS = {"done": "x", "in_progress": ">", "dropped": "-"}


class ProgressNotes:
    """Notes each step of work on standard error. It is an `OnProgress`."""

    def __init__(self, call: Call) -> None:
        self._call, self._last = call, ""

    def __call__(self, facts: WorkFacts, move: Move) -> None:
        from weft.kernel.clock import SystemClock
        from weft.runtime.agent_work import GiveUpWork, Rest, StandStill, doing_words, progress_of

        is_plain = not facts.criteria and not facts.rounds[1:]  # its answer says all that there is to say
        if isinstance(move, GiveUpWork | StandStill) or (is_plain and not isinstance(move, Rest)):
            return
        progress = progress_of(facts, SystemClock().now_ms())
        words = cut(doing_words(facts, move, is_served=True), DOING_CHARACTERS)
        line = f"{words}; {spent_words(progress)}{_held_words(progress)}"
        if line != self._last:
            self._last = line
            self._call.note(Span(facts.agent.name, "label"), f" {line}")


def spent_words(progress: WorkProgress) -> str:
    """`turn 2 of 50, 1.2k tokens, $0.0100 of $1.00, 12 s`."""
    words = [f"{counted(progress.turns, 'turn')} of {progress.max_turns}"]
    limit = "" if progress.max_tokens is None else f" of {abbreviated(progress.max_tokens)}"
    words.append(f"{abbreviated(progress.tokens) or '0'}{limit} tokens")
    cost = "cost unknown" if progress.cost is None else dollar_text(progress.cost)
    words.append(cost if progress.max_cost is None else f"{cost} of {dollar_text(progress.max_cost)}")
    words.append(f"{progress.seconds} s" + ("" if progress.max_seconds is None else f" of {progress.max_seconds} s"))
    return ", ".join(words)


def _held_words(progress: WorkProgress) -> str:
    if not progress.criteria:
        return ""
    held = sum(one.passed is True for one in progress.criteria)
    return f"; {held} of {counted(len(progress.criteria), 'criterion').replace('criterions', 'criteria')} hold"


def progress_line(agent: str, progress: WorkProgress) -> Line:
    """One agent's work in one line."""
    doing = cut(progress.doing, DOING_CHARACTERS)
    return [
        Span(agent, "label"),
        " on ",
        Span(progress.task, "label"),
        f": {doing}; {spent_words(progress)}{_held_words(progress)}",
    ]


def progress_lines(progress: WorkProgress) -> list[Line]:
    """The same in full, below the agent."""
    lines: list[Line] = [
        _field("doing", progress.doing),
        _field("spent", spent_words(progress)),
    ]
    if progress.reflections:
        lines.append(_field("reflections", f"{progress.reflections} in a row without anything new"))
    for one in progress.criteria:
        mark = {True: Span("  held       ", "good"), False: Span("  unmet      ", "bad")}.get(one.passed)  # type: ignore[arg-type]
        lines.append([mark or Span("  unchecked  ", "dim"), one.words])
    for item in progress.plan:
        lines.append([Span("  plan       ", "dim"), f"[{PLAN_MARKS.get(item['status'], ' ')}] {item['text']}"])
    return lines


def _field(name: str, value: str) -> Line:
    return [Span(f"  {name:<11}", "dim"), value]
