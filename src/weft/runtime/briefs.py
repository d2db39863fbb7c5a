"""What an agent is told of its task, in words: pure functions of configurations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from weft.kernel.enums import CriterionType
from weft.programs.model import Program

_LISTS = (("inputs", "You are given"), ("outputs", "Wanted"), ("constraints", "Keep to"))


def brief(task: Program) -> str:
    """A task as the first message of the session that it is worked on in."""
    config = task.config if isinstance(task.config, dict) else {}
    spec: dict[str, Any] = config.get("spec") or {}
    parts = [f"Task: {config.get('title', task.name)}"]
    parts += [_listed(words, spec[name]) for name, words in _LISTS if spec.get(name)]
    criteria = spec.get("successCriteria") or []
    parts += [_listed("It is done when", map(_criterion, criteria))] if criteria else []
    return "\n\n".join([*parts, "Answer with the final result alone."])


def going_on(task: Program) -> str:
    """The same to an agent that was at it before."""
    return f"{brief(task)}\n\nYou have begun already: go on from there."


def reflection(unmet: Iterable[str]) -> str:
    """What is said after an answer that does not hold."""
    return "\n\n".join([_listed("Not done yet", unmet), "Think about why, then give the whole final answer again."])


def _listed(words: str, items: Iterable[Any]) -> str:
    return "\n".join([f"{words}:", *(f"- {item}" for item in items)])


def _criterion(one: dict[str, Any]) -> str:
    where = f"the file {one['path']}" if "path" in one else "the answer"
    match one["type"]:
        case CriterionType.FILE_EXISTS:
            return f"{where} exists"
        case CriterionType.WORD_COUNT:
            bounds = [f"at least {one['min']}"] if "min" in one else []
            bounds += [f"at most {one['max']}"] if "max" in one else []
            return f"{where} has {' and '.join(bounds)} words"
        case CriterionType.CONTAINS:
            return f"{where} contains {one['text']!r}"
        case CriterionType.JSON_SCHEMA:
            return f"{where} is JSON that fits the schema {one['schema']}"
        case _:
            return f"the command {one['command']!r} ends with {one.get('exitCode', 0)}"
