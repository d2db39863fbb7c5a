"""Every field of every kind of program, set by everybody who is not the ledger's owner, in every way in which it can be
set: what names the machine is refused to all of them, what names nothing of it to none for that reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from msgspec import structs

import weft
from tests.ledger.histories import copy_in_memory, exported, import_into
from tests.sizes import share
from weft.kernel.authority import LOCAL, Authority, Principal, PrincipalKind, rights
from weft.kernel.clock import FixedClock
from weft.kernel.errors import NotAllowed, NotApplicable, NotFound, WeftError
from weft.ledger.api import Ledger
from weft.programs import Programs
from weft.programs.config_fields import NOTHING, TEMPLATE, ConfigFields, criterion_commands, text
from weft.programs.kind_table import KINDS, ROWS
from weft.programs.program_changes import wanted_in
from weft.programs.program_kinds import KindRow
from weft.programs.program_writer import ProgramWriter
from weft.programs.tasks import CRITERION_FIELDS

NOON = 1_794_700_800_000
MINIMAL: dict[str, dict[str, Any]] = {
    "code": {"source": "1"},
    "provider": {"providerType": "openai"},
    "model": {"modelId": "m", "provider": "@(there)"},
    "session": {},
    "agent": {},
    "task": {"title": "T"},
    "information": {"infoType": "fact", "content": 1},
    "human": {"email": "a@b.c"},
    "toolset": {"tools": {"allow": ["read"]}},
    "trigger": {"on": {"task": "job"}, "message": "m"},
}
"""A configuration of each kind before somebody sets one more field."""
COMMON: dict[str, Any] = {"name": "N", "description": "d", "visibility": "private", "metadata": {"a": 1}}
PARAMETERS: dict[str, Any] = {
    "temperature": "${T}", "maxTokens": 5, "topP": "${P}", "topK": "${K}", "minP": "${M}", "seed": "${S}",
    "stop": ["${X}"], "presencePenalty": "${A}", "frequencyPenalty": "${B}", "thinking": "${C}",
    "thinkingConfig": {"level": "${C}"}, "responseSchema": {"type": "object", "title": "${D}"},
}  # fmt: skip
TURNS: dict[str, Any] = {
    "defaultModel": "@(fast)",
    "fallback": "@(fast)",
    "defaultModelConfig.model": "@(fast)",
    "defaultModelConfig.situation": "${SITUATION}",
    **{f"defaultModelConfig.{name}": value for name, value in PARAMETERS.items()},
    "permissions.tools.allow": ["read"],
    "permissions.tools.deny": ["shell"],
    "permissions.sandbox.files": "everything",
    "permissions.sandbox.network": True,
    "permissions.sandbox.hosts": ["pypi.org"],
    "permissions.credentials": ["key"],
    "toolset": "full",
    "compaction.model": "@(fast)",
    "compaction.strategy": "summary",
    "compaction.threshold": 0.5,
    "compaction.everyTurns": "${N}",
    "compaction.everyTokens": "${N}",
    "compaction.keep": "${N}",
    "compaction.focus": "f",
    "compaction.automatic": "${N}",
}
EXAMPLES: dict[str, dict[str, Any]] = {
    "code": {"language": "python", "source": "2", "inputSchema": {"type": "object"}},
    "provider": {
        "providerType": "anthropic", "baseUrl": "https://evil.example", "accountId": "a", "gatewayId": "g",
        "api": "${API}", "credential": "key", "gatewayCredential": "key", "allowPrivate": True, "caFile": "/etc/ca",
        "connectSeconds": "${S}", "readSeconds": "${S}", "timeout": "${S}", "apiKey": "${KEY}", "token": "${KEY}",
        "key": "${KEY}", "secret": "${KEY}", "password": "${KEY}",
    },
    "model": {
        "modelId": "${M}", "provider": "@(there)", **PARAMETERS, "situations": {"s": {"temperature": "${T}"}},
        "fallbacks": ["@(fast)"], "images": "${I}", "contextWindow": "${W}", "api": "${F}",
        "promptCache": "${P}",
    },
    "session": {
        **TURNS, "owner": "@(scout)", "logFile": "/tmp/log", "workspace": "/home/owner", "role": "manager",
    },
    "agent": {
        **TURNS,
        "identity.name": "n", "identity.emoji": "e", "identity.avatar": "a", "identity.description": "d",
        "identity.soul": "t", "permissions.programs": ["session:read"], "tools": ["@(tool)"],
        "harness.maxTurns": 1, "harness.maxTokens": 1, "harness.maxCost": 1, "harness.maxSeconds": 1,
        "harness.reflectOnFailure": True, "harness.maxReflections": 1, "harness.checkpointEvery": 1,
        "createdBy": "x", "removal": "owner", "unattended_writes": True,
    },
    "task": {
        "title": "U", "spec.inputs": ["i"], "spec.outputs": ["o"], "spec.constraints": ["c"],
        "spec.successCriteria": [{"type": "command", "command": "cat ~/.netrc"}], "assignee": "@(scout)",
        "priority": "P0", "dependencies": ["@(job)"], "workspace": "/home/owner",
    },
    "information": {"infoType": "pattern", "content": 2, "schema": "@(form)", "sources": ["@(job)"]},
    "human": {
        "permissions": ["session:read"], "email": "e@f.g", "image": "http://x/y", "preferences.notificationChannel":
        "command", "preferences.command": "${COMMAND}", "preferences.webhook": "https://evil.example/hook",
    },
    "toolset": {
        "tools.allow": ["*"], "tools.deny": ["shell"], "sandbox.files": "everything", "sandbox.network": True,
        "sandbox.hosts": ["*"], "workers": "full",
    },
    "trigger": {
        "on.cron.expression": "0 7 * * *", "on.cron.zone": "UTC", "on.interval": "15m",
        "on.at.time": "2026-11-20T12:00:00Z", "on.at.zone": "UTC", "on.webhook.secret": "${SECRET}",
        "on.webhook.scheme": "github", "on.webhook.toleranceSeconds": 9, "on.event.kind": "session_created",
        "on.event.filter": {}, "on.file.folder": "/home/owner", "on.file.patterns": ["*"], "on.task": "other",
        "on.room": "plans", "to.persona": "scout", "to.session": "s", "to.thread": "s~0", "to.smart": "s",
        "to.room": "plans", "to.sender": "event.user", "message": "n", "include.sessions": "today", "onMissed": "all",
        "breaker": 2,
    },
}  # fmt: skip
"""A value of every field that names what can be named in it. One that is not here fails the first test."""
REFUSED_BY_ITSELF = {"provider": {"headers"}}
"""Fields that nobody may set to anything."""
NEEDED_BESIDE: dict[str, dict[str, Any]] = {
    "on.cron.zone": {"expression": "0 7 * * *"},
    "on.at.zone": {"time": "2026-11-20T12:00:00"},
    "on.webhook.secret": {"scheme": "github"},
    "on.webhook.scheme": {"secret": "${SECRET}"},
    "on.webhook.toleranceSeconds": {"secret": "${SECRET}", "scheme": "github"},
    "on.event.filter": {"kind": "session_created"},
    "on.file.patterns": {"folder": "/home/owner"},
    "to.room": {"persona": "scout"},
}
"""What stands beside a field in its object, where it cannot stand alone."""
HARMLESS = {
    "defaultModelConfig.model",
    "defaultModelConfig.maxTokens",
    "maxTokens",
    "on.webhook.scheme",
    "provider",
    "fallbacks",
}
"""Fields that may hold variables, whose example holds none."""


def places(kind: KindRow) -> set[str]:
    """The places of all fields that hold a value themselves."""
    names = {".".join(place) for place in kind.form.names()}
    return names - {name.rpartition(".")[0] for name in names}


def example(kind: KindRow, place: str) -> dict[str, Any]:
    """The kind's configuration with this field set."""
    first, *rest = place.split(".")
    value = {**EXAMPLES[kind.name], **COMMON}[place]
    if rest:
        *middle, last = rest
        value = {**NEEDED_BESIDE.get(place, {}), last: value}
        for name in reversed(middle):
            value = {name: value}
    config = {**MINIMAL[kind.name], first: value}
    if first == "tools" and kind.name == "toolset":
        config["tools"] = {"allow": ["read"], **value}
    return config


def named(kind: KindRow, place: str) -> bool:
    """Whether the example of a field names something of the machine."""
    before = kind.machine_names(kind.checked_config(MINIMAL[kind.name]))
    return bool(kind.machine_names(kind.checked_config(example(kind, place))) - before)


@pytest.mark.parametrize("kind", ROWS, ids=lambda kind: kind.name)
def test_every_field_has_an_example_and_those_that_name_the_machine_name_it(kind: KindRow) -> None:
    fields = places(kind)
    assert fields - REFUSED_BY_ITSELF.get(kind.name, set()) == {*EXAMPLES[kind.name], *COMMON}
    declared = {
        place
        for place in fields - REFUSED_BY_ITSELF.get(kind.name, set())
        if next(field for path, field in kind.machine_fields.items() if place == path or place.startswith(f"{path}."))
        not in (NOTHING, TEMPLATE)
    }
    naming = {place for place in declared if named(kind, place)}
    silent = {"permissions.credentials"} | {place for place in declared if place.startswith("compaction.")}
    assert declared - naming <= HARMLESS | silent
    assert not any(named(kind, place) for place in set(EXAMPLES[kind.name]) - declared if place != "on.file.patterns")


def test_a_field_of_which_nobody_said_what_it_names_makes_no_kind() -> None:
    agent = KINDS["agent"]
    with pytest.raises(AssertionError, match="agent what it names of the machine: shell"):
        structs.replace(agent, fields={**agent.fields, "shell": text})
    inner = ConfigFields({"maxTurns": text, "shell": text})
    with pytest.raises(AssertionError, match=r"harness\.shell"):
        structs.replace(agent, fields={**agent.fields, "harness": inner})
    sandbox = ConfigFields({"sandbox": ConfigFields({"files": text, "network": text, "hosts": text, "mounts": text})})
    with pytest.raises(AssertionError, match=r"permissions\.sandbox\.mounts"):
        structs.replace(agent, fields={**agent.fields, "permissions": sandbox})


def test_every_field_of_every_criterion_is_a_command_or_known_to_name_nothing() -> None:
    fields = {name for _, names in CRITERION_FIELDS.values() for name in names}
    assert [name for name in sorted(fields) if list(criterion_commands([{"type": "contains", name: "x"}]))] == [
        "command"
    ]
    assert list(criterion_commands([{"type": "contains", "text": "x", "environment": {}}]))


# --- who, and how ---------------------------------------------------------------------------------------------------

STRONG = ["configure", "configure(*)", "assign", "session:*", "turn:*", "program:read", "ledger:read"]
ACTORS: dict[str, Authority] = {
    "a person without rights": Authority((Principal(PrincipalKind.HUMAN, "ann"),)),
    "a person with all other rights": Authority((Principal(PrincipalKind.HUMAN, "eve"),)),
    "a participant of a room": Authority((Principal(PrincipalKind.HUMAN, "guest"),)),
    "an agent, whatever it was permitted": Authority((Principal(PrincipalKind.AGENT, "scout"),)),
    "a token": LOCAL.child(rights(["program:*", "session:*", "turn:*"])),
    "a worker": LOCAL.delegate(Principal(PrincipalKind.AGENT, "scout")),
}


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with weft.open(":memory:", clock=FixedClock(NOON)) as ledger:
        programs = Programs(ledger)
        programs.create("human", "ann", {})
        programs.create("human", "eve", {"permissions": STRONG})
        programs.create("human", "guest", {"permissions": STRONG})
        programs.create("agent", "scout", {"permissions": {"programs": [*STRONG, "machine:*"]}})
        programs.create("provider", "there", {"providerType": "openai"})
        programs.create("model", "fast", {"modelId": "m", "provider": "@(there)"})
        programs.create("task", "job", {"title": "J"})
        programs.create("code", "tool", {"source": "1"})
        programs.create("information", "form", {"infoType": "schema", "content": True})
        ledger.rooms.create("plans", agents=["scout"], people=["guest"])
        for kind, config in MINIMAL.items():
            create(programs, kind, f"own-{kind}", config)
        yield ledger


def create(programs: Programs, kind: str, name: str, config: dict[str, Any]) -> Any:
    if kind == "session":
        return programs.create_session(name, config=config)
    return programs.create(kind, name, config)


def applied(programs: Programs, kind: str, name: str, config: dict[str, Any]) -> Any:
    return programs.apply(wanted_in({"id": name, "programType": kind, "config": config}, "here"))


def changed(programs: Programs, kind: str, name: str, config: dict[str, Any]) -> Any:
    """What sets a trigger off takes the place of what did so before."""
    occasion = {"on": {"task": None, **config["on"]}} if kind == "trigger" else {}
    return programs.change(name, {**config, **occasion})


WAYS: dict[str, Callable[[Programs, str, str, dict[str, Any]], Any]] = {
    "create": lambda programs, kind, _, config: create(programs, kind, f"new-{kind}", config),
    "configure": lambda programs, _, name, config: programs.configure(name, config),
    "change": changed,
    "apply": applied,
    "apply anew": lambda programs, kind, _, config: applied(programs, kind, f"new-{kind}", config),
}


def refusal(attempt: Callable[[], Any]) -> WeftError | None:
    try:
        attempt()
    except WeftError as error:
        return error
    return None


@pytest.mark.slow("all fields of a kind, each in five ways as six principals")
@pytest.mark.parametrize("kind", share(ROWS, test=4), ids=lambda kind: kind.name)
def test_what_names_the_machine_is_set_by_the_owner_alone(ledger: Ledger, kind: KindRow) -> None:
    own = f"own-{kind.name}"
    before = exported(ledger)
    for place in sorted(EXAMPLES[kind.name]):
        if not named(kind, place):
            continue
        for who, authority in ACTORS.items():
            for how, way in WAYS.items():
                acting = Programs(ledger.acting_as(authority))
                refused = refusal(partial(way, acting, kind.name, own, example(kind, place)))
                assert isinstance(refused, NotAllowed | NotFound), (who, place, how, refused)
    assert exported(ledger) == before


@pytest.mark.parametrize("kind", share(ROWS, test=4), ids=lambda kind: kind.name)
def test_what_names_nothing_of_the_machine_is_refused_to_nobody_for_that(ledger: Ledger, kind: KindRow) -> None:
    for place in sorted({*EXAMPLES[kind.name], *COMMON}):
        if named(kind, place):
            continue
        for who, authority in ACTORS.items():
            acting, config = Programs(ledger.acting_as(authority)), example(kind, place)
            refused = refusal(partial(acting.change, f"own-{kind.name}", config))
            assert not getattr(refused, "right", "").startswith("machine:"), (who, place, refused)


@pytest.mark.parametrize("kind", ROWS, ids=lambda kind: kind.name)
def test_the_owner_sets_every_field(ledger: Ledger, kind: KindRow) -> None:
    programs = Programs(ledger)
    for place in sorted(EXAMPLES[kind.name]):
        assert applied(programs, kind.name, f"own-{kind.name}", example(kind, place))


SETTING: tuple[tuple[str, str, str], ...] = (
    ("session", "workspace", "machine:folder(/home/*)"),
    ("session", "toolset", "machine:toolset(full)"),
    ("session", "permissions.sandbox.hosts", "machine:host(pypi.org)"),
    ("session", "permissions.sandbox.files", "machine:sandbox(everything)"),
    ("provider", "baseUrl", "machine:host(evil.*)"),
    ("provider", "apiKey", "machine:variable(KEY)"),
    ("provider", "credential", "machine:credential(k*)"),
    ("task", "spec.successCriteria", "machine:command"),
    ("trigger", "on.file.folder", "machine:folder"),
)


@pytest.mark.parametrize(("kind", "place", "right"), SETTING)
def test_a_right_that_names_it_sets_it_and_no_other(ledger: Ledger, kind: str, place: str, right: str) -> None:
    programs, config = Programs(ledger), example(KINDS[kind], place)
    programs.create("human", "ops", {"permissions": [*STRONG, right]})
    programs.create("human", "other", {"permissions": [*STRONG, f"{right.partition('(')[0]}(x)"]})
    with pytest.raises(NotAllowed):
        programs.acting_as("other").configure(f"own-{kind}", config)
    programs.acting_as("ops").configure(f"own-{kind}", config)
    assert programs.get(f"own-{kind}").unvouched == ()


def test_a_limit_that_the_owner_set_is_taken_away_or_widened_by_nobody_else(ledger: Ledger) -> None:
    programs = Programs(ledger)
    limits = {"sandbox": {"files": "read-only", "network": False}, "credentials": ["one"]}
    programs.change("own-session", {"permissions": limits})
    eve = programs.acting_as("eve")
    for changes in (
        {"sandbox": None},
        {"sandbox": {"files": "workspace"}},
        {"sandbox": {"network": None}},
        {"sandbox": {"network": None, "hosts": ["pypi.org"]}},
        {"credentials": None},
        {"credentials": ["one", "two"]},
    ):
        with pytest.raises(NotAllowed, match="eve may not set permissions"):
            eve.change("own-session", {"permissions": changes})
    eve.change("own-session", {"permissions": {"credentials": [], "tools": {"deny": ["shell"]}}})


def test_an_earlier_version_is_brought_back_by_those_alone_who_may_write_it(ledger: Ledger) -> None:
    programs = Programs(ledger)
    programs.change("own-task", {"workspace": "/home/owner"})
    programs.change("own-task", {"workspace": None})
    with pytest.raises(NotAllowed, match="set workspace"):
        programs.acting_as("eve").revert("own-task", 2)
    assert programs.revert("own-task", 2).config["workspace"] == "/home/owner"


def test_what_another_ledger_names_is_taken_over_by_those_alone_who_may_name_it(ledger: Ledger) -> None:
    programs = Programs(ledger)
    with copy_in_memory(ledger) as other:
        Programs(other).configure("own-task", {"title": "T", "workspace": "/home/owner"})
        Programs(other).configure("own-session", {"workspace": "/home/owner"})
        import_into(ledger, exported(other))
    for name in ("own-task", "own-session"):
        with pytest.raises(NotAllowed, match="set workspace"):
            programs.acting_as("eve").take_over(name)
        programs.take_over(name)
        assert programs.get(name).config["workspace"] == "/home/owner"
        assert programs.get(name).unvouched == ()


def test_nobody_gives_a_right_to_the_machine_that_they_lack(ledger: Ledger) -> None:
    programs = Programs(ledger)
    programs.create("human", "ops", {"permissions": ["configure", "machine:folder(/srv/*)"]})
    for authority in ("ops", "eve", ACTORS["a token"]):
        acting = Programs(ledger.acting_as(authority))
        for right in ("machine:folder(/*)", "machine:*", "machine:host(x)", "configure(*)"):
            if right.startswith("configure") and authority != "ops":
                continue
            with pytest.raises(NotAllowed):
                pytest.fail(
                    f"{authority} gave {right}: {acting.create('human', 'twin', {'permissions': [right]}).name}"
                )


def test_who_set_what_before_is_asked_for_each_name(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the version since which a name stands there: what others wrote beside it since changes nothing."""
    programs = Programs(ledger)
    eve = programs.acting_as("eve")
    programs.change("own-session", {"toolset": "worker"})
    with monkeypatch.context() as before:
        for method in ("permit_machine", "permit_machine_change"):
            before.setattr(ProgramWriter, method, lambda *_: None)
        eve.change("own-session", {"workspace": "/home/owner", "logFile": "/tmp/log"})
    with pytest.raises(NotApplicable, match="set more of 'own-session' than is given: logFile"):
        programs.change("own-session", {"workspace": "/home/owner"})
    programs.change("own-session", {"logFile": None})
    assert [name.path for name in programs.get("own-session").unvouched] == ["workspace"]
    programs.change("own-session", {"metadata": {"a": 1}})
    eve.change("own-session", {"metadata": {"a": 2}})
    assert [(name.path, name.by) for name in programs.get("own-session").unvouched] == [("workspace", ("eve",))]
    programs.change("own-session", {"workspace": "/home/owner", "metadata": {"a": 3}})
    assert programs.get("own-session").unvouched == ()
    eve.change("own-session", {"metadata": {"a": 4}})
    assert programs.get("own-session").unvouched == ()
    assert programs.get("own-session").config["workspace"] == "/home/owner"
