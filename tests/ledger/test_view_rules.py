"""Views that an older version computed are made anew once; those of this version are left as they are."""

from pathlib import Path

import pytest

import weft
from tests.ledger.conftest import OpenLedger
from tests.ledger.histories import change, exported, import_into, problems, select
from tests.ledger.imported import rich_import
from weft import Ledger
from weft.kernel.errors import InvalidInput
from weft.ledger.upkeep import verify
from weft.store.port import DiagnosisSeverity

LINKS = "SELECT label, parent_turn_id, spawn_tool_call_id, routing_key FROM sessions ORDER BY label"
FILES = "SELECT file_path FROM message_files ORDER BY file_path"
CALLS = "SELECT id, spawned_session_label FROM tool_calls ORDER BY id"
AS_MIGRATED = (
    "DELETE FROM lookup_text",
    "UPDATE session SET has_subagents = NULL, spawn_call_name = NULL",
    "UPDATE tool_call SET spawned = NULL",
    "DELETE FROM spawn",
    "DELETE FROM local WHERE key = 'view_rules'",
)
"""What an upgrade to schema 14 leaves empty for the next rebuild."""


def spawn_by_repeated_calls(ledger: Ledger) -> None:
    """Two calls have one id, three sessions name it, and texts to look up by are packed."""
    path = "/srv/" + "a_folder/" * 60 + "module.py"
    query = [{"role": "user", "content": "look", "files": [{"path": path, "kind": "read"}]}]
    calls = [{"id": "c~x", "name": "Task", "arguments": {}, "result": "ok"}] * 2
    turn = ledger.record_turn(session="boss", query=query, response="r " * 900, tool_calls=calls)
    for label in ("first", "second"):
        ledger.create_session(
            label, parent_session="boss", spawn_tool_call_id="c~x", routing_key=f"dm:{label}:" + "bob" * 300
        )
    ledger.create_session("third", parent_turn_id=turn.id, spawn_tool_call_id="c~x")


DAMAGES = {
    "no JSON": (b'"kind":"sighting"', b'"kind":sighting" '),
    "no object": (b'{"actor":"imported","end"', b'["actor":"imported","end"'),
    "another value": (b'"origin":"toy"', b'"origin":"boy"'),
    "no reference": (b'"mapping":"toy/1","native":"', b'"mapping":"toy/1","native":"#'),
}


def refuse_rebuild(*_: object) -> int:
    raise AssertionError("the views were made anew")


def test_an_upgraded_ledger_is_what_the_facts_say_once_it_was_opened(
    path: Path, open_ledger: OpenLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_ledger() as ledger:
        spawn_by_repeated_calls(ledger)
        ledger.upkeep.pack("boss")
        ledger.upkeep.catch_up()
    before = [select(path, query) for query in (LINKS, FILES, CALLS)]
    assert before[1][0]["file_path"]
    for statement in AS_MIGRATED:
        change(path, statement)
    with open_ledger() as ledger:
        assert problems(ledger) == []
    assert [select(path, query) for query in (LINKS, FILES, CALLS)] == before
    monkeypatch.setattr(verify, "rebuild", refuse_rebuild)
    open_ledger().close()


def test_a_new_ledger_that_takes_facts_over_is_not_computed_again(
    ledger: Ledger, tmp_path: Path, open_ledger: OpenLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    rich_import(ledger)
    monkeypatch.setattr(verify, "rebuild", refuse_rebuild)
    with open_ledger(tmp_path / "other.db") as other:
        import_into(other, exported(ledger))
    with open_ledger(tmp_path / "other.db") as other:
        assert other.session("main").head == ledger.session("main").head


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_ledger_of_an_older_version_is_opened_and_verify_names_the_damage(
    path: Path, open_ledger: OpenLedger, damage: str
) -> None:
    """Its views stay what they were: they are not computed from damaged facts."""
    with open_ledger() as ledger:
        rich_import(ledger)
        turns = ledger.log()
    change(path, "DELETE FROM local WHERE key = 'view_rules'")
    right, wrong = DAMAGES[damage]
    rows = select(path, "SELECT n, hex(events) AS events FROM log")
    n, events = next((row["n"], line) for row in rows if right in (line := bytes.fromhex(row["events"])))
    assert change(path, "UPDATE log SET events = ? WHERE n = ?", events.replace(right, wrong, 1), n) == 1
    for _ in range(2):
        with open_ledger() as ledger:
            assert ledger.log() == turns
            assert {problem.what for problem in ledger.verify()} & {"log", "event"}
    errors = {
        diagnosis.check for diagnosis in weft.examine(path, full=True) if diagnosis.grade is DiagnosisSeverity.ERROR
    }
    assert {"facts", "views"} <= errors


def test_whoever_opens_an_older_ledger_is_told_how_far_its_views_are(path: Path, open_ledger: OpenLedger) -> None:
    with open_ledger() as ledger:
        spawn_by_repeated_calls(ledger)
    change(path, "DELETE FROM local WHERE key = 'view_rules'")
    stages: list[tuple[str, int, int]] = []
    for _ in range(2):  # the second time nothing is left to do
        weft.open(path, progress=lambda *stage: stages.append(stage)).close()
    with weft.open(path) as ledger:
        events = ledger.upkeep.stats()["events"]
    assert stages.count(("log", events, events)) == 1
    assert [stage for stage in stages if stage[0] == "views"][-1] == ("views", events, events)
    with pytest.raises(InvalidInput):
        weft.open(path, progress="bar")  # type: ignore[arg-type]
