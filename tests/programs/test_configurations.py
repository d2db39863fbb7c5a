"""Configurations: every example of the design runs as it is written, and no field is dropped in silence."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.programs.conftest import OpenLedger
from tests.programs.stories import AGENT, HUMAN, MODEL, PROVIDER, TASK
from weft.exchange.sync import pull
from weft.kernel.errors import InvalidConfig, NotAllowed, NotFound
from weft.ledger.api.ledger import Ledger
from weft.programs import Programs, kind_table, program_kinds, tasks
from weft.programs.config_fields import RIGHTS_BY_NAME, WHOLE_RIGHTS
from weft.programs.kind_table import KINDS
from weft.programs.program_changes import read_files, read_text, wanted_in

EXAMPLES = """
{
  id: "cf-gateway",
  type: "program",
  programType: "provider",
  lifecycle: "published",  // draft → published → deprecated
  config: {
    providerType: "cloudflare-ai-gateway",
    accountId: "${CLOUDFLARE_ACCOUNT_ID}",
    gatewayId: "${CLOUDFLARE_GATEWAY_ID}",
    // API key from env, not stored
  }
}

{
  id: "claude-balanced",
  type: "program",
  programType: "model",
  lifecycle: "published",  // draft → published → deprecated
  config: {
    name: "Claude Balanced",
    modelId: "claude-sonnet-4-5",
    provider: "@(cf-gateway)",

    // Default inference params
    temperature: 0.7,
    maxTokens: 4000,
    topP: 0.9,

    // Situational overrides
    situations: {
      "coding": { temperature: 0, maxTokens: 8000 },
      "creative": { temperature: 0.95 },
      "quick": { maxTokens: 500 }
    }
  }
}

{
  id: "session-abc123",
  type: "program",
  programType: "session",
  lifecycle: "active",  // created → active ↔ paused → completed
  config: {
    owner: "@(agent-researcher)",
    defaultModel: "@(claude-balanced)",
    logFile: "sessions/abc123.jsonl",  // Or inline messages
  }
}

{
  id: "researcher",
  type: "program",
  programType: "agent",
  state: "idle",  // idle → thinking → executing → waiting → paused → error (runtime state)
  config: {
    name: "Research Agent",
    systemPrompt: "You are a research assistant...",
    tools: ["@(web-search)", "@(summarize)"],  // Program IDs
    defaultModel: "@(claude-balanced)",

    harness: {
      maxTurns: 50,
      reflectOnFailure: true,
      checkpointEvery: 5,
    },

    // Runtime state (populated when task assigned)
    currentTask: "task-123",           // Active task ID
    currentSession: "researcher_task-123_1706...",  // Session for this task
    turnCount: 5,
    lastCheckpoint: 5
  }
}

{
  id: "task-research-quantum",
  type: "program",
  programType: "task",
  lifecycle: "pending",  // pending → active → completed | failed | blocked
  config: {
    title: "Research quantum computing",
    spec: {
      inputs: ["topic: quantum computing"],
      outputs: ["summary document"],
      constraints: ["max 2000 words"],
      successCriteria: [
        { type: "file_exists", path: "quantum-research.md" },
        { type: "word_count", min: 1000 }
      ]
    },
    assignee: "@(researcher)",
    priority: "P1"
  }
}

{
  id: "info-quantum-basics",
  type: "program",
  programType: "information",
  lifecycle: "validated",  // draft → validated → active ↔ archived
  config: {
    infoType: "fact" | "schema" | "workflow" | "pattern",
    content: { ... },
    schema: "@(quantum-schema)",  // Optional validation
    sources: ["@(task-research-quantum)"],
  }
}

{
  id: "bln",
  type: "program",
  programType: "human",
  state: "available",  // available → busy → away → offline (presence state)
  config: {
    name: "Brian",
    preferences: {
      notificationChannel: "terminal",
    },
    permissions: ["approve", "assign", "configure"]
  }
}
"""
"""The seven examples of program types, letter by letter."""
NAMED = """
- {id: agent-researcher, programType: agent, config: {soul: You research.}}
- {id: web-search, programType: code, config: {source: export default 1}}
- {id: summarize, programType: code, config: {source: export default 2}}
- {id: quantum-schema, programType: information, config: {infoType: schema, content: {required: [qubit]}}}
"""
"""Programs that the examples name and do not show."""


def as_yaml(examples: str) -> str:
    """The examples as YAML's flow style: without comments, and with a value where they show a choice or an ellipsis."""
    text = re.sub(r"(^|\s)//.*", r"\1", examples)
    text = text.replace('"fact" | "schema" | "workflow" | "pattern"', '"fact"').replace("{ ... }", '{qubit: "two"}')
    return "\n---\n".join(text.strip().split("\n\n{")).replace("---\n", "---\n{")


def test_every_example_is_applied_as_it_is_written(disk: Ledger) -> None:
    programs = Programs(disk)
    wanted = [*read_text(NAMED, "named"), *read_text(as_yaml(EXAMPLES), "examples")]
    plan = {one.name: one for one in programs.apply(wanted)}
    assert {one.action for one in plan.values()} == {"create"}
    shown = {name: programs.get(name).shape() for name in plan}
    assert shown["session-abc123"]["config"] == {
        "owner": "@(agent-researcher)",
        "defaultModel": "@(claude-balanced)",
        "logFile": "sessions/abc123.jsonl",
    }
    assert shown["cf-gateway"]["config"] == PROVIDER
    assert shown["claude-balanced"]["config"] == MODEL
    identity = {"name": AGENT["name"], "soul": AGENT["systemPrompt"]}
    fields = {name: AGENT[name] for name in ("tools", "defaultModel", "harness")}
    assert shown["researcher"]["config"] == {"identity": identity, **fields}
    assert shown["task-research-quantum"]["config"] == TASK
    assert shown["bln"]["config"] == HUMAN
    assert shown["info-quantum-basics"]["lifecycle"] == "validated"
    told = [f"config.{name} is not set" for name in ("currentTask", "currentSession", "turnCount", "lastCheckpoint")]
    assert [note.partition(":")[0] for note in plan["researcher"].notes] == told
    assert plan["session-abc123"].notes == ["it is created, not active: no file changes the state of a session"]
    assert {name for name, one in plan.items() if one.notes} == {"researcher", "session-abc123"}
    assert {one.action for one in programs.apply(wanted)} == {"unchanged"}


# --- fields that nothing reads ----------------------------------------------------------------------------------

SMALLEST: dict[str, dict[str, Any]] = {
    "code": {"source": "1"},
    "provider": {"providerType": "openai"},
    "model": {"modelId": "m", "provider": "@(cf-gateway)"},
    "agent": {},
    "task": {"title": "t"},
    "information": {"infoType": "fact", "content": 1},
    "human": {},
}


@pytest.mark.parametrize("kind", SMALLEST)
def test_a_field_that_nothing_reads_is_refused_but_under_metadata(world: Programs, kind: str) -> None:
    with pytest.raises(InvalidConfig, match="nothing reads") as refused:
        world.create(kind, "new", {**SMALLEST[kind], "colour": "red"})
    assert refused.value.path == "config.colour"
    assert "metadata" in refused.value.hint
    made = world.create(kind, "new", {**SMALLEST[kind], "metadata": {"colour": "red", "deep": {"er": 1}}})
    assert made.config["metadata"] == {"colour": "red", "deep": {"er": 1}}


@pytest.mark.parametrize(
    ("kind", "config", "path", "meant"),
    [
        ("task", {"spec": {"succesCriteria": []}}, "config.spec.succesCriteria", "spec.successCriteria"),
        ("task", {"succesCriteria": []}, "config.succesCriteria", "spec.successCriteria"),
        ("task", {"assigne": "@(researcher)"}, "config.assigne", "assignee"),
        ("agent", {"harness": {"maxTurn": 3}}, "config.harness.maxTurn", "harness.maxTurns"),
        ("agent", {"maxTurns": 3}, "config.maxTurns", "harness.maxTurns"),
        ("agent", {"identity": {"emojy": "x"}}, "config.identity.emojy", "identity.emoji"),
        ("agent", {"permissions": {"tools": {"alow": []}}}, "config.permissions.tools.alow", "permissions.tools.allow"),
        ("model", {"temprature": 1}, "config.temprature", "temperature"),
        ("model", {"situations": {"quick": {"maxToken": 5}}}, "config.situations.quick.maxToken", "maxTokens"),
        ("provider", {"baseURL": "https://a.example"}, "config.baseURL", "baseUrl"),
        ("human", {"preferences": {"webhok": "x"}}, "config.preferences.webhok", "preferences.webhook"),
    ],
)
def test_the_refusal_names_the_field_that_was_meant(
    unchanged_world: Programs, kind: str, config: dict[str, Any], path: str, meant: str
) -> None:
    with pytest.raises(InvalidConfig) as refused:
        unchanged_world.create(kind, "new", {**SMALLEST[kind], **config})
    assert refused.value.path == path
    assert f"{meant}?" in refused.value.hint


def test_a_criterion_with_a_wrong_field_is_refused_with_the_right_one(world: Programs) -> None:
    spec = {"successCriteria": [{"type": "contains", "text": "x", "ignorecase": True}]}
    with pytest.raises(InvalidConfig) as refused:
        world.create("task", "new", {"title": "t", "spec": spec})
    assert (refused.value.path, refused.value.hint) == (
        "config.spec.successCriteria[0].ignorecase",
        "did you mean ignoreCase?",
    )


def test_what_an_agent_does_is_not_set(world: Programs) -> None:
    world.assign("researcher", "task-research-quantum")
    shown = world.get("researcher").shape()["config"]
    assert shown["currentTask"] == "task-research-quantum"
    assert world.configure("researcher", shown).version == 1
    for changes in ({"currentTask": "another"}, {"turnCount": 3}):
        with pytest.raises(InvalidConfig, match="cannot be set"):
            world.change("researcher", changes)


def test_all_faults_of_a_configuration_are_told_at_once(world: Programs) -> None:
    with pytest.raises(InvalidConfig) as refused:
        world.create("task", "new", {"titel": "t", "priority": "high", "spec": {"inputs": 1, "output": []}})
    paths = [fault.path for fault in refused.value.faults if isinstance(fault, InvalidConfig)]
    wrong = ("title", "spec.inputs", "priority", "titel", "spec.output")
    assert sorted(paths) == sorted(f"config.{place}" for place in wrong)
    assert all(path in str(refused.value) for path in paths)
    assert "title" in next(fault.hint for fault in refused.value.faults if "titel" in str(fault))


def test_fields_that_another_ledger_wrote_are_kept(
    world: Programs, open_ledger: OpenLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = Programs(open_ledger(tmp_path / "theirs.db"))
    with monkeypatch.context() as newer:  # a version of weft that reads more fields than this one
        newer.setattr(program_kinds, "unknown_fields", lambda *_: ())
        theirs.create("human", "eve", {"name": "Eve", "pronouns": "she", "preferences": {"quietHours": [22, 7]}})
    pull(world.ledger, str(theirs.ledger.path), weft.open)
    world.take_over("eve")
    kept = {"pronouns": "she", "preferences": {"quietHours": [22, 7]}}
    assert world.change("eve", {"name": "Eva"}).config == {"name": "Eva", **kept}
    shown = {**world.get("eve").shape(), "config": {"name": "Ewa", **kept}}
    (applied,) = world.apply(wanted_in(shown, "here"))
    assert (applied.action, applied.changes) == ("change", ["name"])
    assert world.revert("eve", 1).config["name"] == "Eve"
    for changes in ({"pronouns": "they"}, {"preferences": {"quietHours": [20, 8]}}, {"nickname": "E"}):
        with pytest.raises(InvalidConfig, match="nothing reads"):
            world.change("eve", changes)
    assert "pronouns" not in world.change("eve", {"pronouns": None}).config


def test_every_field_of_every_kind_is_read_by_something() -> None:
    """Not by its own table alone: somewhere in the code its name is looked up."""
    sources = [path.read_text() for path in Path(weft.__file__).parent.rglob("*.py") if "kinds" not in path.parts]
    code = "\n".join(
        [*sources, *(inspect.getsource(module) for module in (kind_table, kind_table, program_kinds, tasks))]
    )
    shown = {"createdBy", "avatar", "emoji"}  # what an agent is shown with
    for kind in KINDS.values():
        names = {place[-1] for place in kind.form.names()} - shown
        unread = {name for name in names if f'"{name}"' not in code and f"{name}=" not in code}
        assert not unread, kind.name


# --- files ------------------------------------------------------------------------------------------------------

FAULTY = """
- {id: ann, programType: human, config: {permissions: [aprove, "session:raed(x)"]}, lifecyle: published}
- {id: small, programType: model, config: {modelId: m, provider: "@(nobody)", temprature: 1}}
- {id: first, programType: task, config: {title: A, priority: high}}
- {id: second, programType: task, config: {title: B, dependencies: [first], succesCriteria: []}}
- {id: third, programType: task, config: {title: C, dependencies: [first]}}
- {id: researcher, programType: human}
- {programType: human}
- {id: odd, programType: robot}
"""


def test_all_faults_of_a_file_are_told_at_once_and_nothing_is_done(world: Programs) -> None:
    before = [(one.name, one.version) for one in world.all()]
    with pytest.raises(InvalidConfig) as refused:
        world.apply(read_text(FAULTY, "a.yaml"))
    assert [str(fault).partition(": ")[0] for fault in refused.value.faults] == [
        "a.yaml[0].lifecyle",
        "a.yaml[6]",
        "a.yaml[7].programType",
        "a.yaml[0].config.permissions[0]",
        "a.yaml[0].config.permissions[1]",
        "a.yaml[1].config.temprature",
        "a.yaml[1].config.provider",
        "a.yaml[2].config.priority",
        "the name 'researcher' is already an agent",
        "a.yaml[3].config.succesCriteria",
    ]
    assert [(one.name, one.version) for one in world.all()] == before


def test_a_file_that_cannot_be_read_is_told_with_the_others(world: Programs, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("id: [")
    (tmp_path / "b.json").write_text('{"id": "b", "programType": "human", "config": {"nam": "B"}}')
    with pytest.raises(InvalidConfig) as refused:
        world.apply(read_files([tmp_path / "a.yaml", tmp_path / "b.json"]))
    first, second = map(str, refused.value.faults)
    assert "a.yaml is no YAML" in first
    assert "b.json.config.nam" in second


# --- permissions ------------------------------------------------------------------------------------------------


def test_a_permission_that_fits_no_right_is_refused(world: Programs) -> None:
    good = ["approve", "session:*", "session:read(notes-*)", "turn:record", "ledger:read", "upkeep:pack"]
    assert world.create("human", "ann", {"permissions": good}).config["permissions"] == good
    typos = {"session:raed(x)": "session:read(x)", "aprove": "approve", "ledger:red": "ledger:read"}
    for wrong, meant in typos.items():
        configs: dict[str, Any] = {"human": [wrong], "agent": {"programs": [wrong]}}
        for kind, permissions in configs.items():
            with pytest.raises(InvalidConfig) as refused:
                world.create(kind, "new", {"permissions": permissions})
            assert f"did you mean {meant}?" in refused.value.hint
    with pytest.raises(InvalidConfig):
        world.create("human", "new", {"permissions": ["ledger:read(main)"]})


def test_the_rights_that_can_be_given_are_those_of_the_verbs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reading.md").read_text()
    verbs = set(re.findall(r"^\| `([a-z]+:[a-z]+)` \|", page, re.MULTILINE))
    assert {*RIGHTS_BY_NAME, *WHOLE_RIGHTS} == verbs | {"session:read", "program:read", "ledger:read"}


# --- owners -----------------------------------------------------------------------------------------------------


def test_a_session_gets_and_changes_its_owner(world: Programs) -> None:
    world.create("agent", "second", {"soul": "You are the second."})
    session = world.create_session("talk", config={"owner": "researcher"})
    assert session.config == {"owner": "@(researcher)"}
    assert world.change("talk", {"owner": "second"}).config == {"owner": "@(second)"}
    assert world.change("talk", {"defaultModel": "claude-balanced"}).config["owner"] == "@(second)"
    with pytest.raises(InvalidConfig, match="no program"):
        world.change("talk", {"owner": "nobody"})
    with pytest.raises(InvalidConfig, match="not a agent or human"):
        world.change("talk", {"owner": "cf-gateway"})
    with pytest.raises(InvalidConfig, match="another than"):
        world.create_session("more", owner="second", config={"owner": "researcher"})
    assert world.change("talk", {"owner": None}).config["owner"] == "@(researcher)"
    assert world.configure("talk", {"owner": "@(researcher)"}).config == {"owner": "@(researcher)"}
    assert world.ledger.upkeep.rebuild() == 0


def test_rights_over_a_session_follow_its_owner(world: Programs) -> None:
    world.create("agent", "second", {"soul": "You are the second."})
    world.create_session("talk", owner="researcher")
    world.change("talk", {"owner": "second"})
    second, first = world.acting_as("second"), world.acting_as("researcher")
    assert second.change("talk", {"metadata": {"a": 1}}).config["metadata"] == {"a": 1}
    with pytest.raises(NotFound):
        first.change("talk", {"metadata": {"a": 2}})
    with pytest.raises(NotAllowed, match="give a session"):
        second.change("talk", {"owner": "bln"})
    with pytest.raises(NotAllowed, match="folders"):
        second.change("talk", {"logFile": "/etc/passwd"})


def test_the_next_request_of_a_session_is_shown_with_its_owners_prompt(world: Programs) -> None:
    ledger = world.ledger
    turn = ledger.begin_turn(session="talk")
    turn.message("Be brief.", role="system")
    turn.message("q")
    turn.response("r")
    turn.finish()
    world.create_session("mine", owner="researcher")
    for label in ("talk", "mine"):
        world.change(label, {"owner": "researcher"})
    first, *rest = ledger.context(session="talk").messages
    assert (first.role, first.text) == ("system", AGENT["systemPrompt"])
    assert [message.role for message in rest] == ["user", "assistant"]
    assert [message.text for message in ledger.context(session="mine").messages] == [AGENT["systemPrompt"]]
    vouched = ledger.vouchers(session="talk")[0].parts[0][0]
    assert (vouched.kind, vouched.id) == ("agent", world.get("researcher").id)
    assert [message.text for message in ledger.context("talk").messages] == ["Be brief.", "q"]
    world.change("talk", {"owner": None})
    assert ledger.context(session="talk").messages[0].text == "Be brief."


@pytest.mark.parametrize("field", ["temperature", "maxTokens", "topP"])
def test_an_agent_has_no_parameters_of_a_model(world: Programs, field: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        world.create("agent", "new", {field: 1})
    assert refused.value.path == f"config.{field}"
    made = world.create("agent", "new", {"defaultModelConfig": {field: 1}})
    assert made.config["defaultModelConfig"] == {field: 1}
