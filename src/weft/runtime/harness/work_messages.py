"""What is said in an agent's work: to it of its task, of an answer that does not hold, after a failure and where it
goes on; and to people about its budget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from weft.kernel.enums import CriterionType
from weft.programs.model import Program
from weft.runtime.harness.facts import WorkFacts
from weft.runtime.harness.settings import MICRODOLLARS

_LISTS = (("inputs", "You are given"), ("outputs", "Wanted"), ("constraints", "Keep to"))


def task_brief(task: Program) -> str:
    """A task as the first message of the session that it is worked on in. A task that is only a title is what the
    title says."""
    config = task.config if isinstance(task.config, dict) else {}
    spec: dict[str, Any] = config.get("spec") or {}
    if not any(spec.values()):
        return str(config.get("title", task.name))
    parts = [f"Task: {config.get('title', task.name)}"]
    parts += [_list(heading, spec[name]) for name, heading in _LISTS if spec.get(name)]
    criteria = spec.get("successCriteria") or []
    parts += [_list("It is done when", map(criterion_words, criteria))] if criteria else []
    return "\n\n".join([*parts, "Answer with the final result alone."])


def resumed_brief(task: Program) -> str:
    """The same to an agent that has worked on it before."""
    return f"{task_brief(task)}\n\nYou have begun already: go on from there."


def reflection(unmet: Sequence[str], failed_calls: Sequence[str] = ()) -> str:
    """The message after an answer that does not meet the criteria, or after tool calls that ended in errors."""
    parts = [_list("Not done yet", unmet)] if unmet else []
    parts += [_list("These tool calls ended in errors", failed_calls)] if failed_calls else []
    return "\n\n".join([*parts, "Think about why, then give the whole final answer again."])


def _list(heading: str, items: Iterable[Any]) -> str:
    return "\n".join([f"{heading}:", *(f"- {item}" for item in items)])


def criterion_words(criterion: dict[str, Any]) -> str:
    """What a criterion asks for."""
    where = f"the file {criterion['path']}" if "path" in criterion else "the answer"
    match criterion["type"]:
        case CriterionType.FILE_EXISTS:
            return f"{where} exists"
        case CriterionType.WORD_COUNT:
            bounds = [f"at least {criterion['min']}"] if "min" in criterion else []
            bounds += [f"at most {criterion['max']}"] if "max" in criterion else []
            return f"{where} has {' and '.join(bounds)} words"
        case CriterionType.CONTAINS:
            return f"{where} contains {criterion['text']!r}"
        case CriterionType.JSON_SCHEMA:
            return f"{where} is JSON that fits the schema {criterion['schema']}"
        case _:
            return f"the command {criterion['command']!r} ends with {criterion.get('exitCode', 0)}"


def failure_words(text: str, error: str) -> str:
    """The message whose turn failed, once more: the session holds nothing of that turn."""
    return f"{text}\n\nAn earlier try of this ended with an error: {error}\nGo on in another way if that can help."


def resumption_words(facts: WorkFacts) -> str:
    """The task itself, what the checkpoint says comes next, or that it goes on."""
    if facts.head is None:
        return task_brief(facts.task)
    saved = facts.checkpoint if isinstance(facts.checkpoint, dict) else {}
    text = saved.get("next")
    return text if saved.get("head") == facts.head and isinstance(text, str) else resumed_brief(facts.task)


def budget_words(facts: WorkFacts) -> str | None:
    """Which limit of the harness leaves no further turn, and what is still missing; None where there is one."""
    settings, spent = facts.settings, facts.spent
    words = None
    if len(facts.rounds) >= settings.max_turns:
        words = f"budget: {settings.max_turns} turn{' was' if settings.max_turns == 1 else 's were'} not enough"
    elif settings.max_tokens is not None and spent.total >= settings.max_tokens:
        words = f"budget: {spent.total} of {settings.max_tokens} tokens are spent"
    elif settings.max_seconds is not None and facts.seconds >= settings.max_seconds:
        words = f"budget: {facts.seconds:.0f} of {settings.max_seconds} seconds are spent"
    elif settings.max_cost is not None and spent.unpriced:
        words = "budget: nobody knows what the turns cost, for a model of theirs has no price"
    elif settings.max_cost is not None and (spent.cost or 0) >= settings.max_cost:
        words = f"budget: {_dollars(spent.cost or 0)} of {_dollars(settings.max_cost)} are spent"
    if words is None:
        return None
    last = facts.last
    unmet = [] if last is None else [*facts.unmet(last.verdicts), *last.failed_calls]
    return f"{words}: {'; '.join(unmet)}" if unmet else words


def _dollars(cost: int) -> str:
    return f"${cost / MICRODOLLARS:.4f}"
