"""What all kinds of program have in common: names, configurations, versions, publishing, deleting, retry keys."""

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.graph.histories import new
from tests.ledger.histories import copy_in_memory, exported, import_into, lines, problems
from tests.programs.stories import MODEL, PROVIDER
from weft.kernel.clock import FixedClock
from weft.kernel.enums import ProgramKind
from weft.kernel.errors import (
    IllegalTransition,
    InvalidConfig,
    InvalidInput,
    KeyTaken,
    LabelTaken,
    NotApplicable,
    NotFound,
    VersionConflict,
)
from weft.kernel.program_events import PROGRAM_KINDS, legal_verbs
from weft.ledger.api.ledger import Ledger
from weft.ledger.api.resources import ResourceLog
from weft.programs import Programs


def kinds(programs: Programs, name: str) -> list[str]:
    return [change.kind for change in reversed(programs.history(name))]


def test_a_program_is_ensured_once_and_configured_where_it_is_otherwise(programs: Programs) -> None:
    provider = {"providerType": "openai-compatible", "baseUrl": "https://one.example", "apiKey": "${ONE_KEY}"}
    made = programs.ensure("provider", "one", provider)
    programs.ensure("agent", "met", {"identity": {"soul": "You are Met."}})
    newest = programs.ledger.newest()
    assert programs.ensure("provider", "one", provider).version == made.version
    programs.ensure("agent", "met", {"identity": {"soul": "You are Met."}})
    assert programs.ledger.newest() == newest
    changed = programs.ensure("provider", "one", {**provider, "baseUrl": "https://two.example"})
    assert (changed.id, changed.config["baseUrl"]) == (made.id, "https://two.example")
    with pytest.raises(LabelTaken):
        programs.ensure("model", "one", {"provider": "one", "modelId": "m-1"})
    programs.delete("one")
    assert programs.ensure("provider", "one", provider).id != made.id


def test_a_program_is_told_in_one_shape(programs: Programs) -> None:
    shape = programs.get("cf-gateway").shape()
    assert {name: shape[name] for name in ("id", "type", "programType", "lifecycle", "config")} == {
        "id": "cf-gateway",
        "type": "program",
        "programType": "provider",
        "lifecycle": "published",
        "config": PROVIDER,
    }
    assert programs.get("claude-balanced").shape()["config"] == MODEL
    assert programs.get("bln").shape()["state"] == "available"
    assert problems(programs.ledger) == []


def test_each_change_is_an_event_in_the_programs_own_stream(programs: Programs) -> None:
    programs.change("claude-balanced", {"temperature": 0.2})
    programs.deprecate("claude-balanced", reason="a better one is out")
    told = ["model_created", "program_published", "model_configured", "program_deprecated"]
    assert kinds(programs, "claude-balanced") == told
    stream = f'"stream":"program:{programs.get("claude-balanced").id}"'.encode()
    assert sum(stream in line for line in lines(programs.ledger)) == len(told)


def test_names_and_configurations_are_in_no_event(programs: Programs) -> None:
    everything = b"\n".join(lines(programs.ledger))
    for word in (b"cf-gateway", b"Claude Balanced", b"CLOUDFLARE", b"research", b"Brian", b"two-level"):
        assert word not in everything


def test_a_draft_is_published_by_command(programs: Programs) -> None:
    made = programs.create("provider", "later", PROVIDER, draft=True)
    assert made.state == "draft"
    assert programs.publish("later").state == "published"
    with pytest.raises(IllegalTransition) as refused:
        programs.publish("later")
    assert refused.value.legal == {"deprecate": "deprecated"}
    assert "deprecate (to deprecated)" in refused.value.hint


def test_a_name_belongs_to_one_living_program(programs: Programs) -> None:
    with pytest.raises(LabelTaken):
        programs.create("model", "cf-gateway", MODEL)
    first = programs.create("provider", "short", PROVIDER)
    programs.delete("short")
    second = programs.create("provider", "short", PROVIDER)
    assert programs.get("short").id == second.id != first.id
    hidden = programs.get(first.id)
    assert (hidden.deleted, hidden.state) == (True, "deprecated")
    assert [one.name for one in programs.all("provider")] == ["cf-gateway", "short"]
    assert len(programs.all("provider", deleted=True)) == 3
    assert kinds(programs, first.id)[-1] == "program_deleted"


@pytest.mark.parametrize("name", ["", " a", "@(a)", "a(b)", "model:3", "local", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "a\nb"])
def test_a_name_cannot_be_mistaken_for_something_else(unchanged_world: Programs, name: str) -> None:
    with pytest.raises(InvalidInput):
        unchanged_world.create("provider", name, PROVIDER)


def test_what_others_name_is_not_deleted(programs: Programs) -> None:
    with pytest.raises(NotApplicable, match="named by 'claude-balanced'"):
        programs.delete("cf-gateway")
    assert not programs.get("cf-gateway").deleted


def test_a_change_names_the_version_it_saw(programs: Programs) -> None:
    seen = programs.get("claude-balanced").version
    programs.change("claude-balanced", {"temperature": 0.2}, expected=seen)
    with pytest.raises(VersionConflict) as refused:
        programs.change("claude-balanced", {"temperature": 0.9}, expected=seen)
    assert (refused.value.expected, refused.value.actual) == (1, 2)
    assert programs.get("claude-balanced").config["temperature"] == 0.2
    with pytest.raises(VersionConflict):
        programs.delete("claude-balanced", expected=seen)


def test_a_change_that_changes_nothing_is_no_event(programs: Programs) -> None:
    programs.change("claude-balanced", {"temperature": MODEL["temperature"]})
    programs.configure("claude-balanced", MODEL)
    assert programs.get("claude-balanced").version == 1


def test_of_two_who_saw_the_same_version_one_wins(programs: Programs) -> None:
    outcomes: list[str] = []

    def work(temperature: float) -> None:
        try:
            programs.change("claude-balanced", {"temperature": temperature}, expected=1)
            outcomes.append("won")
        except VersionConflict:
            outcomes.append("lost")

    threads = [threading.Thread(target=work, args=(i / 10,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["lost", "lost", "lost", "won"]
    assert programs.get("claude-balanced").version == 2


def test_versions_are_addressed_compared_and_taken_up_again(programs: Programs) -> None:
    programs.change("claude-balanced", {"temperature": 0.2, "topP": None, "stop": ["END"]}, reason="calmer")
    assert programs.get("@(claude-balanced:1)").config == MODEL
    assert {(one.path, one.how) for one in programs.diff("claude-balanced")} == {
        ("temperature", "changed"),
        ("topP", "removed"),
        ("stop", "added"),
    }
    assert programs.revert("claude-balanced", 1).config == MODEL
    assert programs.get("claude-balanced").version == 3
    assert programs.diff("claude-balanced", 1, 3) == []
    assert [change.version for change in programs.history("claude-balanced") if change.config] == [3, 2, 1]
    with pytest.raises(NotFound):
        programs.get("@(claude-balanced:9)")
    with pytest.raises(NotFound):
        programs.revert("claude-balanced", 9)


def test_a_retry_with_the_same_key_is_done_once(programs: Programs) -> None:
    first = programs.create("provider", "p", PROVIDER, key="k1")
    before = len(lines(programs.ledger))
    assert programs.create("provider", "p", PROVIDER, key="k1").id == first.id
    assert len(lines(programs.ledger)) == before
    with pytest.raises(KeyTaken):
        programs.create("provider", "q", PROVIDER, key="k1")
    request = programs.notify("bln", "hello", key="k2")
    assert programs.notify("bln", "hello", key="k2") == request


def test_a_key_is_forgotten_after_thirty_days(disk: Ledger, clock: FixedClock) -> None:
    programs = Programs(disk)
    programs.create("provider", "p", PROVIDER, key="k")
    clock.tick(31 * 24 * 3600 * 1000)
    programs.create("provider", "q", PROVIDER, key="other")
    with pytest.raises(LabelTaken):
        programs.create("provider", "p", PROVIDER, key="k")


@pytest.mark.parametrize(
    ("kind", "config", "path"),
    [
        ("provider", {}, "config.providerType"),
        ("provider", {"providerType": "x", "apiKey": "sk-secret"}, "config.apiKey"),
        ("provider", {"providerType": "x", "headers": {"Authorization": "Bearer abc"}}, "config.headers"),
        ("provider", {"providerType": "x", "headers": {"X-Team": "red"}}, "config.headers"),
        ("provider", {"providerType": "x", "api_key": "sk-secret"}, "config.api_key"),
        ("provider", {"providerType": "x", "auth": [{"bearerToken": "abc"}]}, "config.auth[0].bearerToken"),
        ("provider", {"providerType": "x", "baseUrl": "https://user:word@host/v1"}, "config.baseUrl"),
        ("provider", {"providerType": "x", "baseUrl": "https://host/v1?key=sk-secret"}, "config.baseUrl"),
        ("provider", {"providerType": "x", "baseUrl": "ftp://host"}, "config.baseUrl"),
        ("provider", {"providerType": "x", "baseUrl": "https://[host"}, "config.baseUrl"),
        ("model", {**MODEL, "OPENAI_API_KEY": "sk-secret"}, "config.OPENAI_API_KEY"),
        ("model", {"modelId": "m"}, "config.provider"),
        ("model", {"modelId": "m", "provider": "@(nobody)"}, "config.provider"),
        ("model", {"modelId": "m", "provider": "@(bln)"}, "config.provider"),
        ("model", {"modelId": "m", "provider": "@(cf-gateway:7)"}, "config.provider"),
        ("model", {**MODEL, "temperature": "hot"}, "config.temperature"),
        ("model", {**MODEL, "situations": {"coding": {"maxTokens": 0}}}, "config.situations.coding.maxTokens"),
        ("agent", {"defaultModel": "@(cf-gateway)"}, "config.defaultModel"),
        ("agent", {"tools": ["@(nothing)"]}, "config.tools[0]"),
        ("agent", {"tools": ["shell"]}, "config.tools[0]"),
        ("agent", {"tools": ["cf-gateway"]}, "config.tools[0]"),
        ("agent", {"soul": "one", "systemPrompt": "two"}, "config.identity.soul"),
        ("agent", {"harness": {"maxTurns": -1}}, "config.harness.maxTurns"),
        ("task", {"title": " "}, "config.title"),
        ("task", {"title": "t", "priority": "urgent"}, "config.priority"),
        ("task", {"title": "t", "assignee": "@(cf-gateway)"}, "config.assignee"),
        ("task", {"title": "t", "dependencies": "first"}, "config.dependencies"),
        ("information", {"infoType": "rumour", "content": 1}, "config.infoType"),
        ("information", {"infoType": "fact", "content": 1, "schema": "@(info-quantum-basics)"}, "config.schema"),
        ("human", {"permissions": ["everything"]}, "config.permissions[0]"),
        ("human", {"preferences": {"notificationChannel": "pigeon"}}, "config.preferences.notificationChannel"),
        ("code", {"language": "cobol", "source": "x"}, "config.language"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused_where_it_does_not(
    unchanged_world: Programs, kind: str, config: dict[str, Any], path: str
) -> None:
    before = len(lines(unchanged_world.ledger))
    with pytest.raises(InvalidConfig) as refused:
        unchanged_world.create(kind, "new", config)
    assert refused.value.path == path
    assert refused.value.hint
    assert len(lines(unchanged_world.ledger)) == before


def test_a_key_of_a_provider_is_a_variable(world: Programs) -> None:
    made = world.create("provider", "keyed", {"providerType": "openai", "apiKey": "${OPENAI_API_KEY}"})
    assert made.config["apiKey"] == "${OPENAI_API_KEY}"


def test_a_deprecated_program_is_not_configured(world: Programs) -> None:
    world.deprecate("claude-balanced")
    with pytest.raises(NotApplicable):
        world.change("claude-balanced", {"temperature": 0})


def test_an_agent_that_was_only_named_is_described_later(programs: Programs) -> None:
    programs.ledger.record_turn(session="main", persona="ann", query="q")
    named = programs.get("ann")
    assert (named.version, named.config, named.state) == (0, None, "idle")
    described = programs.create("agent", "ann", {"personality": "kind"})
    assert (described.id, described.version) == (named.id, 1)
    assert described.config == {"identity": {"soul": "kind"}}
    programs.ledger.record_turn(session="main", persona="ann", query="q")
    assert [one.name for one in programs.all("agent")] == ["ann", "researcher"]
    with pytest.raises(LabelTaken):
        programs.create("agent", "ann", {})


@pytest.mark.parametrize("name", ["prompt", "soul", "systemPrompt", "personality"])
def test_an_agents_prompt_goes_by_any_of_its_names_also_where_it_is_changed(programs: Programs, name: str) -> None:
    assert programs.create("agent", "ann", {name: "kind"}).config == {"identity": {"soul": "kind"}}
    changed = programs.change("ann", {name: "strict", "description": "reads"})
    assert changed.config == {"identity": {"soul": "strict", "description": "reads"}}
    assert programs.change("ann", {name: None}).config == {"identity": {"description": "reads"}}
    with pytest.raises(InvalidConfig):
        programs.change("ann", {name: "one", "soul" if name != "soul" else "prompt": "two"})


def test_pages_and_examples_call_an_agents_prompt_by_one_name() -> None:
    root = Path(__file__).parents[2]
    other_names = re.compile(r"""["']?(soul|systemPrompt|personality)["']?: """)
    pages = [*(root / "docs").glob("*.md"), root / "README.md", *(root / "examples").glob("*.yaml")]
    assert [(page.name, match[0]) for page in pages for match in other_names.finditer(page.read_text())] == []


def test_a_program_that_does_not_act_owns_no_session(programs: Programs) -> None:
    with pytest.raises(LabelTaken):
        programs.ledger.record_turn(session="main", persona="cf-gateway", query="q")


def test_facts_alone_give_the_same_programs(programs: Programs) -> None:
    programs.change("claude-balanced", {"temperature": 0.2})
    programs.add_tags("claude-balanced", "trusted")
    with copy_in_memory(programs.ledger) as other:
        there = Programs(other)
        there.take_over(source=programs.ledger.replica)
        for one in programs.all():
            assert there.get(one.name) == one
            history = [replace(change, foreign=False) for change in there.history(one.name)]
            assert history == programs.history(one.name)
        assert problems(other) == []


def test_what_is_erased_of_a_configuration_is_gone_and_the_rest_verifies(programs: Programs) -> None:
    programs.change("claude-balanced", {"temperature": 0.2})
    doomed = next(line for line in lines(programs.ledger) if b'"kind":"model_configured"' in line)
    ref = doomed.partition(b'"config":"')[2][:64].decode()
    programs.ledger.erasure.erase(ref, reason="asked to")
    assert programs.get("claude-balanced").config == "[erased]"
    assert programs.get("@(claude-balanced:1)").config == MODEL
    assert programs.revert("claude-balanced", 1).config == MODEL
    assert problems(programs.ledger) == []


def test_the_name_of_a_program_can_be_erased(programs: Programs) -> None:
    made = programs.create("human", "Jane Doe", {"name": "Jane"})
    line = [line for line in lines(programs.ledger) if b'"kind":"human_created"' in line][-1]
    programs.ledger.erasure.erase(line.partition(b'"name":"')[2][:64].decode(), reason="asked to")
    programs.ledger.erasure.finish()
    assert programs.get(made.id).name == made.id
    assert problems(programs.ledger) == []


def test_rebuilding_changes_nothing(programs: Programs) -> None:
    before = [(one, programs.history(one.name)) for one in programs.all()]
    assert programs.ledger.upkeep.rebuild() == 0
    assert [(one, programs.history(one.name)) for one in programs.all()] == before


def test_machines_lead_only_to_states_that_they_know() -> None:
    assert set(PROGRAM_KINDS) == set(ProgramKind)
    for kind, facts in PROGRAM_KINDS.items():
        states = {facts.first_state}
        states |= {state for targets in facts.verbs.values() for state in targets}
        for state in states:
            assert all(to for to in legal_verbs(kind, state, "thinking").values())


def test_no_program_is_found_by_a_name_that_nobody_has(programs: Programs) -> None:
    for name in ("nobody", "@(nobody)", "01ARZ3NDEKTSV4RRFFQ69G5FAV"):
        with pytest.raises(NotFound):
            programs.get(name)
    for name in ("", "@()", "@(a(b))"):
        with pytest.raises(InvalidInput):
            programs.get(name)
    with pytest.raises(InvalidInput):
        programs.create("daemon", "x", {})


def test_true_is_not_one(world: Programs) -> None:
    world.create("provider", "p", {"providerType": "x", "metadata": {"flag": 1, "deep": [{"a": True}]}})
    assert world.change("p", {"metadata": {"flag": True}}).version == 2
    assert world.change("p", {"metadata": {"deep": [{"a": 1}]}}).version == 3
    assert [one.path for one in world.diff("p", 1, 3)] == ["metadata.flag", "metadata.deep"]
    assert world.change("p", {"metadata": {"flag": True}}).version == 3


def test_a_persona_that_looks_like_a_version_is_found_by_its_name(world: Programs) -> None:
    world.ledger.record_turn(session="main", persona="team:2", query="q")
    assert world.get("team:2").kind == "agent"
    assert world.change("team:2", {"soul": "many"}).config == {"identity": {"soul": "many"}}


def test_a_session_and_a_program_of_one_name_are_both_found(world: Programs) -> None:
    session = world.create_session("bln")
    assert world.get("bln").kind == "human"
    assert world.get(session.id).kind == "session"
    assert world.get("bln", "human").kind == "human"


def test_two_ledgers_that_went_apart_keep_all_events_and_a_legal_state(disk: Ledger) -> None:
    here = Programs(disk)
    here.create("task", "t", {"title": "T"})
    with copy_in_memory(disk) as other:
        there = Programs(other)
        here.start_task("t")
        here.complete_task("t", answer="done")
        there.start_task("t")
        there.fail_task("t", reason="no time")
        there.create("task", "same", {"title": "theirs"})
        here.create("task", "same", {"title": "ours"})
        import_into(disk, exported(other))
    assert here.get("t").state == "completed"
    assert [change.kind for change in here.history("t")][:2] == ["task_failed", "task_started"]
    assert here.get("same").config["title"] == "ours"
    assert [one.config["title"] for one in here.all("task") if one.name.startswith("same (")] == ["theirs"]
    assert problems(disk) == []
    assert disk.upkeep.rebuild() == 0


def test_an_address_names_a_session_a_room_a_resource_and_a_policy(ledger: Ledger) -> None:
    turn = ledger.record_turn(session="main", query="Hi", response="Hello")
    room = ledger.rooms.create("plans")
    resource = ResourceLog(ledger).declare(new("site"))
    policy = ledger.policies.propose("careful", "print(1)")
    assert ledger.session("@(main)").head == turn.id
    assert ledger.turn("@(main)").id == ledger.turn(f"@({turn.id})").id == turn.id
    assert ledger.inbox.admit("more", session="@(main)").session == "main"
    assert ledger.rooms.get("@(plans)").id == ledger.rooms.get(f"@({room.id})").id == room.id
    assert ledger.resources.get("@(site)").id == ledger.resources.get(f"@({resource.id})").id == resource.id
    assert ledger.policies.get("@(careful)").id == ledger.policies.get(f"@({policy.id})").id == policy.id
    with pytest.raises(NotFound):
        ledger.session("@(nobody)")
