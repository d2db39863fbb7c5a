"""Facts out and in as JSON lines: the same digests, the same rows, nothing twice, nothing forged."""

import base64
import io
import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.ledger.conftest import OpenLedger
from tests.ledger.histories import exported, grow, import_into, problems, queries, select, texts
from tests.ledger.test_verifying import rich
from tests.sizes import points, share
from weft.kernel import contents as kernel_contents
from weft.kernel.errors import InvalidFact, InvalidInput, ReplicaDiverged, StoreError
from weft.ledger.api.ledger import Ledger
from weft.ledger.upkeep import facts_file

SURFACE = """turns threads sessions messages tool_calls compactions session_history session_aliases message_files
    message_lints message_codeblocks""".split()


def records(facts: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in facts.splitlines()]


def as_facts(values: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def reseal(event: dict[str, Any]) -> dict[str, Any]:
    """The event with the id that its present fields have."""
    fields = {name: value for name, value in event.items() if name != "event_id"}
    return {"event_id": sha256(kernel_contents.dumps(fields)).hexdigest(), **fields}


def surface(ledger: Ledger) -> dict[str, list[dict[str, Any]]]:
    ledger.upkeep.catch_up()
    return {table: select(ledger.path, f"SELECT * FROM {table} ORDER BY 1, 2, 3") for table in SURFACE}


@pytest.fixture
def empty(open_ledger: OpenLedger, tmp_path: Path) -> Ledger:
    return open_ledger(tmp_path / "other.db")


@pytest.fixture
def facts(disk: Ledger) -> bytes:
    rich(disk)
    return exported(disk)


def test_an_event_that_says_this_ledger_wrote_it_is_known_here_or_refused(disk: Ledger) -> None:
    grow(disk, "main", "one")
    facts = exported(disk)
    import_into(disk, facts)
    moved = next(event for event in reversed(records(facts)) if event.get("kind") == "session_moved")
    forged = reseal({**moved, "prev": moved["event_id"], "to": None, "before": moved["to"], "why": "reset"})
    with pytest.raises(ReplicaDiverged, match=disk.replica):
        import_into(disk, as_facts([forged]))
    assert queries(disk, "main") == ["one"]


def test_facts_are_bytes_and_not_written_to_a_file_of_text(ledger: Ledger) -> None:
    with pytest.raises(InvalidInput, match="a file of text"):
        ledger.upkeep.export_facts(io.StringIO())


def test_a_line_is_a_content_with_its_salt_or_an_event_with_its_id(facts: bytes) -> None:
    values = records(facts)
    contents = [value for value in values if "ref" in value]
    events = [value for value in values if "event_id" in value]
    assert values == contents + events
    for content in contents:
        data = content["text"].encode() if "text" in content else base64.b64decode(content["base64"])
        salted = b"weft.content.1\n" + bytes.fromhex(content["salt"]) + data
        assert sha256(salted).hexdigest() == content["ref"]
    for line, event in zip(facts.splitlines()[len(contents) :], events, strict=True):
        assert reseal(event)["event_id"] == event["event_id"]
        assert line.startswith(b'{"event_id":"')


def test_into_an_empty_ledger_facts_give_the_same_digests_and_rows(disk: Ledger, facts: bytes, empty: Ledger) -> None:
    events, contents, known = import_into(empty, facts)
    assert (events, contents, known) == (disk.upkeep.stats()["events"], disk.upkeep.stats()["contents"], 0)
    assert [turn.digest for turn in empty.log()] == [turn.digest for turn in disk.log()]
    assert surface(empty) == surface(disk)
    assert exported(empty) == facts
    assert empty.upkeep.stats()["log"] == disk.upkeep.stats()["log"]
    assert problems(empty) == []
    assert empty.upkeep.rebuild() == 0


def test_an_import_goes_on_where_the_exporter_could(disk: Ledger, facts: bytes, empty: Ledger) -> None:
    import_into(empty, facts)
    assert grow(empty, "main", "there") != grow(disk, "main", "here")
    assert queries(empty, "main")[:-1] == queries(disk, "main")[:-1]
    assert [call.result for call in empty.tool_calls("alt~2")] == [call.result for call in disk.tool_calls("alt~2")]
    assert problems(empty) == []


def test_importing_twice_brings_nothing_new(facts: bytes, empty: Ledger) -> None:
    import_into(empty, facts)
    before = exported(empty)
    assert import_into(empty, facts) == (0, 0, len(facts.splitlines()))
    assert exported(empty) == before


def test_an_import_that_was_cut_short_is_simply_run_again(
    facts: bytes, empty: Ledger, disk: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts_file, "BATCH_LINES", 7)
    lines = facts.splitlines(keepends=True)
    for end in points(len(lines), test=5):

        def cut(end: int = end) -> Iterator[bytes]:
            yield from lines[:end]
            raise ConnectionError("the wire broke")

        with pytest.raises(ConnectionError):
            facts_file.import_lines(empty._store, cut())
        assert problems(empty) == []
    import_into(empty, facts)
    assert surface(empty) == surface(disk)
    assert exported(empty) == facts


def test_growth_is_brought_by_the_next_import(disk: Ledger, facts: bytes, empty: Ledger) -> None:
    import_into(empty, facts)
    grow(disk, "main", "later")
    disk.labels.rename("alt", "other")
    disk.labels.rename("main", "alt")
    disk.labels.rename("other", "main")
    disk.labels.delete("main")
    grow(disk, "main", "a label used again")
    events, _, known = import_into(empty, exported(disk))
    assert events > 0
    assert known == len(facts.splitlines())
    assert surface(empty) == surface(disk)
    assert problems(empty) == []


@pytest.mark.parametrize("batch", share([1, 2, 3, 1000], test=1))
def test_the_size_of_a_batch_does_not_show(
    disk: Ledger, facts: bytes, empty: Ledger, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(facts_file, "BATCH_LINES", batch)
    monkeypatch.setattr(facts_file, "ROW_EVENTS", batch)
    import_into(empty, facts)
    assert surface(empty) == surface(disk)
    assert problems(empty) == []


def test_a_session_whose_label_is_taken_comes_in_beside_it(disk: Ledger, facts: bytes, empty: Ledger) -> None:
    mine = grow(empty, "main", "mine")
    empty.labels.add_alias("nick", "main")
    import_into(empty, facts)
    theirs = f"{disk.replica[-6:].lower()}/main"
    assert empty.session("main").head == mine[0]
    assert empty.session(theirs).id == disk.session("main").id
    assert queries(empty, theirs) == queries(disk, "main")
    assert empty.session("alt").id == disk.session("alt").id
    assert empty.record_turn(session=theirs, query="go on").parent_id == disk.session("main").head
    assert problems(empty) == []


def test_an_agent_whose_name_is_taken_comes_in_beside_it(disk: Ledger, facts: bytes, empty: Ledger) -> None:
    grow(empty, "mine", "q", persona="ann")
    import_into(empty, facts)
    assert empty.session("mine").persona_id == "ann"
    assert empty.session("main").persona_id.startswith("ann (")


def test_two_ledgers_that_move_one_session_keep_their_own_branch(disk: Ledger, facts: bytes, empty: Ledger) -> None:
    import_into(empty, facts)
    (ours,), (theirs,) = grow(disk, "main", "ours"), grow(empty, "main", "theirs")
    import_into(disk, exported(empty))
    import_into(empty, exported(disk))
    assert (disk.session("main").head, empty.session("main").head) == (ours, theirs)
    assert queries(disk, theirs)[-1] == queries(empty, theirs)[-1] == "theirs"
    assert {turn.id for turn in disk.log()} == {turn.id for turn in empty.log()}
    assert problems(disk) == problems(empty) == []


def tampered(values: list[dict[str, Any]], how: str) -> int:
    """Break one line; returns its number."""
    run = next(i for i, value in enumerate(values) if value.get("kind") == "run_finished")
    match how:
        case "text":
            values[1]["text"] += "!"
            return 2
        case "salt":
            values[0]["salt"] = "00" * 16
            return 1
        case "short salt":
            values[0]["salt"] = "00"
            return 1
        case "field":
            values[run]["exit"] = "error" if values[run]["exit"] == "success" else "success"
        case "id":
            values[run]["event_id"] = "0" * 64
        case "prev":
            values[run] = reseal({**values[run], "prev": "0" * 64})
        case "twice":
            values.insert(
                run + 1, reseal({**values[run], "ts": "2026-01-01T00:00:00.000Z", "prev": values[run]["event_id"]})
            )
            return run + 2
        case "second start":
            start = next(i for i, value in enumerate(values) if value.get("kind") == "run_started")
            values.insert(run + 1, reseal({**values[start], "role": "worker"}))
            return run + 2
        case "free text":
            values[run] = reseal({**values[run], "actor": "not a name at all"})
        case "stream":
            values[run] = reseal({**values[run], "stream": "run:nowhere"})
        case "lost":
            lost = next(i for i, value in enumerate(values) if value.get("kind") == "history_append")
            del values[lost]
            return lost + 1
        case "unknown prev":
            values[run] = reseal({**values[run], "kind": "moon_landed", "prev": "zz"})
    return run + 1


@pytest.mark.parametrize(
    "how",
    share(
        "text,salt,short salt,field,id,prev,twice,second start,free text,stream,lost,unknown prev".split(","),
        test=4,
    ),
)
def test_a_line_that_is_not_what_it_says_stops_the_import_and_undoes_its_batch(
    facts: bytes, empty: Ledger, how: str
) -> None:
    values = records(facts)
    number = tampered(values, how)
    with pytest.raises(InvalidFact, match=f"^line {number}:"):
        import_into(empty, as_facts(values))
    assert (empty.upkeep.stats()["events"], empty.upkeep.stats()["contents"]) == (0, 0)
    assert problems(empty) == []


def test_batches_before_a_forged_line_stay(facts: bytes, empty: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts_file, "BATCH_LINES", 5)
    values = records(facts)
    values[-1]["actor"] = "forger"
    with pytest.raises(InvalidFact, match=f"^line {len(values)}:"):
        import_into(empty, as_facts(values))
    kept = empty.upkeep.stats()
    assert kept["events"] + kept["contents"] == (len(values) - 1) // 5 * 5
    assert problems(empty) == []


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense", b"[]", b"7", b"{}", b'{"event_id":5}', b'{"event_id":"00"}', b'{"ref":"zz","salt":"","text":""}',
        b'{"ref":"00","salt":"00","text":5}', b'{"ref":"00","salt":"00"}', b'{"ref":"00","salt":"00","base64":"%"}',
        b'{"ref":"00","ref":"00"}', b'{"a":NaN}', b'\xff', b'{"event_id":"' + b"0" * 64 + b'","kind":"x"}',
        b'{"ref":"00","salt":"00","text":"x","piece":1,"pieces":2}',
    ],
)  # fmt: skip
def test_a_line_that_is_no_fact_is_refused_with_its_number(empty: Ledger, line: bytes) -> None:
    with pytest.raises(InvalidFact, match=r"^line 3:"):
        import_into(empty, b"\n  \n" + line + b"\n")
    assert empty.upkeep.stats()["events"] == 0


@pytest.mark.slow("megabytes go there and back, half of them lone surrogates")
def test_a_large_content_travels_in_pieces(disk: Ledger, empty: Ledger) -> None:
    large, odd = "€" * 900_000, "\0\ud800" * 400_000
    made = disk.record_turn(session="main", query=large, response=odd)
    facts = exported(disk)
    assert sum(b'"pieces"' in line for line in facts.splitlines()) == 5
    import_into(empty, facts)
    assert texts(empty.messages(made.id)) == [large, odd]
    assert problems(empty) == []
    cut = b"\n".join(facts.splitlines()[:2]) + b"\n"
    with pytest.raises(InvalidFact, match="middle of a content"):
        import_into(empty, cut)


def test_an_export_goes_to_a_new_file_and_never_over_another(disk: Ledger, facts: bytes, tmp_path: Path) -> None:
    target = tmp_path / "facts.jsonl"
    assert disk.upkeep.export_facts(target) == len(facts.splitlines())
    assert target.read_bytes() == facts
    with pytest.raises(StoreError, match="exists already"):
        disk.upkeep.export_facts(str(target))
    assert sorted(tmp_path.glob("facts*")) == [target]


def test_an_export_tells_how_far_it_is(disk: Ledger, facts: bytes, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    disk.upkeep.export_facts(tmp_path / "facts.jsonl", progress=lambda done, of: seen.append((done, of)))
    assert seen == sorted(seen)
    assert seen[-1] == (len(facts.splitlines()),) * 2
    assert len(seen) > 3


def test_an_import_reads_files_by_name_and_tells_its_progress(facts: bytes, empty: Ledger, tmp_path: Path) -> None:
    source = tmp_path / "facts.jsonl"
    source.write_bytes(facts)
    seen: list[int] = []
    empty.upkeep.import_facts(str(source), progress=seen.append)
    assert seen[-1] == len(facts.splitlines())


def test_a_line_beyond_all_bounds_is_refused(empty: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts_file, "LINE_LIMIT", 1000)
    with pytest.raises(InvalidFact, match="longer than 1000"):
        empty.upkeep.import_facts(io.BytesIO(b'{"ref":"' + b"0" * 2000))


def test_memory_and_disk_exchange_facts(open_ledger: OpenLedger, disk: Ledger, facts: bytes) -> None:
    memory = open_ledger(":memory:")
    import_into(memory, facts)
    assert exported(memory) == facts
    assert problems(memory) == []
