"""What is withheld: left out, listed, not to be guessed, and not to be found elsewhere."""

from hashlib import sha256
from pathlib import Path

import orjson
import pytest

from tests.exchange.bundles.histories import imported_thread, rich_thread
from tests.exchange.bundles.reading import lines_of, verified
from tests.ledger.histories import grow, problems, texts
from tests.ledger.imported import native_call, native_turn, take
from weft.exchange.bundles import create_bundle, import_bundle
from weft.exchange.bundles.creation import WithheldWords
from weft.kernel.contents import ABSENT, content_ref
from weft.kernel.errors import InvalidInput, NotFound, WithheldShows
from weft.ledger.api.ledger import Ledger

WORDS = "no nay never perhaps maybe sometimes yes swordfish aardvark zebra".split()


def said(path: Path) -> str:
    return b"\n".join(lines_of(path)).decode()


def test_a_withheld_message_is_left_out_and_listed(ledger: Ledger, other: Ledger, target: Path) -> None:
    grow(ledger, "main", "is there a fee?", "and how much is it?")
    answer = ledger.messages("main")[-1]
    report = create_bundle(ledger, ["main"], target, withhold=[answer.id]).report
    assert verified(target) == report
    assert [(place.message_id, place.why) for place in report.places] == [(answer.id, "withheld")]
    assert report.absent == {"withheld": 1}
    assert "re: and how much" not in said(target)
    import_bundle(other, target)
    assert texts(other.messages("main")) == ["and how much is it?", ABSENT]
    assert other.thread("main").digest == ledger.thread("main").digest
    assert problems(other) == []


def test_a_withheld_word_cannot_be_found_with_a_dictionary(disk: Ledger, target: Path) -> None:
    """All that is in the bundle, tried as a salt for every word: every run of 16 bytes of it, and every digest."""
    disk.record_turn(session="main", query="will you?", response="yes")
    answer = disk.messages("main")[-1]
    report = create_bundle(disk, ["main"], target, withhold=[answer.id]).report
    ref = bytes.fromhex(report.places[0].ref)
    n = disk._store.read().__enter__().facts.find_content(ref)
    assert n is not None
    with disk._store.read() as txn:
        salt = txn.facts.content_head(n).salt
    assert [word for word in WORDS if content_ref(salt, word.encode()) == ref] == ["yes"]
    lines = lines_of(target)
    whole = b"\n".join(lines)
    known = {whole[i : i + 16] for i in range(len(whole) - 15)} | {target.read_bytes()[i : i + 16] for i in range(500)}
    digits = [whole[i : i + 32] for i in range(len(whole) - 31)]
    known |= {bytes.fromhex(each.decode()) for each in digits if all(digit in b"0123456789abcdef" for digit in each)}
    known |= {b"", bytes(16), *(sha256(line).digest()[:16] for line in lines)}
    assert salt not in known
    assert salt.hex().encode() not in whole
    assert not any(content_ref(guess, word.encode()) == ref for guess in known for word in WORDS)


def test_a_withheld_imported_word_cannot_be_found_either(disk: Ledger, target: Path) -> None:
    take(disk, "s", native_turn("t1", "yes"))
    label = disk.sessions()[0].label
    answer = disk.messages(label)[-1]
    report = create_bundle(disk, [label], target, withhold=[answer.id]).report
    refs = {place.ref for place in report.places if place.why == "withheld"}
    values = [orjson.loads(line) for line in lines_of(target)]
    salts = {bytes.fromhex(value["salt"]) for value in values if "salt" in value}
    assert salts
    assert refs
    assert not any(content_ref(salt, b"yes").hex() in refs for salt in salts)


def test_a_withheld_call_goes_with_its_late_result_and_all_that_was_seen_of_it(disk: Ledger, target: Path) -> None:
    take(disk, "s", native_turn("t1", calls=[native_call("c1", detail={"stdout": "the whole output, in detail"})]))
    label = disk.sessions()[0].label
    call = disk.tool_calls(label)[0]
    report = create_bundle(disk, [label], target, withhold=[call.id], force=True).report
    what = {place.what for place in report.places if place.why == "withheld"}
    assert {"tool_call args", "tool_result result", "sighting calls[0].detail"} <= what
    assert "the whole output" not in said(target)
    rich_thread(disk)
    late = disk.tool_calls("alt~2")[0]
    made = create_bundle(disk, ["alt"], target.with_name("2.weft"), withhold=[late.id])
    assert [place.what for place in made.report.places if place.why == "withheld"] == [
        "tool_call args",
        "tool_result result",
    ]
    assert "what came late" not in said(target.with_name("2.weft"))


def test_a_withheld_turn_leaves_its_shape(disk: Ledger, other: Ledger, target: Path) -> None:
    rich_thread(disk)
    turn = disk.turn("alt~5")
    create_bundle(disk, ["alt"], target, withhold=[turn.id], force=True)
    import_bundle(other, target)
    assert {text for text in texts(other.messages(turn.id)) if text} == {ABSENT}
    assert other.turn(turn.id).model == turn.model
    assert [call.name for call in other.tool_calls(turn.id)] == ["read"]


def test_a_content_is_withheld_by_its_reference(disk: Ledger, target: Path) -> None:
    grow(disk, "main", "hello")
    refs = [
        orjson.loads(found.line).get("output", {}).get("parts", [{}])[0].get("text") for found in disk.events("main")
    ]
    (ref,) = [each for each in refs if each]
    report = create_bundle(disk, ["main"], target, withhold=[ref], force=True).report
    assert [place.ref for place in report.places] == [ref]


def test_what_matches_is_withheld_wherever_it_stands(disk: Ledger, target: Path) -> None:
    disk.record_turn(session="main", query="use the token", response="tok-12345 it is")
    disk.record_turn(session="main", query="what next?", response="I ran it", tool_calls=[
        {"name": "run", "arguments": {"command": "login --token tok-12345"}, "result": {"printed": ["tok-12345"]}},
    ])  # fmt: skip
    report = create_bundle(disk, ["main"], target, matching=r"tok-\d+").report
    assert report.absent["withheld"] == 3
    assert "12345" not in said(target)


def test_words_of_a_withheld_text_that_stand_elsewhere_are_noticed(disk: Ledger, target: Path) -> None:
    disk.record_turn(session="main", query="what is it?", response="the vault opens at noon on the first of May")
    disk.record_turn(session="main", query="thanks", response="So: The vault opens at NOON, on the first of each month")
    secret = disk.messages("main~1")[-1].id
    with pytest.raises(WithheldShows, match=disk.resolve("main")) as refused:
        create_bundle(disk, ["main"], target, withhold=[secret])
    assert len(refused.value.places) == 1
    assert not target.exists()
    assert not target.with_name("thread.weft.partial").exists()
    made = create_bundle(disk, ["main"], target, withhold=[secret], force=True)
    assert made.shows == refused.value.places


@pytest.mark.parametrize("place", ["arguments", "result", "summary", "title", "late", "label"])
def test_every_place_is_looked_at(disk: Ledger, target: Path, place: str) -> None:
    """Arguments, results, summaries, titles: where a person would not think of looking."""
    secret = "the vault opens at noon on Sunday"
    quoted = f'he wrote: "{secret}"\nand left'
    if place == "title":
        take(disk, "s", native_turn("t1", secret), title=quoted)
        name = disk.sessions()[0].label
    else:
        name = f"{secret}, again" if place == "label" else "main"
        disk.record_turn(session=name, query="what is it?", response=secret)
        match place:
            case "arguments":
                call = {"name": "run", "arguments": {"deep": [{"er": quoted}]}, "result": 1}
                disk.record_turn(session=name, query="do it", response="done", tool_calls=[call])
            case "result":
                call = {"name": "run", "arguments": {}, "result": orjson.dumps({"printed": quoted}).decode()}
                disk.record_turn(session=name, query="do it", response="done", tool_calls=[call])
            case "summary":
                disk.compactions.record(session=name, summary=quoted)
            case "late":
                with disk.begin_turn(session=name) as writer:
                    writer.tool_call("slow", {}, id="c1")
                    writer.interrupt("timeout")
                disk.record_late_result(name, "c1", {"printed": quoted})
    messages = [message for turn in disk.thread(name).turns for message in disk.messages(turn.id)]
    (withheld,) = [message.id for message in messages if message.text == secret]
    with pytest.raises(WithheldShows):
        create_bundle(disk, [name], target, withhold=[withheld])


def test_equal_texts_of_a_tree_are_withheld_together(disk: Ledger, target: Path) -> None:
    for _ in range(2):
        disk.record_turn(session="main", query="well?", response="the same answer")
    report = create_bundle(disk, ["main"], target, withhold=[disk.messages("main")[-1].id]).report
    first, second = (disk.messages(name)[-1].id for name in ("main~1", "main"))
    assert [place.message_id for place in report.places] == [first, second]
    assert report.absent == {"withheld": 1}


def test_equal_texts_of_two_trees_are_noticed(disk: Ledger, target: Path) -> None:
    for name in ("one", "two"):
        disk.record_turn(session=name, query=f"well, {name}?", response="the same answer")
    with pytest.raises(WithheldShows):
        create_bundle(disk, ["one", "two"], target, withhold=[disk.messages("one")[-1].id])


def test_what_is_not_in_the_threads_cannot_be_withheld(disk: Ledger, target: Path) -> None:
    grow(disk, "main", "one")
    (turn,) = grow(disk, "other", "two")
    for name in (turn, disk.messages(turn)[0].id, f"{turn}:c9", "0" * 64, "nobody"):
        with pytest.raises(NotFound):
            create_bundle(disk, ["main"], target, withhold=[name])
    with pytest.raises(InvalidInput, match="regular expression"):
        create_bundle(disk, ["main"], target, matching="(")
    assert not target.exists()


def test_verbatim_sources_and_their_names_are_never_disclosed(disk: Ledger, target: Path) -> None:
    label = imported_thread(disk)
    report = create_bundle(disk, [label], target).report
    outside = {place.what for place in report.places if place.why == "outside"}
    assert outside <= {"sighting raw", "sighting file"}
    assert outside


@pytest.mark.parametrize(
    ("withheld", "disclosed", "shows"),
    [
        ("yes", "Yes, of course", True),
        ("yes", "yesterday", False),
        ("swordfish", "login swordfish99", True),
        ("the code is hunter2 now and for ever more", "I typed HUNTER2!", True),
        ("one two three four five six seven", "x two three four five six seven y", True),
        ("one two three four five six seven", "three four five six seven eight", False),
        ("one two three", "One, two... three!", True),
        ("one two three", "one two four", False),
        ('{"password": "swordfish"}', "the word is swordfish", True),
        ('{"status": "ok", "type": "text"}', "ok, some text", False),
        ("one two\nthree four five six seven", '"one two\\nthree four five six seven"', True),
        ("one two\nthree four five six seven", '{"a":"{\\"b\\":\\"one two\\\\nthree four five six seven\\"}"}', True),
        ("暗号は桜です明日", "彼は「暗号は桜です明日」と言った", True),
        ("暗号は桜です明日", "桜の花", False),
        ("Straße ins Tal hinunter", "STRASSE INS TAL HINUNTER", True),
        ("👍", "👍", True),
        ("👍", "good 👍", False),
        ("", "anything", False),
    ],
)  # fmt: skip
def test_a_stretch_is_found_or_not(withheld: str, disclosed: str, shows: bool) -> None:
    stretches = WithheldWords()
    stretches.add(withheld.encode())
    assert stretches.found_in(disclosed) is shows
