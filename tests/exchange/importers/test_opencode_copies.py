"""Forks of opencode 1: a session that begins with copies of another one's messages, under ids of their own."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import apsw
import pytest

import weft
from tests.exchange.fixtures.opencode.sessions import (
    AT,
    SESSION,
    Message,
    Read,
    add_session,
    assert_counted,
    assert_sound,
    assistant,
    dialogue,
    info,
    read,
    said,
    text,
    tool,
    user,
    write_database,
)
from weft.exchange.importers.opencode import Opencode
from weft.exchange.importing.run import ImportRun
from weft.kernel.clock import SystemClock


def forked(messages: list[Message], mark: str) -> list[Message]:
    """Copies as opencode makes them: everything stays but the ids, and what names them."""
    copies = deepcopy(messages)
    ids = {message["id"]: f"{message['id']}_{mark}" for message, _ in copies}
    for message, parts in copies:
        message["id"] = ids[message["id"]]
        if "parentID" in message:
            message["parentID"] = ids[message["parentID"]]
        for part in parts:
            part["id"] = f"{part['id']}_{mark}"
            if "tail_start_id" in part:
                part["tail_start_id"] = ids[part["tail_start_id"]]
    return copies


def more(mark: str, at: int) -> list[Message]:
    asked, when = f"msg_{mark}_1", {"created": AT + at + 1, "completed": AT + at + 2}
    return [
        user(asked, text(f"And {mark}?"), time={"created": AT + at}),
        assistant(f"msg_{mark}_2", asked, tool(id=f"call_{mark}"), text("Yes."), time=when),
    ]


def compacted() -> list[Message]:
    """With a summary that keeps what begins at the second prompt."""
    return [
        *dialogue(),
        user("msg_05", {"type": "compaction", "auto": True, "tail_start_id": "msg_03"}, time={"created": AT + 7}),
        assistant("msg_06", "msg_05", text("So far."), summary=True, time={"created": AT + 8, "completed": AT + 9}),
    ]


def write_forks(folder: Path, *sessions: list[Message]) -> Path:
    """One database; the sessions were made one after another."""
    path = write_database(folder, sessions[0])
    connection = apsw.Connection(str(path))
    for number, messages in enumerate(sessions[1:], 1):
        made = {"created": AT + 1000 * number, "updated": AT + 1000 * number}
        add_session(connection, messages, info(id=f"ses_{number}", title=f"A session (fork #{number})", time=made))
    connection.close()
    return path


def read_all(path: Path) -> list[Read]:
    found, report = read(path)
    assert_counted(report)
    for each in found:
        assert_sound(each)
    return found


def test_copied_messages_are_the_same_turns(tmp_path: Path) -> None:
    copied = compacted()
    first, fork = read_all(
        write_forks(tmp_path, [*copied, *more("here", 20)], [*forked(copied, "x"), *more("there", 30)])
    )
    assert len(first.turns) == len(fork.turns) == 4
    for one, other in zip(first.turns[:3], fork.turns[:3], strict=True):
        assert (one.key, one.records, one.names, one.items) == (other.key, other.records, other.names, other.items)
        assert (one.parent, one.compaction) == (other.parent, other.compaction)
    assert first.turns[3].key != fork.turns[3].key
    assert (fork.session.metadata or {})["fork"] == {"session": SESSION, "message": "msg_06"}
    assert "fork" not in (first.session.metadata or {})
    assert b"msg_01_x" in (fork.raw or b""), "the verbatim copy tells of them as they are"


def test_a_fork_of_a_fork_is_told_by_the_first_ids(tmp_path: Path) -> None:
    once = [*forked(dialogue(), "x"), *more("there", 30)]
    twice = [*forked(once, "y"), *more("beyond", 40)]
    first, fork, further = read_all(write_forks(tmp_path, dialogue(), once, twice))
    assert [turn.key for turn in further.turns[:2]] == [turn.key for turn in first.turns]
    assert further.turns[2].records == fork.turns[2].records
    assert [message.native for message in said(further.turns[2])] == ["msg_there_1", "msg_there_2"]


def test_a_place_that_was_taken_back_is_named_by_its_first_id(tmp_path: Path) -> None:
    path = write_forks(tmp_path, dialogue(), forked(dialogue(), "x"))
    connection = apsw.Connection(str(path))
    connection.execute("""UPDATE session SET revert = '{"messageID": "msg_03_x"}' WHERE id = 'ses_1'""")
    connection.close()
    _, fork = read_all(path)
    assert [(turn.metadata or {}).get("reverted") for turn in fork.turns] == [None, True]


def test_the_same_moment_alone_makes_no_copy(tmp_path: Path) -> None:
    other = [user("msg_11", text("Something else?")), *more("else", 30)]
    first, beside = read_all(write_forks(tmp_path, dialogue(), other))
    assert {turn.key for turn in first.turns}.isdisjoint(turn.key for turn in beside.turns)
    assert "fork" not in (beside.session.metadata or {})


@pytest.mark.parametrize("broken", ["nonsense", "[1]", ""])
def test_a_copy_that_cannot_be_read_harms_no_others(tmp_path: Path, broken: str) -> None:
    path = write_forks(tmp_path, dialogue(), [*forked(dialogue(), "x"), *more("there", 30)])
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE message SET data = ? WHERE id = 'msg_02_x'", (broken,))
    connection.close()
    found, report = read(path)
    assert_counted(report)
    assert report.damaged == 1
    assert found[1].turns[1].records == found[0].turns[1].records


def test_a_ledger_counts_a_copied_turn_once(tmp_path: Path) -> None:
    path = write_forks(tmp_path, dialogue(), [*forked(dialogue(), "x"), *more("there", 30)])
    with weft.open(tmp_path / "ledger.db") as ledger:
        ImportRun(ledger, [Opencode()], SystemClock()).run([path])
        assert len(ledger.log()) == 3
        whole, fork = (next(s for s in ledger.sessions() if s.title == title) for title in TITLES)
        assert list(ledger.thread(fork.label).ancestry)[:2] == list(ledger.thread(whole.label).ancestry)
        assert ledger.usage.report(by="origin").total.input == 30
        assert list(ledger.verify()) == []


TITLES = ("A session", "A session (fork #1)")
