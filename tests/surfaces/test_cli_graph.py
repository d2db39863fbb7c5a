"""`weft graph`: what it shows for people, as JSON and as pictures; and that it takes what it shows."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

import weft
from tests.graph.histories import tell_everything
from tests.surfaces.shell import Shell, on_terminal
from weft.graph.edge_reader import GraphEdge, GraphNode
from weft.graph.graph import GraphPicture, to_dot, to_svg
from weft.ledger.views.edges import EdgeType


@pytest.fixture
def told(shell: Shell, folder: Path) -> Shell:
    with weft.open(folder / "ledger.db") as ledger:
        tell_everything(ledger)
    return shell


def ask(shell: Shell, *words: str) -> str:
    answer = shell("--ledger", "ledger.db", "graph", *words)
    assert (answer.code, answer.err) == (0, "")
    return answer.out


def test_what_a_listing_shows_is_what_every_command_takes(told: Shell) -> None:
    names = [line.split("\t")[2] for line in ask(told, "neighbours", "main~2").splitlines()]
    assert len(names) > 10
    for name in names:
        assert json.loads(ask(told, "node", name, "--json"))["name"] == name
    (call,) = ask(told, "calls", "main~2").splitlines()
    assert call.split("\t")[1] == "ls"
    assert json.loads(ask(told, "calls", call.split("\t")[0], "--json"))[0]["results"]


def test_a_terminal_shows_labels_and_the_beginnings_of_ids(told: Shell, folder: Path) -> None:
    code, screen = on_terminal(folder, "--ledger", "ledger.db", "graph", "neighbours", "main~2")
    assert code == 0
    assert "session:main" in screen
    beginning = re.findall(r"generation:[0-9a-f]+|event:[0-9a-f]+", screen)[0]
    assert len(beginning.partition(":")[2]) == 12
    assert json.loads(ask(told, "node", beginning, "--json"))["name"].startswith(beginning)


def test_every_command_answers_people_and_programs(told: Shell) -> None:
    for words in (
        ("node", "resource:folder"),
        ("neighbours", "agent:researcher", "--direction", "out"),
        ("path", "main~2", "resource:folder"),
        ("history", "main~2"),
        ("lineage", "main"),
        ("calls", "main~2"),
        ("resources",),
        ("policies", "careful"),
        ("ancestry", "other"),
    ):
        assert ask(told, *words)
        assert json.loads(ask(told, *words, "--json"))


def test_times_are_iso_in_json(told: Shell) -> None:
    (step, *_) = json.loads(ask(told, "policies", "careful", "--json"))
    assert step["edge"]["valid_from"].endswith("Z")
    assert step["edge"]["known_from"].endswith("Z")


def test_a_node_is_shown_with_times_of_this_place_and_without_what_is_not_known(told: Shell) -> None:
    for name in ("main~2", "session:main", "resource:folder", "policy:careful"):
        shown = ask(told, "node", name)
        assert not re.search(r"\b[0-9]{13}\b|null", shown)
    assert re.search(r"started_at: 20[0-9-]{8} [0-9:]{8} [+-][0-9]{4}", ask(told, "node", "main~2"))


def test_an_ancestry_names_the_session_that_was_forked(told: Shell) -> None:
    main = json.loads(ask(told, "node", "session:main", "--json"))["name"]
    assert {line.split("\t")[3] for line in ask(told, "ancestry", "other").splitlines()} == {main}


def test_a_picture_of_calls_has_the_call_its_result_and_what_asked_for_it(told: Shell) -> None:
    dot = ask(told, "calls", "main~2", "--dot")
    assert dot.count("CALLS_TOOL") == dot.count("RETURNS_RESULT") == 1
    assert "generation:" in dot


def test_pictures_are_whole_and_have_no_address_of_anything_else(told: Shell) -> None:
    for words in (
        ("neighbours", "main~2"),
        ("path", "main~2", "resource:folder"),
        ("history", "main~2"),
        ("lineage", "main"),
        ("calls", "main~2"),
        ("resources",),
        ("policies",),
        ("ancestry", "other"),
    ):
        picture = ask(told, *words, "--svg")
        root = ElementTree.fromstring(picture)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert "href" not in picture
        dot = ask(told, *words, "--dot")
        assert dot.startswith("digraph weft {")
        assert dot.count("{") == dot.count("}") == 1


def test_an_empty_ledger_and_wrong_words_are_answered_in_words(shell: Shell) -> None:
    shell("init")
    for words, said in (
        (("policies",), "there are no policies"),
        (("resources",), "there are no resources"),
        (("neighbours", "local"), "it has no such edges"),
    ):
        answer = shell("graph", *words)
        assert (answer.code, answer.out) == (0, "")
        assert said in answer.err
    refused = shell("graph", "node", "nothing")
    assert refused.code != 0
    assert "hint: name a turn" in refused.err
    both = shell("graph", "policies", "--dot", "--svg")
    assert both.code == 2


def node(name: str, text: str = "x") -> GraphNode:
    return GraphNode(name=name, type="Agent", properties={"name": text})


def edge(source: str, target: str, number: int = 0) -> GraphEdge:
    return GraphEdge(
        type=EdgeType.DERIVED_FROM,
        source=source,
        target=target,
        attributes={},
        valid_from=number,
        valid_to=None,
        is_synthesised=False,
        known_from=0,
        known_to=None,
        opened_by="0" * 64,
        closed_by=None,
    )


def test_what_stands_in_a_ledger_is_escaped_in_pictures() -> None:
    evil = '</text><script>alert(1)</script>"];\n} \\" \x00\x1b[31m'
    picture = GraphPicture([node("program:" + evil, evil)], [])
    svg, dot = to_svg(picture), to_dot(picture)
    assert "<script" not in svg
    ElementTree.fromstring(svg)
    assert "\x1b" not in dot + svg
    assert dot.count("\n") == 5


def test_pictures_are_bounded_and_circles_are_drawn() -> None:
    names = [f"program:{number}" for number in range(300)]
    edges = [edge(left, right) for left, right in zip(names, [*names[1:], names[0]], strict=True)]
    picture = GraphPicture(map(node, names), edges)
    assert (len(picture.nodes), picture.left_out) == (200, 100)
    assert "100 more nodes are not drawn" in to_svg(picture)
    circle = GraphPicture([node("a:1"), node("a:2")], [edge("a:1", "a:2"), edge("a:2", "a:1"), edge("a:1", "a:1")])
    assert sorted(name for column in circle.columns() for name in column) == ["a:1", "a:2"]
    assert to_svg(GraphPicture([], []))


def test_events_go_out_as_lines_and_come_into_another_ledger(told: Shell, folder: Path) -> None:
    shown = json.loads(ask(told, "history", "main~2", "--json"))
    ask(told, "emit", "events.jsonl")
    assert told("--ledger", "ledger.db", "graph", "emit", "events.jsonl").code != 0
    lines = (folder / "events.jsonl").read_text().splitlines()
    assert {json.loads(line)["kind"] for line in lines} > {"run_started", "policy_activated", "resource_declared"}
    with weft.open(folder / "other.db"):
        pass
    taken = told("--ledger", "other.db", "graph", "ingest", "events.jsonl")
    assert taken.code == 0
    contents = {ref for line in lines for ref in json.loads(line).get("salts", {})}
    assert taken.out == (
        f"{len(lines)} new events, {len(contents)} new contents, 0 new turns of other programs, 0 known already\n"
    )
    assert "weft pending" in taken.err
    there = told("--ledger", "other.db", "graph", "history", shown["run"]["name"], "--json")
    assert [event["name"] for event in json.loads(there.out)["events"]] == [event["name"] for event in shown["events"]]
    again = told("--ledger", "other.db", "graph", "ingest", "events.jsonl", "--json")
    assert json.loads(again.out)["events"] == 0
    assert json.loads(again.out)["known"] == len(lines) + len(contents)
    (folder / "bad.jsonl").write_text("\n".join([lines[0], lines[1].replace(":", ": ", 1), lines[2] + "}"]))
    bad = told("--ledger", "other.db", "graph", "ingest", "bad.jsonl")
    assert bad.code != 0
    assert "line 3" in bad.err
    (folder / "foreign.jsonl").write_text('{"a": 1}\n')
    foreign = told("--ledger", "other.db", "graph", "ingest", "foreign.jsonl")
    assert foreign.err == (
        "weft: line 1: has no kind\n"
        "hint: nothing was taken in; docs/events.md lists the kinds of events and their fields\n"
    )


def test_events_of_another_program_become_turns(shell: Shell, folder: Path) -> None:
    of_run = {"ts": "2026-11-15T01:58:12.123Z", "run_id": "r1", "agent_id": "coder"}
    events = [
        {"kind": "history_append", **of_run, "message": {"role": "user", "content": "hello"}},
        {"kind": "policy_activated", "ts": of_run["ts"], "agent_id": "coder", "policy_ref": "p1"},
    ]
    (folder / "events.jsonl").write_text("\n".join(map(json.dumps, events)))
    with weft.open(folder / "ledger.db"):
        pass
    taken = shell("--ledger", "ledger.db", "graph", "ingest", "events.jsonl", "--origin", "elsewhere")
    assert "1 new turn of other programs" in taken.out
    assert "1 event " in taken.err
    with weft.open(folder / "ledger.db") as ledger:
        assert ledger.session("coder").origin == "elsewhere"
        assert ledger.messages("coder")[0].text == "hello"
        assert ledger.policies.active() is None
        assert [(policy.name, policy.is_own) for policy in ledger.policies.list()] == [("p1", False)]
    steps = shell("--ledger", "ledger.db", "graph", "policies", "--json")
    assert '"ACTIVATES_POLICY"' in steps.out
