"""embed, similar and embed-stats."""

from tests.surfaces.shell import Shell


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


def test_a_text_finds_them_too(weft: Shell) -> None:
    turns = told(weft)
    weft("embed", "--all", "turn")
    assert weft.json("similar", "--text", "a boat at sea", "--limit", "1")[0]["node"]["id"] == turns[2]
    assert weft.json("similar", "--text", "cream", "--words", "--limit", "1")[0]["node"]["id"] == turns[1]


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


def test_a_command_that_asks_for_nothing_is_refused(weft: Shell) -> None:
    for words in (
        ["embed"],
        ["similar"],
        ["embed", "main", "--all", "turn"],
        ["embed", "main", "--forget", "--text", "x"],
    ):
        assert weft(*words).code == 2
    assert weft("similar", "main", "--words").code == 2
