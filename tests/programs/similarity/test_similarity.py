"""Nodes near to each other, by a model of words that is small enough to see through."""

import asyncio
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
import weft.aio
from weft.kernel.errors import InvalidInput, NotAllowed, NotApplicable, NotFound
from weft.kernel.ledger_events import NodeEmbedded
from weft.ledger.api.base import store_of
from weft.ledger.api.ledger import Ledger
from weft.programs import Programs
from weft.programs import similarity as similarity_module
from weft.programs.similarity import FRESH, Similar, Similarity
from weft.surfaces.wire.hints import phrase


class Words:
    """Each word has a direction of its own: texts with the same words lie together."""

    def __init__(self, name: str = "words", dimensions: int = 64) -> None:
        self.name, self.dimensions = name, dimensions

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        made = np.zeros((len(texts), self.dimensions), np.float32)
        for row, text in zip(made, texts, strict=True):
            for word in text.lower().split():
                row[int.from_bytes(sha256(word.encode()).digest()[:4], "big") % self.dimensions] += 1
            row /= np.linalg.norm(row) or 1
        return made


TEXTS = ("cats drink milk", "cats like warm milk", "ships cross the sea")


@pytest.fixture
def turns(ledger: Ledger) -> list[str]:
    return [ledger.record_turn(session="main", query=text).id for text in TEXTS]


@pytest.fixture
def similarity(ledger: Ledger, turns: list[str]) -> Similarity:
    made = Similarity(ledger, Words())
    assert made.embed_missing("turn") == len(turns)
    return made


def ids(found: list[Similar]) -> list[str]:
    return [one.node.id for one in found]


def test_the_nearest_come_first_and_a_node_is_not_near_itself(similarity: Similarity, turns: list[str]) -> None:
    found = similarity.find_similar_to_node(turns[0])
    assert ids(found) == [turns[1], turns[2]]
    assert found[0].score > found[1].score
    assert ids(similarity.find_similar_to_node(turns[0], limit=1)) == [turns[1]]


def test_a_text_finds_nodes(similarity: Similarity, turns: list[str]) -> None:
    assert ids(similarity.find_similar_to_text("the sea", limit=1)) == [turns[2]]


def test_the_nearest_turns_are_those_that_can_be_read(ledger: Ledger, turns: list[str]) -> None:
    assert Similarity(ledger, Words()).nearest_turns("cats drink milk") == {}
    similarity = Similarity(ledger, Words())
    hidden = ledger.record_turn(session="hidden", query="cats drink milk").id
    similarity.embed_missing("turn")
    similarity.embed_missing("message")
    nearest = similarity.nearest_turns("cats drink milk", limit=8)
    assert {turns[0], hidden} <= nearest.keys()
    assert nearest[turns[0]] == pytest.approx(1)
    Programs(ledger).create("agent", "eve", {"permissions": {"programs": ["session:read(main)"]}})
    read = Similarity(ledger.acting_as("eve"), Words()).nearest_turns("cats drink milk")
    assert hidden not in read
    assert read[turns[0]] == pytest.approx(1)


def test_an_event_tells_of_each_and_the_vector_is_in_none(
    similarity: Similarity, turns: list[str], ledger: Ledger
) -> None:
    told = [one.event for one in ledger.changes() if isinstance(one.event, NodeEmbedded)]
    assert {one.node for one in told} == set(turns)
    assert {(one.model, one.dimensions) for one in told} == {("words", 64)}


def test_any_node_can_be_embedded(programs: Programs) -> None:
    ledger = programs.ledger
    turn = ledger.record_turn(session="talk", query="about cats and dogs", response="they sleep")
    message = ledger.messages(turn.id)[0].id
    similarity = Similarity(ledger, Words())
    program = programs.all()[0]
    kinds = [similarity.embed(node).node.kind for node in (turn.id, message, "talk", program.name)]
    assert kinds == ["turn", "message", "session", "program"]
    assert {one.node.kind for one in similarity.find_similar_to_node(turn.id)} == {"message", "session", "program"}
    assert [one.node.kind for one in similarity.find_similar_to_node(turn.id, kind="message")] == ["message"]


def test_a_room_is_embedded_by_its_title_and_what_was_said_in_it(programs: Programs) -> None:
    ledger = programs.ledger
    room = ledger.rooms.create("Pets")
    ledger.rooms.post(room.id, "cats and dogs sleep")
    turn = ledger.record_turn(session="talk", query="about cats and dogs", response="they sleep").id
    similarity = Similarity(ledger, Words())
    assert similarity.count_missing("room") == similarity.embed_missing("room") == 1
    similarity.embed(turn)
    assert similarity.stats()[0].kinds == {"turn": 1, "room": 1}
    near = similarity.find_similar_to_text("cats and dogs sleep", kind="room")
    assert [(one.node.kind, one.node.name) for one in near] == [("room", "Pets")]
    assert [one.node.id for one in similarity.find_similar_to_node(turn)] == [room.id]
    assert similarity.embed("Pets").node.id == room.id


def test_a_text_of_ones_own_stands_for_a_node(similarity: Similarity, turns: list[str]) -> None:
    similarity.embed(turns[2], text="cats drink milk")
    assert ids(similarity.find_similar_to_node(turns[0], limit=1)) == [turns[2]]


def test_embedding_again_takes_the_place_of_the_old_vector(similarity: Similarity, turns: list[str]) -> None:
    similarity.find_similar_to_node(turns[0])
    similarity.embed(turns[1], text="something else altogether")
    similarity.embed(turns[1], text="ships cross")
    assert similarity.stats()[0].nodes == len(turns)
    assert ids(similarity.find_similar_to_text("ships cross", limit=1)) == [turns[1]]


def test_words_bring_those_forward_that_hold_them(ledger: Ledger) -> None:
    made = [ledger.record_turn(session="main", query=text).id for text in ("apples and pears", "apples", "pears")]
    similarity = Similarity(ledger, Words())
    similarity.embed(made[0], text="vehicles")
    similarity.embed_missing("turn")
    assert ids(similarity.find_similar_to_text("apples and pears"))[0] != made[0]
    assert made[0] in ids(similarity.find_similar_to_text("apples and pears", limit=2, words=True))


def test_what_has_no_vector_is_told_how_to_get_one(similarity: Similarity, ledger: Ledger) -> None:
    turn = ledger.record_turn(session="main", query="new").id
    with pytest.raises(NotFound, match="vector") as refused:
        similarity.find_similar_to_node(turn)
    assert f"weft embed {turn}" in phrase(refused.value.advice)


def test_what_has_no_text_is_refused(similarity: Similarity, ledger: Ledger, turns: list[str]) -> None:
    event = ledger.events(turns[0])[0].id
    with pytest.raises(InvalidInput, match="no text of its own"):
        similarity.embed(event)
    assert similarity.embed(event, text="an event").node.kind == "event"
    for empty in ("", "  "):
        with pytest.raises(InvalidInput):
            similarity.embed(turns[0], text=empty)
        with pytest.raises(InvalidInput):
            similarity.find_similar_to_text(empty)
    with pytest.raises(InvalidInput):
        similarity.find_similar_to_node(turns[0], limit=0)
    with pytest.raises(InvalidInput):
        similarity.embed_missing("cloud")


def test_mixed_dimensions_are_refused(similarity: Similarity, ledger: Ledger, turns: list[str]) -> None:
    other = Similarity(ledger, Words(dimensions=32))
    with pytest.raises(NotApplicable, match="64 dimensions, not 32"):
        other.embed(turns[0])
    with pytest.raises(NotApplicable):
        other.find_similar_to_text("cats")
    assert similarity.forget() == len(turns)
    assert other.embed(turns[0]).dimensions == 32


def test_models_are_never_compared(similarity: Similarity, ledger: Ledger, turns: list[str]) -> None:
    other = Similarity(ledger, Words("other words"))
    other.embed(turns[0])
    assert other.find_similar_to_node(turns[0]) == []
    counted = {one.model: (one.nodes, one.kinds, one.current) for one in other.stats()}
    assert counted == {"other words": (1, {"turn": 1}, True), "words": (3, {"turn": 3}, False)}


def test_another_process_s_vectors_are_found(similarity: Similarity, ledger: Ledger, turns: list[str]) -> None:
    assert len(similarity.find_similar_to_node(turns[0])) == 2
    fourth = ledger.record_turn(session="main", query="cats drink milk at sea").id
    Similarity(ledger, Words()).embed(fourth)
    assert ids(similarity.find_similar_to_node(turns[0], limit=1)) == [fourth]
    Similarity(ledger, Words()).forget(fourth)
    assert ids(similarity.find_similar_to_node(turns[0], limit=1)) == [turns[1]]


def test_what_is_erased_has_no_vector_any_longer(ledger: Ledger) -> None:
    kept = ledger.record_turn(session="main", query="cats").id
    gone = ledger.record_turn(session="main", query="the secret word").id
    said = ledger.messages(gone)[0].id
    similarity = Similarity(ledger, Words())
    for node in (kept, gone, said, "main"):
        similarity.embed(node)
    ledger.erasure.erase(gone, reason="it was a secret")
    assert similarity.stats()[0].kinds == {"turn": 1}
    assert ids(similarity.find_similar_to_text("the secret word")) == [kept]


def test_what_is_shown_with_other_words_is_embedded_anew(ledger: Ledger) -> None:
    kept = ledger.record_turn(session="main", query="cats", response="mew").id
    other = ledger.record_turn(session="main", query="dogs", response="the secret word").id
    similarity = Similarity(ledger, Words())
    assert similarity.embed_missing("turn") == 2
    ledger.substitute(other, "they bark")
    assert similarity.stats()[0].kinds == {"turn": 1}
    assert similarity.embed_missing("turn") == 1
    assert ids(similarity.find_similar_to_text("they bark", limit=1)) == [other]
    assert [one.node.id for one in similarity.find_similar_to_node(kept)] == [other]


def test_an_erased_text_that_stood_for_a_node_takes_its_vector_along(ledger: Ledger) -> None:
    turn = ledger.record_turn(session="main", query="cats").id
    similarity = Similarity(ledger, Words())
    similarity.embed(turn, text="the secret word")
    (event,) = [one.event for one in ledger.changes() if isinstance(one.event, NodeEmbedded)]
    ledger.erasure.erase(str(event.text), reason="it was a secret")
    assert similarity.stats() == []


def test_deleted_sessions_are_not_shown(ledger: Ledger) -> None:
    for label in ("one", "two"):
        ledger.record_turn(session=label, query="cats drink milk")
    similarity = Similarity(ledger, Words())
    assert similarity.embed_missing("session") == 2
    assert [one.node.name for one in similarity.find_similar_to_node("one")] == ["two"]
    ledger.labels.delete("two")
    assert similarity.find_similar_to_node("one") == []


def test_many_are_found_by_an_index_that_the_next_process_finds_again(disk: Ledger) -> None:
    made = [disk.record_turn(session="main", query=f"word{k} word{k + 1} word{k + 2}").id for k in range(60)]
    few = Similarity(disk, Words(dimensions=256))
    few.embed_missing("turn")
    for _ in range(2):
        many = Similarity(disk, Words(dimensions=256), few=10)
        assert [ids(many.find_similar_to_node(turn, limit=2)) for turn in made] == [
            ids(few.find_similar_to_node(turn, limit=2)) for turn in made
        ]
    (file,) = Path(disk.path).parent.glob("*-near-words")
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_bytes(b"not an index")
    assert ids(Similarity(disk, Words(dimensions=256), few=10).find_similar_to_node(made[0], limit=1)) == ids(
        few.find_similar_to_node(made[0], limit=1)
    )
    disk.erasure.erase(made[7], reason="private")
    assert not list(Path(disk.path).parent.glob("*-near*"))
    assert made[7] not in ids(Similarity(disk, Words(dimensions=256), few=10).find_similar_to_node(made[6], limit=5))


def test_new_vectors_are_found_before_the_index_takes_them_in(disk: Ledger) -> None:
    made = [disk.record_turn(session="main", query=f"word{k} word{k + 1} word{k + 2}").id for k in range(140)]
    similarity = Similarity(disk, Words(dimensions=256), few=100)
    similarity.embed_missing("turn")
    assert made[1] in ids(similarity.find_similar_to_node(made[0], limit=2))
    (file,) = Path(disk.path).parent.glob("*-near-words")
    written = file.stat().st_mtime_ns
    twin = disk.record_turn(session="main", query="word0 word1 word2").id
    similarity.embed(twin)
    assert ids(similarity.find_similar_to_node(made[0], limit=1)) == [twin]
    assert file.stat().st_mtime_ns == written
    more = [disk.record_turn(session="main", query="word0 word1 word2").id for _ in range(3)]
    similarity.embed_missing("turn")
    assert set(ids(similarity.find_similar_to_node(made[0], limit=4))) == {twin, *more}
    assert file.stat().st_mtime_ns > written
    similarity.forget(twin)
    assert set(ids(similarity.find_similar_to_node(made[0], limit=3))) == set(more)


def test_a_search_reads_new_vectors_by_their_numbers_and_no_others(disk: Ledger) -> None:
    Similarity(disk, Words()).embed(disk.record_turn(session="main", query="cats").id)
    with store_of(disk).read() as txn:
        plan = txn.sql.fetch_rows(f"EXPLAIN QUERY PLAN {FRESH}", (0, "words", 1))
    assert [step for *_, step in plan] == ["SEARCH vector USING INTEGER PRIMARY KEY (rowid>?)"]


def test_an_open_ledger_finds_what_means_nearly_the_same(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similarity_module, "LazyMiniLM", Words)
    assert isinstance(ledger, weft.OpenLedger)
    made = [ledger.record_turn(session="main", query=text).id for text in ("cats drink milk", "cats drink", "the sea")]
    for turn in made:
        ledger.similarity.embed(turn)
    assert ids(ledger.similarity.find_similar_to_node(made[0], limit=1)) == [made[1]]
    assert ids(ledger.similarity.find_similar_to_text("the sea", limit=1)) == [made[2]]
    vector = Words().embed(["the sea"])[0]
    (near,) = ledger.similarity.find_similar([3 * float(number) for number in vector], limit=1)
    assert near.node.id == made[2]
    assert near.score == pytest.approx(1)
    assert [(one.model, one.nodes, one.current) for one in ledger.similarity.stats()] == [("words", 3, True)]
    for wrong in ([1.0], [0.0] * 64, [float("nan")] * 64, "text", [[1.0]]):
        with pytest.raises(InvalidInput):
            ledger.similarity.find_similar(wrong)  # type: ignore[arg-type]
    Programs(ledger).create("agent", "eve", {})
    with pytest.raises(NotAllowed):
        ledger.acting_as("eve").similarity.find_similar_to_node(made[0])


def test_so_it_does_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similarity_module, "LazyMiniLM", Words)

    async def main() -> None:
        async with weft.aio.open(tmp_path / "ledger.db") as ledger:
            turn = await ledger.record_turn(session="main", query="cats drink milk")
            await ledger.similarity.embed(turn.id)
            assert ids(await ledger.similarity.find_similar_to_text("cats")) == [turn.id]

    asyncio.run(main())


def test_the_model_is_loaded_when_a_text_is_first_embedded() -> None:
    model = similarity_module.LazyMiniLM()
    assert (model.name, model.dimensions) == (similarity_module.MINILM, 384)
    assert np.allclose(model.embed(["short"]), similarity_module.MiniLM().embed(["short"]))
