"""embed, similar and embed-stats."""

import pytest

import weft as library
from tests.ledger.imported import native_turn, take
from tests.runtime.inference.asking import CANARY
from tests.runtime.scripted import Script, answer, failure
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell
from weft.surfaces.cli import command_line
from weft.surfaces.cli.reading import search
from weft.surfaces.cli.screen import Screen

pytestmark = pytest.mark.usefixtures("one_minilm")


def told(weft: Shell) -> list[str]:
    return [weft.record(text) for text in ("cats drink milk", "kittens like cream", "the ship crossed the ocean")]


def test_similar_turns_are_found(weft: Shell) -> None:
    turns = told(weft)
    assert weft("embed", "--all", "turn").out == "embedded 3 turns\n"
    assert weft("embed", "--all", "turn").out == "embedded 0 turns\n"
    assert [one["node"]["id"] for one in weft.json("similar", turns[0])] == [turns[1], turns[2]]
    lines = weft("similar", turns[0], "--limit", "1").out.splitlines()
    assert len(lines) == 1
    assert lines[0].endswith("kittens like cream")


def test_titles_stand_beside_what_is_similar(weft: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    with library.open(weft.folder / ".weft" / "ledger.db") as ledger:
        for label, title in (("c0fff321-8eb1-4c18-b759-7c6c08c0f868", "About\tcats"), ("mine", None)):
            take(ledger, label, native_turn(f"cats drink {title or 'milk'}"), file=f"{label}.jsonl", title=title)
        messages = [message.id for turn in ledger.log() for message in ledger.messages(turn.id)]
    for kind in ("turn", "session", "message"):
        weft("embed", "--all", kind)
    for kind in ("turn", "session", "message"):
        shown = weft.json("similar", "--text", "cats", "--kind", kind)
        assert {(one["session"], one["session_title"]) for one in shown} == {
            ("c0fff321-8eb1-4c18-b759-7c6c08c0f868", "About\tcats"), ("mine", None),
        }  # fmt: skip
        lines = [line.split("\t") for line in weft("similar", "--text", "cats", "--kind", kind).out.splitlines()]
        assert {line[3] for line in lines} == {'c0fff321-8eb1-4c18-b759-7c6c08c0f868 "About cats"', "mine"}
    assert messages[0] in weft("similar", "--text", "cats", "--kind", "message").out
    screen = Screen(color=False, unicode=True, terminal=True, columns=80, rows=24, paging=False)
    monkeypatch.setattr(command_line, "stdout_screen", lambda **_: screen)
    page = weft("similar", "--text", "cats", "--kind", "turn", "-q").out
    assert '  c0fff321 "About cats"  ' in page
    assert all("  ask cats drink" in line and len(line) <= 80 for line in page.splitlines()[1:])


def test_a_text_finds_them_too(weft: Shell) -> None:
    turns = told(weft)
    weft("embed", "--all", "turn")
    assert weft.json("similar", "--text", "a boat at sea", "--limit", "1")[0]["node"]["id"] == turns[2]
    assert weft.json("similar", "--text", "cream", "--words", "--limit", "1")[0]["node"]["id"] == turns[1]


def test_a_node_is_embedded_by_a_text_of_ones_own(weft: Shell) -> None:
    turns = told(weft)
    weft("embed", "--all", "turn")
    assert weft("embed", turns[2], "--text", "cats drink milk").code == 0
    assert weft.json("similar", turns[0], "--limit", "1")[0]["node"]["id"] == turns[2]


def test_what_was_embedded_is_counted_and_can_be_forgotten(weft: Shell) -> None:
    turns = told(weft)
    weft("embed", "--all", "turn", "--limit", "2")
    weft("embed", "main")
    (counted,) = weft.json("embed-stats")
    assert (counted["nodes"], counted["kinds"], counted["dimensions"]) == (3, {"turn": 2, "session": 1}, 384)
    assert "2 turns, 1 session" in weft("embed-stats").out
    assert weft("embed", turns[2], "--forget").out == "took 1 vector away\n"
    assert weft("embed", "--forget").out == "took 2 vectors away\n"


def test_nothing_embedded_says_what_to_do(weft: Shell) -> None:
    told(weft)
    assert "weft embed --all turn" in weft("embed-stats").err
    assert "weft embed --all turn" in weft("similar", "--text", "cats").err
    refused = weft("similar", "main")
    assert refused.code == 3
    assert "weft embed main" in refused.err


def test_what_is_missing_is_offered_to_be_embedded(weft: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = told(weft)
    assert (
        "3 turns are not embedded and cannot be found: `weft embed --all turn`" in weft("similar", "--text", "cat").err
    )
    asked: list[str] = []
    answers = [False, True]

    def confirm(question: str, **_: object) -> bool:
        asked.append(question)
        return answers.pop(0)

    monkeypatch.setattr(search, "is_asked", lambda: True)
    monkeypatch.setattr("click.confirm", confirm)
    assert weft("similar", "--text", "a cat", "-n", "1").out == ""
    assert weft("similar", turns[0], "-n", "1").out.endswith("kittens like cream\n")
    assert weft("similar", turns[0], "-n", "1").out.endswith("kittens like cream\n")
    assert asked == ["3 turns are not embedded and cannot be found. Embed now?"] * 2
    weft.record("", response=None, tool_calls=[{"name": "run"}], error="broken")
    assert "not embedded" not in weft("similar", turns[0]).err


def test_a_command_that_asks_for_nothing_is_refused(weft: Shell) -> None:
    for words in (
        ["embed"],
        ["similar"],
        ["embed", "main", "--all", "turn"],
        ["embed", "main", "--forget", "--text", "x"],
    ):
        assert weft(*words).code == 2
    assert weft("similar", "main", "--words").code == 2
    assert "`weft similar main~2`, or a text, `weft similar --text 'flaky tests'`" in weft("similar").err


def vectors(*rows: list[float]) -> Script:
    return answer(200, {"data": [{"index": i, "embedding": row} for i, row in enumerate(rows)]})


def far(weft: Shell, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE_KEY", CANARY)
    made = weft(
        "provider", "create", "there", "--type", "openai-compatible", "--base-url", url, "--key-env", "THERE_KEY"
    )
    assert made.code == 0, made.err
    assert weft("model", "create", "far", "--backend", "bge-m3", "--provider", "there").code == 0


def test_a_model_at_a_provider_embeds_beside_the_one_that_comes_with_weft(
    weft: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = told(weft)
    with serving(vectors([0, 1, 0], [0, 1, 0.5], [1, 0, 0]), vectors([1, 0.1, 0])) as server:
        far(weft, server.url, monkeypatch)
        assert weft("embed", "--all", "turn", "--model", "far").out == "embedded 3 turns\n"
        weft("embed", "--all", "turn")
        near = weft.json("similar", turns[2], "--model", "far", "--limit", "1")
        assert len(server.received) == 1  # what has a vector needs no server
        assert near[0]["node"]["id"] == turns[1]
        assert weft.json("similar", "--text", "x", "--model", "far", "--limit", "1")[0]["node"]["id"] == turns[0]
        assert server.received[0].headers["authorization"] == f"Bearer {CANARY}"
    counted = {one["model"]: (one["dimensions"], one["nodes"]) for one in weft.json("embed-stats")}
    assert counted == {"there/bge-m3": (3, 3), "all-MiniLM-L6-v2": (384, 3)}
    assert weft("embed", "--forget", "--model", "far").out == "took 3 vectors away\n"
    assert [one["model"] for one in weft.json("embed-stats")] == ["all-MiniLM-L6-v2"]


def test_another_size_is_refused_until_the_old_vectors_are_forgotten(
    weft: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = told(weft)
    with serving(vectors([0, 1, 0]), vectors([0, 1]), vectors([0, 1])) as server:
        far(weft, server.url, monkeypatch)
        assert weft("embed", turns[0], "--model", "far").code == 0
        for words in (["embed", turns[1]], ["similar", "--text", "x"]):
            mixed = weft(*words, "--model", "far")
            assert mixed.code == 4
            assert "have 3 dimensions, not 2" in mixed.err
        weft("embed", "--forget", "--model", "far")
        assert weft("embed", turns[1], "--model", "far").code == 0


def test_a_server_that_fails_leaves_nothing_and_shows_no_key(weft: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = told(weft)
    with serving(failure(401, f"bad key {CANARY}")) as server:
        far(weft, server.url, monkeypatch)
        for words in (["embed", turns[0]], ["similar", "--text", "x"]):
            found = weft(*words, "--model", "far")
            assert found.code == 8
            assert CANARY not in found.err + found.out
    assert weft.json("embed-stats") == []
    assert weft("embed", turns[0], "--model", "nobody").code == 3
    assert weft("embed", turns[0], "--model", "there").code == 3
