"""route: where a text would go."""

import pytest

from tests.surfaces.shell import Shell
from weft.kernel.typed_names import shell_word

pytestmark = pytest.mark.usefixtures("one_minilm")


def filled(weft: Shell) -> list[str]:
    sayings = (("cats", "cats drink milk from a saucer"), ("ship", "the ship crossed the ocean in a storm"))
    return [weft.record(text, session=session) for session, text in sayings]


def test_the_thread_of_a_text_is_shown_with_its_reasons(weft: Shell) -> None:
    cats, ship = filled(weft)
    choice = weft.json("route", "--dry-run", "did the ship cross the stormy ocean in a day")
    assert (choice["turn"], choice["session"], choice["fallback"]) == (ship, "ship", None)
    assert choice["confidence"] >= choice["threshold"] == 0.25
    lines = weft("route", "--dry-run", "did the ship cross the stormy ocean in a day").out.splitlines()
    assert lines[0] == f"turn {ship[-8:]} the head of session ship"
    assert lines[1].startswith("confidence 0.")
    assert "shares the words in, ocean, ship, the;" in lines[1]
    assert "by words alone" in lines[1]
    assert weft("embed", "--all", "turn").code == 0
    near = weft.json("route", "--dry-run", "kittens like cream", "--threshold", "0.05")
    assert (near["turn"], near["by_vectors"]) == (cats, True)
    assert "its meaning is near" in " ".join(near["reasons"])


def test_a_text_that_belongs_nowhere_is_refused_with_what_came_near(weft: Shell) -> None:
    _, ship = filled(weft)
    text = ("route", "--dry-run", "calibrate the spectrometer in a laboratory")
    choice = weft.json(*text)
    assert choice["turn"] is None
    assert choice["alternatives"][0]["turn"] == ship
    shown = weft(*text).out
    assert shown.startswith("no thread: the best thread is ahead by 0.")
    assert "no turn holds calibrate" in shown
    assert weft.json(*text, "--limit", "0")["alternatives"] == []
    assert weft.json(*text, "--threshold", "0")["turn"] == ship


def test_finding_is_the_default_and_the_command_that_sends_is_named(weft: Shell) -> None:
    filled(weft)
    text = "did the ship's crew cross the ocean in a day"
    found = weft("route", text)
    assert (found.code, found.out) == (0, weft("route", "--dry-run", text).out)
    assert found.err == f"`weft send --smart {shell_word(text)}` sends it there\n"
    assert weft.json("route", text) == weft.json("route", "--dry-run", text)
    assert weft("route", " ").code != 0
    assert len(weft.json("log")) == 2, "nothing was sent"


def test_the_chosen_thread_stands_in_the_table_with_its_score(weft: Shell) -> None:
    cats, ship = filled(weft)
    shown = weft("route", "did the ship cross the ocean in a storm with milk").out
    confidence, first, second = shown.splitlines()[1:]
    scores = [float(row.split("\t")[0]) for row in (first, second)]
    assert first.split("\t")[1:2] + first.split("\t")[-1:] == [ship[-8:], "chosen"]
    assert second.split("\t")[1] == cats[-8:]
    lead = float(confidence.removeprefix("confidence ").partition(":")[0])
    assert lead == pytest.approx(scores[0] - scores[1], abs=0.011), "each is rounded"
    assert "shares the word milk; " in second
