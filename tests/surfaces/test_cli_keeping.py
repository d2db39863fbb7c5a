"""verify, rebuild, export-facts, import-facts, backup and recover."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

import weft as library
from tests.surfaces.shell import Shell


@pytest.fixture
def database(weft: Shell, folder: Path) -> Path:
    """A ledger with a little history."""
    for i in range(3):
        weft.record(f"q{i}", tool_calls=[{"name": "t", "result": i}])
    weft("fork", "main~1", "alt")
    weft.record("aside", session="alt")
    return folder / ".weft" / "ledger.db"


def change(database: Path, sql: str) -> None:
    connection = sqlite3.connect(database)
    connection.execute(sql)
    connection.commit()
    connection.close()


def test_a_sound_ledger_has_no_problems(weft: Shell, database: Path) -> None:
    assert weft("verify").out == "no problems\n"
    sound = {"ok": True, "problems": [], "erased_contents": 0, "snapshots": 0, "files_elsewhere": 0}
    assert weft.json("verify") == sound
    assert weft("verify", "--facts-only").code == weft("verify", "--views-only").code == 0
    assert weft("verify", "--facts-only", "--views-only").code == 2


def test_a_changed_view_is_found_and_rebuilt(weft: Shell, database: Path) -> None:
    change(database, "UPDATE turn SET model = 'other' WHERE depth = 2")
    answer = weft("verify")
    assert answer.code == 1
    assert answer.out.startswith("view turn ")
    assert "weft rebuild" in answer.err
    found = weft("verify", "--json")
    assert (found.code, found.json["ok"]) == (1, False)
    assert set(found.json["problems"][0]) == {"what", "where", "detail"}
    assert weft("verify", "--facts-only").code == 0
    assert weft("rebuild").out == "mended 1 row\n"
    assert weft("verify").code == 0
    assert weft.json("rebuild") == {"changed": 0}
    assert weft("rebuild").out == "every view was right already\n"


def test_a_changed_fact_is_found_when_verified_and_when_shown(weft: Shell, database: Path) -> None:
    change(database, "UPDATE content SET bytes = CAST('aXide' AS BLOB) WHERE bytes = CAST('aside' AS BLOB)")
    assert weft("verify", "--facts-only").code == 1
    answer = weft("show", "alt", "--json")
    assert answer.code == 6
    assert answer.error["code"] == "fact_damaged"


def test_a_receipt_holds_the_ledger_to_what_it_acknowledged(weft: Shell, database: Path, folder: Path) -> None:
    receipt = weft("record", "--query", "kept", "--json").out
    (folder / "receipt.json").write_text(receipt)
    assert weft("verify", "--receipt", "receipt.json").code == 0
    assert weft("verify", "--receipt", "-", stdin=json.dumps(json.loads(receipt)["receipt"])).code == 0
    other = json.loads(receipt)
    other["receipt"]["n"] += 1000
    answer = weft("verify", "--receipt", "-", stdin=json.dumps(other))
    assert answer.code == 1
    assert "cut or rolled back" in answer.out


def test_a_receipt_is_taken_as_record_shows_it(weft: Shell, folder: Path) -> None:
    first, last = (weft("record", "--session", "receipt", "--query", text).out for text in ("kept", "kept, too"))
    (folder / "receipt.txt").write_text(first + last)
    assert weft("verify", "--receipt", "receipt.txt").code == 0
    number = last.splitlines()[-1].split()[2]
    cut = weft("verify", "--receipt", "-", stdin=first + last.replace(f" {number} ", f" {int(number) + 1000} "))
    assert (cut.code, "cut or rolled back" in cut.out) == (1, True)
    edited = weft("verify", "--receipt", "-", stdin=last.replace(last.splitlines()[-1].split()[-1], "0" * 64))
    assert edited.code == 1


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"receipt": 5}', "receipt  x 5 00"])
def test_what_is_no_receipt_is_refused(weft: Shell, text: str) -> None:
    answer = weft("verify", "--receipt", "-", stdin=text)
    assert answer.code == 5
    assert "is not a receipt" in answer.err


def test_facts_go_out_and_into_an_empty_ledger_with_the_same_digests(weft: Shell, database: Path) -> None:
    answer = weft("export-facts", "facts.jsonl")
    lines = Path("facts.jsonl").read_text().splitlines()
    assert answer.out == f"wrote {len(lines)} facts to facts.jsonl\n"
    assert all({"event_id", "ref"} & json.loads(line).keys() for line in lines)
    weft("init", "copy.db")
    brought = weft.json("import-facts", "facts.jsonl", "--ledger", "copy.db")
    assert brought["known"] == 0
    assert brought["events"] + brought["contents"] == len(lines)
    ours, theirs = (weft.json("log", "--ledger", name) for name in (str(database), "copy.db"))
    assert [turn["digest"] for turn in ours] == [turn["digest"] for turn in theirs]
    again = weft("import-facts", "facts.jsonl", "--ledger", "copy.db").out
    assert again == f"0 new events, 0 new contents, {len(lines)} known already\n"


def test_facts_go_through_pipes(weft: Shell, database: Path) -> None:
    facts = weft("export-facts", "-").out
    weft("init", "copy.db")
    assert weft("export-facts").out == facts
    assert weft("import-facts", "-", "--ledger", "copy.db", stdin=facts).code == 0
    assert ", 0 known already" not in weft("import-facts", "--ledger", "copy.db", stdin=facts).out
    assert len(weft.json("log", "--ledger", "copy.db")) == 4


def test_an_export_never_overwrites(weft: Shell, database: Path) -> None:
    Path("facts.jsonl").write_text("mine")
    assert weft("export-facts", "facts.jsonl").code == 7
    assert Path("facts.jsonl").read_text() == "mine"


def test_a_line_that_is_not_what_it_says_stops_the_import(weft: Shell, database: Path) -> None:
    facts = weft("export-facts", "-").out.splitlines()
    facts[2] = facts[2].replace('"text":"', '"text":"X')
    weft("init", "copy.db")
    answer = weft("import-facts", "-", "--ledger", "copy.db", stdin="\n".join(facts))
    assert answer.code == 5
    assert "line 3" in answer.err
    assert weft("import-facts", "missing.jsonl").code == 7


def test_a_backup_is_a_ledger(weft: Shell, database: Path) -> None:
    answer = weft("backup", "copy.db")
    assert answer.out.startswith("copied to copy.db (")
    assert weft.json("log", "--ledger", "copy.db") == weft.json("log")
    assert weft("verify", "--ledger", "copy.db").code == 0
    assert weft("backup", "copy.db").code == 7
    assert weft("backup", "no/such/folder.db").code == 7
    assert weft.json("backup", "other.db")["bytes"] > 0


@pytest.fixture
def rolled_back(weft: Shell, database: Path) -> Path:
    """The ledger after an older copy was put in its place."""
    weft("backup", "older.db")
    weft.record("acknowledged, then lost")
    for beside in database.parent.glob("ledger.db-*"):
        if not beside.name.endswith(("-head", "-lock")):
            beside.unlink()
    shutil.copy("older.db", database)
    return database


def test_a_rolled_back_ledger_is_noticed_and_explained(weft: Shell, rolled_back: Path) -> None:
    for command in (("log",), ("record", "--query", "x"), ("verify",)):
        answer = weft(*command, "--json")
        assert answer.code == 6
        assert answer.error["code"] == "log_cut"
        assert "weft recover" in answer.error["hint"]
    explained = weft("recover")
    assert explained.code == 6
    assert "was acknowledged" in explained.out
    assert "--accept" in explained.err
    assert weft("recover", "--json").json["accepted"] is False


def test_an_accepted_roll_back_goes_on_under_a_new_replica(weft: Shell, rolled_back: Path) -> None:
    with library.open("older.db", read_only=True) as ledger:
        before = ledger.replica
    answer = weft.json("recover", "--accept")
    assert answer["accepted"]
    assert answer["replica"] != before
    assert weft("verify").code == 0
    assert weft("record", "--query", "onwards").code == 0


def test_there_is_nothing_to_recover_in_a_whole_ledger(weft: Shell, database: Path) -> None:
    before = weft.json("stats")["replica"]
    for arguments in (("recover",), ("recover", "--accept")):
        answer = weft(*arguments)
        assert (answer.code, answer.out) == (0, "nothing to recover: the ledger is whole\n")
    assert weft.json("stats")["replica"] == before


def test_a_backup_takes_the_place_of_a_lost_ledger(weft: Shell, database: Path) -> None:
    weft("backup", "copy.db")
    turns = weft.json("log")
    for file in database.parent.glob("ledger.db*"):
        file.unlink()
    answer = weft("recover", "--from", "copy.db")
    assert answer.code == 0
    assert "events lies at" in answer.err
    assert weft.json("log") == turns
    assert weft("record", "--query", "onwards").code == 0


def test_a_backup_that_lacks_something_is_put_in_place_and_the_loss_accepted(weft: Shell, database: Path) -> None:
    weft("backup", "copy.db")
    weft.record("lost")
    answer = weft("recover", "--from", "copy.db")
    assert answer.code == 6
    assert "what lay there is" in answer.err
    assert weft("recover", "--accept").code == 0
    assert weft("verify").code == 0
    weft.record("lost again")
    assert weft.json("recover", "--from", "copy.db", "--accept")["accepted"]
    with library.open(database):
        assert weft("recover", "--from", "copy.db").code == 7


def test_a_ledger_is_copied_to_a_new_file(weft: Shell, database: Path) -> None:
    answer = weft.json("copy", str(database), "other.db")
    assert answer["target"] == "other.db"
    assert answer["replica"] != weft.json("stats")["replica"]
    assert weft.json("log", "--ledger", "other.db") == weft.json("log")
    assert weft("copy", str(database), "other.db").code == 4
    assert weft("copy", "none.db", "new.db").code == 7
    assert weft("copy", ".", "new.db").out.startswith("copied ")


def test_what_verifies_is_saved_from_a_damaged_file(weft: Shell, database: Path) -> None:
    whole = weft("recover", "--salvage", str(database), "saved.db")
    assert whole.code == 0
    assert "nothing is lost" in whole.out
    assert weft("verify", "--ledger", "saved.db").code == 0
    weft("backup", "older.db")
    database.write_bytes(database.read_bytes().replace(b"run_started", b"run_stXrted"))
    answer = weft("recover", "--salvage", str(database), "less.db")
    assert answer.code == 1
    assert "lost events" in answer.out
    found = weft("recover", "--salvage", str(database), "again.db", "--with", "older.db", "--json")
    assert (found.code, found.json["whole"]) == (0, True)
    assert weft("recover", "--salvage", str(database), "less.db").code == 7
    assert weft("recover", "--with", "older.db").code == 2
    assert weft("recover", "--salvage", "a", "b", "--accept").code == 2
