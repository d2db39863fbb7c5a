"""Events out and in as lines: nothing is lost, a forged one is refused, and other programs' events become turns."""

import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.conftest import NewPostgresLedger
from tests.graph.histories import tell_everything
from tests.ledger.histories import grow, problems
from tests.programs.stories import stocked
from weft.kernel.enums import InterruptionReason
from weft.kernel.errors import InvalidFact, InvalidInput, NotAllowed, NotApplicable, ReplicaDiverged
from weft.kernel.events import McpResourceUpdated, PolicyTests
from weft.surfaces.opening import OpenLedger

AT = {"ts": "2026-11-15T01:58:12.123Z", "agent_id": "coder"}
MOMENT = 1794707892123
OF_RUN = {**AT, "run_id": "run-1"}
FOREIGN: list[dict[str, Any]] = [
    {"kind": "run_started", **OF_RUN},
    {
        "kind": "history_append",
        **OF_RUN,
        "list": "main",
        "message": {"role": "user", "content": [{"type": "text", "text": "list it"}]},
    },
    {"kind": "model_request", **OF_RUN, "model": "o4-mini", "params": {"temperature": 0.2}, "correlation_id": "abc"},
    {
        "kind": "model_response",
        **OF_RUN,
        "request_id": "abc",
        "output": {"id": "said-1", "role": "assistant", "content": [{"type": "text", "text": "I look"}]},
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
    },
    {"kind": "tool_call", **OF_RUN, "server": "runtime", "tool": "exec", "call_id": "exec-42", "args": {"cmd": "ls"}},
    {
        "kind": "tool_result",
        **OF_RUN,
        "call_id": "exec-42",
        "status": "ok",
        "result": {"rc": 0, "stdout": "...", "stderr": "", "duration_ms": 120},
    },
    {"kind": "run_finished", **OF_RUN, "exit": "success"},
    {"kind": "run_started", **OF_RUN, "run_id": "run-2"},
    {"kind": "history_append", **OF_RUN, "run_id": "run-2", "message": {"content": "go on"}},
    {"kind": "run_started", **OF_RUN, "run_id": "run-3"},
    {"kind": "policy_activated", **AT, "policy_ref": "careful"},
]


@pytest.fixture(params=["sqlite", "postgres"])
def empty(
    request: pytest.FixtureRequest, tmp_path: Path, new_postgres_ledger: NewPostgresLedger
) -> Iterator[OpenLedger]:
    with weft.open(tmp_path / "empty.db" if request.param == "sqlite" else new_postgres_ledger()) as ledger:
        yield ledger


def emitted(ledger: OpenLedger, turn: str | None = None) -> list[bytes]:
    target = BytesIO()
    ledger.graph.emit(target, turn=turn)
    return target.getvalue().splitlines()


def test_what_is_emitted_gives_the_same_events_in_an_empty_ledger(empty: OpenLedger) -> None:
    with weft.open(":memory:") as ledger:
        tell_everything(ledger)
        ledger.record_turn(session="main", query="é", response="", tool_calls=[{"name": "a tool", "arguments": {}}])
        lines, ids = emitted(ledger), [event.id for event in ledger.changes()]
        thread, turn = emitted(ledger, "main"), ledger.turn("main")
        shown = {line["event_id"]: line for line in map(json.loads, lines)}
        assert list(shown) == ids
        for id, line in shown.items():
            assert {"stream", "prev"} <= line.keys()
            assert "line" not in line
            node = ledger.graph.node(f"event:{id}").properties
            assert {**{"server": "runtime"}, **node, **line} == {**{"server": "runtime"}, **line}
    brought = empty.graph.ingest(lines)
    assert (brought.events, brought.turns) == (len(ids), 0)
    assert [event.id for event in empty.changes()] == ids
    assert problems(empty) == []
    again = empty.graph.ingest(lines)
    assert (again.events, again.contents) == (0, 0)
    with weft.open(":memory:") as other:
        other.graph.ingest(thread)
        assert other.turn(turn.id).digest == turn.digest
        assert problems(other) == []


def test_a_content_that_is_erased_or_no_text_travels_as_it_is() -> None:
    picture = {"type": "image_url", "url": "data:image/png;base64,iVBORw0KGgo="}
    with weft.open(":memory:") as ledger, weft.open(":memory:") as other:
        grow(ledger, "main", "a")
        made = ledger.record_turn(session="main", query=[{"role": "user", "content": [picture]}], response="x" * 2**21)
        ledger.erasure.erase(["main~1"], reason="asked for")
        lines = emitted(ledger)
        assert any(b'"piece"' in line for line in lines)
        other.graph.ingest(lines)
        assert other.turn(made.id).digest == made.digest
        assert other.messages(made.id)[-1].text == "x" * 2**21
        assert "a" not in [message.text for message in other.messages("main~1")]


def test_an_event_that_is_not_what_its_id_says_is_refused_with_its_line_and_nothing_is_written(
    empty: OpenLedger,
) -> None:
    with weft.open(":memory:") as ledger:
        grow(ledger, "main", "a", "b")
        lines = emitted(ledger)
    before = empty.upkeep.stats()
    forged = [json.loads(line) for line in lines]
    place = next(i for i, line in enumerate(forged) if line["kind"] == "history_append")
    forged[place]["message"]["parts"][0]["text"] = "something else"
    with pytest.raises(InvalidFact, match=f"line {place + 1}.*no salt"):
        empty.graph.ingest(forged)
    forged = [json.loads(line) for line in lines]
    forged[place]["ts"] = "2026-11-15T01:58:12.123Z"
    with pytest.raises(InvalidFact, match=f"line {place + 1}.*hashes to"):
        empty.graph.ingest(forged)
    with pytest.raises(InvalidFact, match="which is not here"):
        empty.graph.ingest(lines[1:])
    with pytest.raises(InvalidFact, match=f"line {len(lines) + 1}:"):
        empty.graph.ingest([*lines, {"kind": "wish"}])
    assert empty.upkeep.stats() == before
    copied = json.loads(lines[0])
    with weft.open(":memory:") as ledger, pytest.raises((InvalidFact, ReplicaDiverged)):
        ledger.graph.ingest([{**copied, "replica": ledger.replica}])


def test_what_another_ledger_decided_waits(empty: OpenLedger) -> None:
    with weft.open(":memory:") as ledger:
        policy = ledger.policies.propose("careful", "print(1)", docstring="x")
        stocked(ledger)
        lines = emitted(ledger)
    empty.graph.ingest(lines)
    assert not empty.policies.get(policy.id).is_own
    assert "researcher" in [item.name for item in empty.programs.pending()]


def test_runs_of_other_programs_become_turns_once(empty: OpenLedger) -> None:
    brought = empty.graph.ingest(FOREIGN, origin="runtime")
    assert (brought.turns, brought.kept, brought.known) == (2, 2, 0)
    again = empty.graph.ingest(BytesIO(b"\n".join(json.dumps(event).encode() for event in FOREIGN)), origin="runtime")
    assert (again.turns, again.known) == (0, 2)
    (session,) = empty.sessions()
    assert (session.label, session.origin) == ("coder", "runtime")
    first, second = empty.thread("coder").turns
    assert [(message.role, message.text) for message in empty.messages(first.id)] == [
        ("user", "list it"),
        ("assistant", "I look"),
    ]
    (call,) = empty.tool_calls(first.id)
    assert (call.name, call.call_id, call.outcome) == ("exec", "exec-42", "ok")
    assert call.result["rc"] == 0
    assert second.parent_id == first.id
    assert empty.policies.active(None) is None
    (kept,) = empty.imports.kept_sources("coder")
    assert list(map(json.loads, kept.data.splitlines())) == FOREIGN[-2:]
    more = {"kind": "model_response", **OF_RUN, "run_id": "run-2", "request_id": "x", "output": {"content": "I do"}}
    assert empty.graph.ingest([*FOREIGN, more], origin="runtime").turns == 1
    assert [message.text for message in empty.messages("coder")] == ["go on", "I do"]
    assert problems(empty) == []


def test_an_ingested_request_and_its_answer_keep_what_was_asked_and_belong_together(empty: OpenLedger) -> None:
    """A `model_request` is an event and a node of its own, with all fields that the schema has for it."""
    said, asked = {"event_id": "said"}, {"event_id": "asked", "correlation_id": "abc"}
    request = {**FOREIGN[2], **asked, "input_refs": [said], "tools_spec": {"exec": {}}, "provider": None}
    answer = {**FOREIGN[3], "event_id": "answered", "request_id": "asked", "finish_reason": "stop"}
    answer["stream_ref"] = {"kind": "file", "id": "/tmp/stream"}
    call = {**FOREIGN[4], "correlation_id": "abc", "requested_by": {"event_id": "answered"}}
    failed = {**FOREIGN[5], "status": "error", "error": {"code": "E2", "message": "no", "details": {"rc": 2}}}
    start = {**FOREIGN[0], "reason": "schedule"}
    end = {**FOREIGN[6], "summary_ref": {"kind": "file", "id": "notes"}}
    events = [start, {**FOREIGN[1], **said}, request, answer, call, failed, end]
    assert empty.graph.ingest([*events, request, call]).turns == 1
    turn = empty.turn("coder")
    assert turn.model == "o4-mini"
    history = empty.graph.history(turn.id).events
    shown = {event.properties["kind"]: event.properties for event in history}
    assert [event.properties["kind"] for event in history] == [event["kind"] for event in events]
    assert all(properties["ts"] == AT["ts"] for properties in shown.values())
    asked_for, answered, called, ended = (
        shown[kind] for kind in ("model_request", "model_response", "tool_call", "tool_result")
    )
    assert (asked_for["model"], asked_for["params"]) == ("o4-mini", {"temperature": 0.2})
    assert asked_for["tools_spec"] == {"exec": {}}
    assert asked_for["input_refs"] == [shown["history_append"]["message_ref"]]
    assert asked_for["correlation_id"] == answered["correlation_id"] == called["correlation_id"]
    assert (answered["request_id"], answered["finish_reason"]) == (asked_for["event_id"], "stop")
    assert (answered["usage"]["prompt_tokens"], answered["usage"]["completion_tokens"]) == (3, 4)
    assert answered["stream_ref"] == {"kind": "file", "id": "/tmp/stream"}
    assert called["requested_by"] == {"event_id": answered["event_id"]}
    assert called["server"] == "runtime"
    assert ended["error"] == {"code": "E2", "message": "no", "details": {"rc": 2}}
    assert shown["run_started"]["reason"] == "schedule"
    assert shown["run_finished"]["summary_ref"] == {"kind": "file", "id": "notes"}
    assert empty.messages(turn.id)[-1].metadata == {"correlation_id": "abc"}
    assert (turn.usage.input_tokens, turn.usage.output_tokens) == (3, 4)
    consumed = empty.graph.neighbours(f"event:{asked_for['event_id']}", types=["EVENT_CONSUMES"]).edges
    assert [edge.target for edge in consumed] == [f"message:{shown['history_append']['message_ref']}"]
    asking = empty.graph.calls(turn.id)[0].requested_by
    assert asking == f"generation:{answered['event_id']}"
    assert problems(empty) == []


BESIDE_RUNS: list[dict[str, Any]] = [
    {
        "kind": "mcp.resource_updated",
        **OF_RUN,
        "server": "docs",
        "uri": "doc://a",
        "etag": "7",
        "hash": "h",
        "summary": "s",
    },
    {"kind": "mcp.resource_list_changed", **OF_RUN, "server": "docs"},
    {"kind": "resource_attached", **OF_RUN, "resource_ref": "res-vol-123", "mode": "rw"},
    {"kind": "resource_attached", **AT, "resource_ref": "res-box", "mode": "ro"},
    {"kind": "resource_detached", **AT, "resource_ref": "res-box"},
    {"kind": "resource_liveness_probe", "ts": AT["ts"], "resource_ref": "res-box", "status": "dead"},
    {"kind": "snapshot_created", **AT, "resource_ref": "res-vol-123", "snapshot_ref": "snap-abc", "outcome": "ok"},
    {"kind": "restore_attempted", **AT, "snapshot_ref": "snap-live-ram", "outcome": "unsupported"},
    {
        "kind": "restore_attempted",
        **AT,
        "snapshot_ref": "snap-abc",
        "outcome": "ok",
        "new_resource_ref": "res-vol-124",
    },
    {"kind": "policy_activated", **OF_RUN, "policy_ref": "careful", "notes": "at last"},
    {
        "kind": "substitution",
        **OF_RUN,
        "original_event": {"event_id": "first"},
        "replacement_event": {"event_id": "second"},
    },
    {"kind": "agent_forked", **AT, "from_branch": "main", "to_branch": "try", "at_event": {"event_id": "second"}},
    {
        "kind": "resource_declared",
        **AT,
        "resource_id": "res-box",
        "name": "box",
        "resource_kind": "docker_container",
        "capabilities": ["share"],
        "scope": {"run_id": "run-1", "agent_id": "coder"},
    },
]
TOLD_BESIDE = [
    *FOREIGN[:3],
    {**FOREIGN[3], "event_id": "first"},
    {**FOREIGN[3], "event_id": "second"},
    *FOREIGN[4:-1],
    *BESIDE_RUNS,
]


def test_ingested_events_beside_runs_are_nodes_and_edges_and_decide_nothing(empty: OpenLedger) -> None:
    assert empty.graph.ingest(TOLD_BESIDE, origin="runtime").kept == len(BESIDE_RUNS) + 1
    count = sum(1 for _ in empty.changes())
    empty.graph.ingest(TOLD_BESIDE, origin="runtime")
    assert sum(1 for _ in empty.changes()) == count
    graph, turn = empty.graph, next(iter(empty.thread("coder").turns))
    resources = {state.resource.properties["name"]: state for state in graph.resources()}
    assert set(resources) == {"res-vol-123", "box", "res-vol-124"}
    assert resources["box"].resource.properties["kind"] == "docker_container"
    assert resources["box"].resource.properties["liveness"]["status"] == "dead"
    assert resources["box"].attached == ()
    scope = resources["box"].resource.properties["scope"]
    assert scope == {"run_id": turn.id, "session_id": turn.session_id}
    (attached,) = resources["res-vol-123"].attached
    assert (attached.target, attached.attributes) == (f"run:{turn.id}", {"mode": "rw"})
    volume = graph.neighbours(resources["res-vol-123"].resource.name)
    (snapshot,) = (node for node in volume.nodes.values() if node.type == "Snapshot")
    kinds = {edge.type.value for edge in volume.edges}
    assert kinds == {"ATTACHED_TO", "EVENT_CONSUMES", "SNAPSHOT_OF"}
    (restored,) = graph.neighbours(snapshot.name, types=["RESTORES_TO"]).edges
    assert restored.target == resources["res-vol-124"].resource.name
    ((step),) = (step for step in graph.policies() if step.edge.type.value == "ACTIVATES_POLICY")
    assert step.policy.properties["name"] == "careful"
    assert step.edge.valid_from == MOMENT
    assert graph.node(step.edge.source).properties["run_id"] == turn.id
    assert empty.policies.active(None) is None
    ((policy),) = empty.policies.list()
    assert (policy.is_own, policy.decided_at) == (False, MOMENT)
    with pytest.raises(NotApplicable, match="another ledger"):
        empty.policies.activate("careful", digest="0" * 64, tests=PolicyTests(total=1, passed=1, failed=0))
    (branch,) = (session for session in empty.sessions() if session.label == "try")
    forked = {edge.target: edge for edge in graph.neighbours(f"session:{branch.id}", types=["FORKED_FROM"]).edges}
    history = graph.history(turn.id).events
    answers = [event.name for event in history if event.properties["kind"] == "model_response"]
    assert set(forked) == {f"run:{turn.id}", answers[1]}
    (replaced,) = graph.neighbours(answers[1], types=["SUBSTITUTES"]).edges
    assert replaced.target == answers[0]
    assert [message.text for message in empty.messages(turn.id)] == ["list it", "I look", "I look"]
    noticed = [event for event in empty.changes() if isinstance(event.event, McpResourceUpdated)]
    shown = graph.node(f"event:{noticed[0].id}").properties
    assert [shown[name] for name in ("server", "uri", "etag", "hash", "summary", "run_id")] == [
        *("docs", "doc://a", "7", "h", "s"),
        turn.id,
    ]
    (told,) = graph.neighbours(f"event:{noticed[0].id}", types=["MCP_RESOURCE_UPDATED"]).edges
    assert told.attributes["uri"] == "doc://a"
    assert problems(empty) == []
    with weft.open(":memory:") as other:
        other.graph.ingest(emitted(empty))
        assert [event.id for event in other.changes()] == [event.id for event in empty.changes()]


@pytest.mark.parametrize("reason", [reason.value for reason in InterruptionReason])
def test_an_ingested_interruption_keeps_its_reason_and_what_it_affects(reason: str) -> None:
    request = {**FOREIGN[2], "event_id": "asked"}
    call = {**FOREIGN[4], "event_id": "called"}
    cut = {"kind": "interruption", **OF_RUN, "reason": reason, "affects": [{"event_id": "called"}]}
    with weft.open(":memory:") as ledger:
        ledger.graph.ingest([*FOREIGN[:2], request, FOREIGN[3], call, cut])
        (turn,) = ledger.thread("coder").turns
        assert turn.interruption_reason == reason
        events = {event.properties["kind"]: event for event in ledger.graph.history(turn.id).events}
        assert events["interruption"].properties["reason"] == reason
        (edge,) = ledger.graph.neighbours(events["interruption"].name, types=["INTERRUPTS"]).edges
        assert (edge.attributes, edge.target) == ({"reason": reason}, events["tool_call"].name)
        assert ledger.tool_calls(turn.id)[0].outcome == "interrupted"
        assert problems(ledger) == []
    alone = {**cut, "affects": [{"event_id": "asked"}]}
    for after, interruption in (([], reason), (FOREIGN[3:4], None)):
        with weft.open(":memory:") as ledger:
            ledger.graph.ingest([*FOREIGN[:2], request, alone, *after])
            (turn,) = ledger.thread("coder").turns
            assert turn.interruption_reason == interruption
            events = {event.properties["kind"]: event for event in ledger.graph.history(turn.id).events}
            (edge,) = ledger.graph.neighbours(events["interruption"].name, types=["INTERRUPTS"]).edges
            assert edge.target == events["model_request"].name
            assert problems(ledger) == []


@pytest.mark.parametrize(
    ("spelled", "ms"), [("01Z", 1000), ("01.1Z", 1100), ("01.12Z", 1120), ("01.123Z", 1123), ("01.123456Z", 1123)]
)
def test_a_time_of_another_program_has_any_number_of_digits_behind_the_second(spelled: str, ms: int) -> None:
    with weft.open(":memory:") as ledger:
        ledger.graph.ingest([{**event, "ts": f"1970-01-01T00:00:{spelled}"} for event in FOREIGN], origin="runtime")
        assert [turn.started_at for turn in ledger.thread("coder").turns] == [ms, ms]


@pytest.mark.parametrize(
    ("event", "why"),
    [
        ({"kind": "run_started", **OF_RUN, "ts": "2026-01-22T10:00:01"}, "no.* time"),
        ({"kind": "run_started", **OF_RUN, "ts": "2026-01-22T10:00:01.Z"}, "no.* time"),
        ({"kind": "run_started", **OF_RUN, "ts": "2026-01-22T10:00:01.1+01:00"}, "no.* time"),
        ({"kind": "wish", **OF_RUN}, "no kind of event"),
        ({"kind": "run_started", **AT}, "run_id"),
        ({"kind": "run_started", **OF_RUN, "ts": "yesterday"}, "no.* time"),
        ({**FOREIGN[5], "call_id": "other"}, "has not begun"),
        ({**FOREIGN[5], "status": "fine"}, "status"),
        ({"kind": "policy_activated", "policy_ref": "careful"}, "ts"),
        ("{", "no JSON"),
        ("[]", "not an object"),
    ],
)
def test_a_bad_event_of_another_program_is_refused_with_its_line(event: Any, why: str) -> None:
    with weft.open(":memory:") as ledger:
        with pytest.raises(InvalidFact, match=f"line 2: .*{why}"):
            ledger.graph.ingest([FOREIGN[0], event])
        assert ledger.sessions() == []
        with pytest.raises(InvalidInput):
            ledger.graph.emit(3)


def test_whoever_may_not_read_all_writes_no_events_out_and_takes_none_in() -> None:
    with weft.open(":memory:") as ledger:
        stocked(ledger)
        grow(ledger, "main", "a")
        graph = weft.Graph(ledger.acting_as("researcher"))
        target = BytesIO()
        with pytest.raises(NotAllowed):
            graph.emit(target)
        with pytest.raises(NotAllowed):
            graph.emit(target, turn="main")
        with pytest.raises(NotAllowed):
            graph.ingest(FOREIGN)
        assert target.getvalue() == b""
