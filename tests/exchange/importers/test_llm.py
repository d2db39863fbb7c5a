"""Conversations of llm, from databases that the library itself made."""

import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from llm import parts as llm_parts

import weft
from tests.exchange import independent_usage
from tests.exchange.contracts import OwnImporterContract
from tests.exchange.fixtures.llm.databases import (
    PIXEL,
    TOOLS,
    LogStore,
    ask,
    conversation,
    database,
    put_classic,
    put_response,
    write_classic,
    write_tree,
)
from tests.exchange.reading import Read, called, read, read_one, said, spoken, words
from weft.exchange.importers.llm import Llm
from weft.exchange.importers.port import NativeTurn, Report, Tokens
from weft.exchange.importers.testing import ImporterContract, as_source
from weft.kernel.enums import FileKind, MessageRole, ToolCallStatus
from weft.ledger.model import FileNote

LLM = Llm()
IMAGE = "data:image/png;base64,iVBORw0KGgo="


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tree(tmp_path_factory.mktemp("llm") / "logs.db")


@pytest.fixture(scope="module")
def classic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classic(tmp_path_factory.mktemp("classic") / "logs.db")


def sessions(path: Path) -> dict[str, Read]:
    found, report = read(LLM, path)
    assert report.damaged == 0
    assert report.problems == []
    return {each.session.id: each for each in found}


class TestContract(OwnImporterContract):
    importer = LLM
    open = staticmethod(weft.open)
    rewrites_document = True
    test_two_processes_import_the_same_as_one = ImporterContract.test_two_processes_import_the_same_as_one

    @pytest.fixture(autouse=True)
    def made(self, tree: Path, classic: Path) -> None:
        self.made_before = {"tree.db": tree, "classic.db": classic}

    def samples(self, folder: Path) -> list[Path]:
        return [Path(shutil.copy(path, folder / name)) for name, path in self.made_before.items()]


def test_a_turn_is_a_prompt_with_every_call_it_took(tree: Path) -> None:
    turns = read_one(LLM, tree).turns
    assert [spoken(turn) for turn in turns] == [
        [("system", ["Be brief."]), ("user", ["one"]), ("assistant", ["You said: one"])],
        [("user", ["two"]), ("assistant", []), ("assistant", ["You said: results"])],
        [("user", ["A long story.\nthree", IMAGE]), ("assistant", ["You said: A long story.\nthree"])],
    ]
    assert [turn.parent for turn in turns] == [None, 0, 1]
    assert [turn.closed for turn in turns] == [True, True, True]


def test_tools_have_their_results_and_errors(tree: Path) -> None:
    first, second = called(read_one(LLM, tree).turns[1])
    assert (first.id, first.name, first.arguments, first.result) == ("c0", "listing", {"path": "."}, "a.py")
    assert (second.status, second.error) == (ToolCallStatus.ERROR, "ValueError: no such folder")
    assert read_one(LLM, tree).turns[1].tools == ("failing", "listing")


def test_tokens_and_models_are_those_of_each_call(tree: Path) -> None:
    answers = [m for turn in read_one(LLM, tree).turns for m in said(turn) if m.role is MessageRole.ASSISTANT]
    assert {message.tokens for message in answers} == {Tokens(input=6, output=5, cached=4, reasoning=2)}
    assert {message.model for message in answers} == {"canned"}
    assert all(message.at is not None and message.native is not None for message in answers)


def test_what_is_read_is_what_the_library_itself_reads(tree: Path, tmp_path: Path) -> None:
    with database(Path(shutil.copy(tree, tmp_path / "logs.db"))) as opened:
        messages = LogStore(opened).thread_messages("talk")
    theirs = [(m.role, [p.text for p in m.parts if isinstance(p, llm_parts.TextPart)]) for m in messages]
    ours = [
        (role, [each for each in found if each != IMAGE])
        for turn in read_one(LLM, tree).turns
        for role, found in spoken(turn)
    ]
    assert ours == [each for each in theirs if each[0] != "tool"]


def test_a_fork_shares_the_turns_before_it(tmp_path: Path) -> None:
    path = tmp_path / "logs.db"
    with database(path) as opened:
        first = ask(opened, conversation(opened), "one")
        ask(opened, conversation(opened), "two")
        store = LogStore(opened)
        tip = opened.execute("select tip_message_hash from turns where id = ?", [first[-1].id]).fetchone()[0]
        fork = store.fork(tip, name="Fork", forked_from="talk")
        ask(opened, conversation(opened, fork), "other")
        asked = opened.execute("select parent_message_hash from turns where id = ?", [first[-1].id]).fetchone()[0]
        again = store.fork(asked, name="Again", forked_from="talk")
        store.append(again, [llm_parts.assistant("Another answer.")])
    found = sessions(path)
    talk, other, retried = found["talk"], found[fork], found[again]
    assert other.turns[0].records == talk.turns[0].records
    assert other.turns[0].key == talk.turns[0].key
    assert other.turns[1].key != talk.turns[1].key
    assert spoken(retried.turns[0])[-1] == ("assistant", ["Another answer."])
    assert retried.turns[0].key != talk.turns[0].key
    assert other.session.metadata == {"forked_from": "talk"}
    with weft.open(tmp_path / "ledger.db") as ledger:
        summary = TestContract().import_files(ledger, path)
        assert summary.of("llm").counts.turns == 4
        assert ledger.upkeep.stats()["total_tokens"] == 3 * 15
        assert list(ledger.verify()) == []


def test_a_fork_in_the_middle_of_an_answer_is_another_answer_to_its_prompt(tmp_path: Path) -> None:
    path = tmp_path / "logs.db"
    with database(path) as opened:
        first, second = ask(opened, conversation(opened), "two", tools=TOOLS[:1])
        store = LogStore(opened)
        tip = opened.execute("select parent_message_hash from turns where id = ?", [second.id]).fetchone()[0]
        fork = store.fork(tip, forked_from="talk")
        talk = conversation(opened, fork)
        ask(opened, talk, "go on")
    found = sessions(path)
    assert [turn.key for turn in found["talk"].turns] == [first.id]
    cut, more = found[fork].turns
    assert cut.key == f"{first.id}#{tip}"
    assert spoken(more)[0] == ("user", ["go on"])
    assert cut.records == found["talk"].turns[0].records[:-1]


def test_the_same_words_in_two_conversations_are_two_turns(tmp_path: Path) -> None:
    """Messages are named by what they say: equal beginnings are one row."""
    path = tmp_path / "logs.db"
    with database(path) as opened:
        ask(opened, conversation(opened, "a"), "hello")
        ask(opened, conversation(opened, "b"), "hello")
        assert opened["messages"].count == 2
    found = sessions(path)
    assert found["a"].turns[0].key != found["b"].turns[0].key
    assert found["a"].turns[0].records != found["b"].turns[0].records


def test_classic_results_are_told_with_the_next_response(classic: Path) -> None:
    old = sessions(classic)["old"]
    first, second = old.turns
    assert spoken(first) == [
        ("system", ["Be brief."]),
        ("user", ["What is here?"]),
        ("assistant", [["Hm."]]),
        ("assistant", ["a.py is here."]),
    ]
    (call,) = called(first)
    assert (call.id, call.arguments, call.result) == ("c1", {"path": "."}, "a.py")
    assert words(said(second)[0]) == ["A story.\nAnd this?", IMAGE]
    assert said(second)[0].files == (FileNote(kind=FileKind.ATTACHED, path="/shop/story.txt"),)
    assert (first.key, second.key, old.session.title) == ("r1", "r3", "Old talk")


def test_classic_times_are_utc_and_models_resolved(classic: Path) -> None:
    answer = said(sessions(classic)["old"].turns[0])[2]
    assert (answer.at, answer.model) == (1704164645000, "older-2024")
    assert answer.tokens == Tokens(input=10, output=5, cached=40)  # Anthropic's count: the cache lies beside the input


def test_a_response_without_a_conversation_is_one_of_its_own(classic: Path) -> None:
    alone = sessions(classic)["r9"]
    assert spoken(alone.turns[0]) == [("user", ["Alone."]), ("assistant", ["Yes."])]


def test_the_message_tree_is_preferred_where_both_generations_tell_a_response(tmp_path: Path) -> None:
    path = tmp_path / "logs.db"
    with database(path) as opened:
        put_classic(opened)
        (response,) = ask(opened, conversation(opened, "new"), "hello")
        put_response(opened, response.id, "hello", "You said: hello", conversation_id="new")
    found, report = read(LLM, path)
    assert report.mapped["response"] == 4
    (new,) = [each for each in found if each.session.id == "new"]
    assert len(new.turns) == 1


def test_a_conversation_that_goes_on_under_a_newer_version_is_one(tmp_path: Path) -> None:
    """It begins with a copy of what the older tables hold."""
    path = tmp_path / "logs.db"
    with database(path) as opened:
        put_response(opened, "r1", "one", "You said: one")
        put_response(opened, "r2", "two", "You said: two")
        before = read_bytes(path, tmp_path)
        talk = conversation(opened, "old")
        talk.loaded_messages = [
            *(llm_parts.user("one"), llm_parts.assistant("You said: one")),
            *(llm_parts.user("two"), llm_parts.assistant("You said: two")),
        ]
        (response,) = ask(opened, talk, "three")
    after = sessions(path)["old"]
    assert [turn.key for turn in after.turns] == ["r1", "r2", response.id]
    assert [turn.parent for turn in after.turns] == [None, 0, 1]
    assert [turn.records for turn in before] == [turn.records for turn in after.turns[:2]]


def read_bytes(path: Path, folder: Path) -> list[NativeTurn]:
    """As it is now, while its writer is at work."""
    copy = folder / "before.db"
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    return sessions(copy)["old"].turns


def test_tool_calls_that_wait_for_their_results_leave_a_turn_open(tmp_path: Path) -> None:
    path = tmp_path / "logs.db"
    with database(path) as opened:
        store = LogStore(opened)
        thread = store.create_thread(name="Waiting")
        asked = llm_parts.ToolCallPart(name="listing", arguments={}, tool_call_id="c")
        store.append(thread, [llm_parts.user("Go."), llm_parts.Message(role="assistant", parts=[asked])])
    (turn,) = sessions(path)[thread].turns
    assert not turn.closed
    assert called(turn)[0].status is None


def test_messages_without_a_thread_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "logs.db"
    with database(path) as opened:
        LogStore(opened).ensure_chain([llm_parts.user("Lost."), llm_parts.assistant("Indeed.")])
    found, report = read(LLM, path)
    assert report.kept == Counter({"message.without thread": 2, "part.without thread": 2})
    assert b"Lost." in (found[0].raw or b"")


def test_parts_of_an_unknown_kind_are_kept_and_counted(tmp_path: Path, tree: Path) -> None:
    path = Path(shutil.copy(tree, tmp_path / "logs.db"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE parts SET type = 'hologram' WHERE type = 'attachment'")
        connection.commit()
    _, report = read(LLM, path)
    assert report.unknown == {"part.hologram": 1}


def test_the_first_table_of_all_is_read(tmp_path: Path) -> None:
    path = tmp_path / "logs.db"
    with database(path) as opened:
        columns = {"model": "ada", "system": None, "reply_to_id": None, "datetime_utc": "2023-05-06 07:08:09"}
        opened["logs"].insert({"id": 1, "prompt": "one", "response": "1", "chat_id": None, **columns})
        opened["logs"].insert({"id": 2, "prompt": "two", "response": "2", "chat_id": 1, **columns})
    found = sessions(path)
    assert [turn.key for turn in found["log-1"].turns] == ["log-1", "log-2"]


def test_rows_come_back_from_the_verbatim_copy(tree: Path) -> None:
    raw = read_one(LLM, tree).raw or b""
    for words_ in (b"A long story.", PIXEL.hex().encode(), b"no such folder", b'"input_tokens":10'):
        assert words_ in raw


def test_usage_equals_an_independent_count(tmp_path: Path, tree: Path, classic: Path) -> None:
    expected = independent_usage.llm([tree, classic])
    with weft.open(tmp_path / "ledger.db") as ledger:
        TestContract().import_files(ledger, tree, classic)
        rows = ledger.usage.report(by="model", origin="llm").rows
    kinds = independent_usage.KINDS
    assert {row.key: {kind: getattr(row, kind) for kind in kinds} for row in rows} == expected


@pytest.mark.parametrize("sql", [
    "DROP TABLE parts", "DROP TABLE turns", "DROP TABLE threads", "DROP TABLE fragments", "DROP TABLE attachments",
    "UPDATE parts SET payload = 'broken'", "UPDATE parts SET payload = '[1]'", "UPDATE parts SET text = x'ff00'",
    "UPDATE turns SET token_details = '7', options_json = '[]', datetime_utc = 'never'", "DELETE FROM messages",
    "UPDATE messages SET parent_hash = hash", "UPDATE messages SET role = NULL", "UPDATE turns SET id = rowid",
    "UPDATE threads SET tip_message_hash = 'nowhere'", "UPDATE turns SET tip_message_hash = NULL",
    "UPDATE messages SET provider_metadata = '{\"a\": 1}'", "ALTER TABLE turns DROP COLUMN token_details",
])  # fmt: skip
def test_odd_tables_are_never_fatal(tmp_path: Path, tree: Path, sql: str) -> None:
    path = Path(shutil.copy(tree, tmp_path / "logs.db"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute(sql)
        connection.commit()
    found, _ = read(LLM, path)
    assert isinstance(found, list)


def test_a_database_in_use_is_read_with_its_log(tmp_path: Path) -> None:
    path = tmp_path / "io.datasette.llm" / "logs.db"
    with database(path) as opened:
        opened.enable_wal()
        ask(opened, conversation(opened), "one")
        assert LLM.recognises(as_source(path))
        assert [spoken(turn) for turn in read_one(LLM, path).turns]


def test_a_schema_is_not_trusted(tmp_path: Path, tree: Path) -> None:
    """A view in place of a table is not read."""
    path = Path(shutil.copy(tree, tmp_path / "logs.db"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE threads RENAME TO other")
        connection.execute("CREATE VIEW threads AS SELECT * FROM other")
        connection.commit()
    report = Report("x")
    assert list(LLM.read(as_source(path), report)) == []


def test_other_databases_are_not_recognised(tmp_path: Path) -> None:
    path = tmp_path / "logs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE responses (id)")
        connection.commit()
    assert not LLM.recognises(as_source(path))
    assert not LLM.recognises(as_source(_broken(tmp_path)))


def _broken(folder: Path) -> Any:
    path = folder / "broken.db"
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    return path
