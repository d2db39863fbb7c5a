"""What a verb is given that its types do not allow is refused in words, or taken as what it is: it never ends in an
error of Python from somewhere within."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.sizes import sized
from weft import OpenLedger, WeftError


def nested(levels: int) -> list[Any]:
    """A list within so many others: Python cannot write it out."""
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


FEW: tuple[Any, ...] = (7, [[]], {"a": 7}, object(), 10**5000, "\ud800", nested(5000))
VALUES = sized(test=FEW, prove=(*FEW, -1, True, [7], b"x", 1.5, float("nan")))
NO_VERBS = ("authority", "machine", "trust")
"""Records and stores of their own, which are handed to a ledger or to verbs rather than asked by their users."""
COSTLY: tuple[str, ...] = sized(test=("secrets",), prove=())
"""It takes seconds until secrets can be looked for."""
SECONDS = ("wait", "seconds", "timeout")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[OpenLedger]:
    with weft.open(tmp_path / "ledger.db") as ledger:
        ledger.record_turn(session="main", query="question", response="answer")
        ledger.programs.create("agent", "scout", {})
        yield ledger


def verbs(ledger: OpenLedger) -> Iterator[tuple[str, Callable[..., Any]]]:
    """All of the ledger and of its groups, by their names."""
    groups: dict[str, Any] = {"": ledger}
    for name in dir(type(ledger)):
        value = None if name.startswith("_") or name in (*NO_VERBS, *COSTLY) else getattr(ledger, name)
        if not callable(value) and type(value).__module__.startswith("weft."):
            groups[f"{name}."] = value
    for group, owner in groups.items():
        for name in dir(owner):
            verb = None if name.startswith("_") or name == "close" else getattr(owner, name)
            if inspect.ismethod(verb):
                yield group + name, verb


def keywords(verb: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    """The parameters that a typed dictionary stands for: `**only: Unpack[UsageChoice]`."""
    for parameter in inspect.signature(verb).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            name = str(parameter.annotation).removeprefix("Unpack[").removesuffix("]")
            record = inspect.unwrap(verb).__globals__.get(name)
            for key in getattr(record, "__annotations__", ()):
                yield inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None)


def calls(verb: Callable[..., Any], usual: dict[str, Any]) -> Iterator[tuple[str, Any, list[Any], dict[str, Any]]]:
    """One wrong value for one parameter; the others have a usual one."""
    parameters = inspect.signature(verb).parameters.values()
    named = [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    named += keywords(verb)
    needed = [one for one in named if one.default is one.empty or one.name in SECONDS]
    for wrong in named:
        for value in VALUES:
            given = {one.name: usual.get(one.name, "scout") for one in needed} | {wrong.name: value}
            first = [given.pop(one.name) for one in named if one.kind is one.POSITIONAL_ONLY and one.name in given]
            if wrong.name not in SECONDS:
                yield wrong.name, value, first, given


def test_parameters_of_typed_dictionaries_are_seen(ledger: OpenLedger) -> None:
    seen = {name: {one.name for one in keywords(verb)} for name, verb in verbs(ledger)}
    unseen = [name for name, verb in verbs(ledger) if "Unpack" in str(inspect.signature(verb)) and not seen[name]]
    assert not unseen
    assert {"origin", "project"} <= seen["usage.report"]
    assert {"actor", "tool"} <= seen["audit.findings"]


@pytest.mark.slow("gives each parameter of each verb every wrong value")
def test_a_wrong_value_never_ends_in_an_error_of_python(ledger: OpenLedger) -> None:
    usual = {"session": "main", "turn": ledger.log()[0].id, **dict.fromkeys(SECONDS, 0)}
    failures, count = [], 0
    for name, verb in verbs(ledger):
        if not ledger.programs.all("agent"):  # the verb before took it away
            ledger.programs.create("agent", "scout", {})
        for parameter, value, first, given in calls(verb, usual):
            count += 1
            try:
                answer = verb(*first, **given)
                if inspect.isgenerator(answer):
                    next(answer, None)
            except WeftError:
                continue
            except Exception as error:  # whatever it is, it is listed
                failures.append(f"{name}({parameter}={type(value).__name__}): {type(error).__name__}: {error}")
    assert not failures, "\n".join(failures)
    assert count > 400 * len(VALUES), "most verbs were not found"
    assert list(ledger.verify()) == []
