"""`weft compact` with a model: made, compared side by side, switched and undone."""

from __future__ import annotations

import pytest

from tests.runtime.inference.asking import CANARY
from tests.runtime.scripted import chat_saying, failure
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell

USAGE = {"prompt_tokens": 1_000, "completion_tokens": 20, "total_tokens": 1_020}
SHORT = chat_saying({"content": "Open: mend src/app.py."}, usage=USAGE)


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE_KEY", CANARY)


def stock(weft: Shell, url: str) -> None:
    for line in (
        f"provider create there --type openai-compatible --base-url {url} --key-env THERE_KEY",
        "model create large --backend gpt-4o --provider there",
        "model create small --backend gpt-4o-mini --provider there --set contextWindow=64000",
        "session create work --model large",
    ):
        made = weft(*line.split())
        assert made.code == 0, made.err
    for file in ("src/app.py", "src/date_parser.py", "docs/README.md"):
        weft.record(f"Please mend {file} " + "and say how " * 20, session="work", response=f"{file} is mended")
    weft.record("What is next?", session="work", response="src/other.py")


def test_compactions_of_several_strategies_are_made_compared_and_switched(weft: Shell) -> None:
    with serving(SHORT) as server:
        stock(weft, server.url)
        made = weft.json("compact", "work", "--strategy", "summary", "--keep", "1", "--focus", "what is open")
        assert (made["compaction_type"], made["trigger"], made["model"]) == ("summary", "manual", "m-1")
        assert made["metadata"]["focus"] == "what is open"
        assert [request.body["model"] for request in server.received] == ["gpt-4o"]
        assert weft("compact", "work", "--undo").code == 0
        assert weft("session", "configure", "work", "--set", "compaction.model=small").code == 0
        chosen = weft("compact", "work", "--keep", "2")
        assert "tokens before" in chosen.out
        assert server.received[-1].body["model"] == "gpt-4o-mini"
        assert weft("compact", "work", "--undo").code == 0
        assert weft("compact", "work", "--strategy", "selective", "--model", "large", "--keep", "1").code == 0
        assert server.received[-1].body["model"] == "gpt-4o"
        assert weft("compact", "work", "--undo").code == 0
        assert weft("compact", "work", "--strategy", "sliding_window", "--keep", "1").code == 0
        assert len(server.received) == 3
    first, second, third, last = weft.json("compact", "work", "--list")
    assert [one["strategy"] for one in (first, second, third, last)] == [
        "summary", "summary", "selective", "sliding_window",
    ]  # fmt: skip
    assert [one["in_effect"] for one in (first, second, third, last)] == [False, False, False, True]
    assert [one["kept_turns"] for one in (first, second, last)] == [1, 2, 1]
    assert "src/app.py" in first["survived"]
    assert set(first["lost"]) == {"src/date_parser.py", "docs/README.md"}
    assert "docs/README.md" in second["survived"], "a kept turn holds it"
    assert set(last["lost"]) == {"src/app.py", "src/date_parser.py", "docs/README.md"}
    assert (last["cost_micro_usd"], last["survived"]) == (0, ["src/other.py"])
    lines = weft("compact", "work", "--list").out.splitlines()
    rows = {line.split("\t")[0]: line.split("\t")[1:] for line in lines if "\t" in line}
    assert rows["terms kept"][0] == "2 of 4"
    assert rows["tokens sent"] == ["1,000", "1,000", "1,000", "0"]
    assert rows["in effect"] == ["", "", "", "yes"]
    assert any("lost: docs/README.md, src/date_parser.py" in line for line in lines)
    assert weft("compact", "work", "--use", first["compaction"]["turn_id"]).code == 0
    assert weft.json("compact", "work", "--list")[0]["in_effect"] is True
    assert weft("verify").code == 0


def test_a_session_that_goes_on_from_an_import_is_compacted_and_asked(weft: Shell) -> None:
    with serving(SHORT) as server:
        stock(weft, server.url)
        for words in ("one", "two"):
            weft.record(words, session="theirs", persona="imported")
        assert weft("compact", "theirs", "--strategy", "sliding_window", "--keep", "1").code == 0
        assert weft("session", "send", "theirs", "three", "--model", "large").code == 0


def test_a_summary_that_a_model_could_not_write_is_an_extract_and_says_so(weft: Shell) -> None:
    with serving(failure(400, "no")) as server:
        stock(weft, server.url)
        made = weft("compact", "work", "--keep", "1")
    assert made.code == 0
    assert "the model failed, so the summary is an extract: request_refused" in made.err
    (told,) = weft.json("compact", "work", "--list")
    assert told["is_extract"] is True
    assert "src/date_parser.py" in told["survived"]


def test_what_does_not_go_together_is_refused_before_anything_is_asked(weft: Shell) -> None:
    weft.record("one")
    for options in (
        ["--list", "--undo"],
        ["--use", "main", "--strategy", "summary"],
        ["--summary", "s", "--keep", "1"],
    ):
        assert weft("compact", *options).code == 2
    assert "there is no compaction" in weft("compact", "--list").err
    without = weft("compact", "--strategy", "summary", "--json")
    assert without.code != 0
    assert "has no model" in without.error["message"]
    unknown = weft("compact", "--strategy", "magic", "--json")
    assert "known: summary, sliding_window, selective" in unknown.error["hint"]
