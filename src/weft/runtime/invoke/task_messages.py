"""What an agent is told of its task: at first, when it goes on with it, and when an answer does not hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from weft.kernel.enums import CriterionType
from weft.programs.model import Program

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
