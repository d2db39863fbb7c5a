"""Databases of other tools whose schema or pages would run for ever, or give rows without end."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import apsw
import pytest

from tests.attacks.importing import imported
from tests.exchange.fixtures.cursor import sessions as cursor
from tests.sizes import sized
from weft.exchange.importers import foreign_files
from weft.exchange.importers.cursor import Cursor
from weft.exchange.importers.cursor.database import COMPOSERS, sessions_in, workspace_folders
from weft.exchange.importers.foreign_files import UNREADABLE, Database, open_database, peek
from weft.exchange.importers.foreign_values import SOURCE_LIMITS
from weft.exchange.importers.langgraph import LangGraph
from weft.exchange.importers.llm import Llm
from weft.exchange.importers.port import Importer, Report
from weft.kernel.errors import LimitExceeded
from weft.kernel.foreign_input import ReadBudget

ENDLESS = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT"


@contextmanager
def database(path: Path) -> Iterator[apsw.Connection]:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = cursor.quick(path)
    yield connection
    connection.close()


@contextmanager
def read(path: Path, budget: ReadBudget | None = None) -> Iterator[Database]:
    report = Report(str(path), budget=budget or ReadBudget(SOURCE_LIMITS))
    with open_database(path, report) as found:
        assert found is not None
        yield found


VIEWS: dict[str, tuple[Importer, str, str]] = {
    "cursor": (Cursor(), f"CREATE VIEW ItemTable AS {ENDLESS} x || '' AS key, x AS value FROM t", "state.vscdb"),
    "cursor's sessions": (
        Cursor(),
        f"CREATE VIEW cursorDiskKV AS {ENDLESS} 'bubbleId:' || x AS key, x AS value FROM t",
        "state.vscdb",
    ),
    "langgraph": (
        LangGraph(),
        f"CREATE VIEW checkpoints AS {ENDLESS} x AS thread_id, x AS checkpoint_id, x AS checkpoint FROM t",
        "checkpoints.db",
    ),
    "llm": (Llm(), f"CREATE VIEW responses AS {ENDLESS} x AS id, x AS conversation_id FROM t", "logs.db"),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_without_end_in_the_place_of_a_table_ends_the_reading(tmp_path: Path, name: str) -> None:
    importer, sql, file = VIEWS[name]
    with database(tmp_path / "sources" / file) as connection:
        connection.execute("CREATE TABLE other (x)")
        connection.execute(sql)
    _, turns = imported(tmp_path, tmp_path / "sources", importer=importer)
    assert turns == 0


def test_no_view_and_no_trigger_of_a_database_runs(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with database(path) as connection:
        connection.execute("CREATE TABLE plain (key, value); INSERT INTO plain VALUES ('a', 1)")
        connection.execute(f"CREATE VIEW endless AS {ENDLESS} x AS key, x AS value FROM t")
        connection.execute("CREATE VIEW simple AS SELECT * FROM plain")
        connection.execute("CREATE TABLE made (key, value AS (hex(zeroblob(100000000))))")
        connection.execute("CREATE VIRTUAL TABLE words USING fts5(key, value)")
    with read(path) as found:
        assert found.has("plain", "key", "value")
        assert not found.has("endless", "key")
        assert not found.has("made", "value")
        assert not found.has("words", "key")
        with pytest.raises(apsw.SQLError, match="access to view"):
            found.rows("SELECT * FROM simple")
        with pytest.raises(apsw.Error, match=r"readonly|query_only|attempt to write|not authorized"):
            found.rows("INSERT INTO plain VALUES ('b', 2)")
        with pytest.raises(apsw.Error, match=r"attached"):
            found.rows("ATTACH 'elsewhere.db' AS elsewhere")


@pytest.fixture
def peek_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look takes as many instructions as it may, which are seconds of work."""
    monkeypatch.setattr(foreign_files, "PEEK_STEPS", sized(test=1_000_000, prove=foreign_files.PEEK_STEPS))


@pytest.mark.usefixtures("peek_steps")
def test_a_statement_ends_with_the_time_of_the_budget(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with database(path) as connection:
        connection.execute("CREATE TABLE plain (x)")
        connection.executemany("INSERT INTO plain VALUES (?)", [(number,) for number in range(1000)])
    seconds = count(0, 50)
    endless = "SELECT count(*) FROM plain a, plain b, plain c, plain d, plain e"
    with (
        read(path, ReadBudget(SOURCE_LIMITS, lambda: next(seconds))) as found,
        pytest.raises(LimitExceeded, match="the seconds that reading it takes"),
    ):
        found.rows(endless)
    assert peek(path, endless) == []


def folded(path: Path) -> None:
    """A table of some pages whose inner pages all lead to one and the same page below: rows without end."""
    size = 512
    with database(path) as connection:
        connection.execute(f"PRAGMA page_size = {size}; CREATE TABLE cursorDiskKV (key TEXT, value)")
        connection.execute("INSERT INTO cursorDiskKV WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t"
                           " LIMIT 20000) SELECT 'bubbleId:' || x, NULL FROM t")  # fmt: skip
    pages = bytearray(path.read_bytes())
    inner = [at for at in range(size, len(pages), size) if pages[at] == 5]
    root, levels = inner[0], [at for at in inner[1:] if int.from_bytes(pages[at + 3 : at + 5]) > 20][:5]
    assert root == size
    for at, below in zip([root, *levels], levels, strict=False):
        child = (below // size + 1).to_bytes(4)
        pages[at + 8 : at + 12] = child
        for cell in range(int.from_bytes(pages[at + 3 : at + 5])):
            place = at + int.from_bytes(pages[at + 12 + 2 * cell : at + 14 + 2 * cell])
            pages[place : place + 4] = child
    path.write_bytes(pages)


@pytest.mark.slow("reads rows until they are more than are believed, twice")
@pytest.mark.usefixtures("peek_steps")
def test_pages_that_are_used_again_and_again_give_no_more_rows_than_the_file_can_hold(tmp_path: Path) -> None:
    path = tmp_path / "folded.vscdb"
    folded(path)
    with read(path) as found, pytest.raises(LimitExceeded, match="bytes unpack to"):
        for _ in found.walk("SELECT key, value FROM cursorDiskKV"):
            pass
    assert peek(path, "SELECT key, value FROM cursorDiskKV") == []


def test_the_import_of_such_a_database_is_reported_and_the_others_are_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sorts the rows, so it would give none before it had them all."""
    monkeypatch.setattr(foreign_files, "STATEMENT_STEPS", 1_000_000)
    monkeypatch.setattr(foreign_files, "STEPS_A_BYTE", 1)
    folder = tmp_path / "sources"
    cursor.write_state(folder / "good", cursor.session_rows(*cursor.dialogue()))
    folded(folder / "bad" / "state.vscdb")
    summary, turns = imported(tmp_path, folder, importer=Cursor())
    assert turns > 0
    assert [Path(problem.source).parent.name for problem in summary.problems] == ["bad"]
    assert "the instructions of one statement" in summary.problems[0].what
    assert "is the most that is read; look at where it comes from" in summary.problems[0].what


def test_a_value_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with database(path) as connection:
        connection.execute("CREATE TABLE plain (x)")
    with read(path) as found, pytest.raises(UNREADABLE, match="too big"):
        found.rows(f"SELECT zeroblob({SOURCE_LIMITS.held_bytes + 1})")


@pytest.mark.parametrize("name", ["state.vscdb-wal", "state.vscdb"])
def test_a_log_or_a_database_that_is_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "workspaceStorage" / "one"
    cursor.write_state(folder, {}, {COMPOSERS: {"allComposers": []}})
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    assert sessions_in(folder / "state.vscdb") == frozenset()
    imported(tmp_path, tmp_path / "workspaceStorage", importer=Cursor())


def test_workspaces_that_are_links_or_pipes_harm_no_session(tmp_path: Path) -> None:
    user = tmp_path / "Cursor" / "User"
    cursor.write_state(user / "globalStorage", cursor.session_rows(*cursor.dialogue()))
    for name in ("linked", "pipe"):
        (user / "workspaceStorage" / name).mkdir(parents=True)
        (user / "workspaceStorage" / name / "workspace.json").write_text('{"folder": "file:///shop"}')
    os.mkfifo(user / "workspaceStorage" / "pipe" / "state.vscdb")
    secret = cursor.write_state(tmp_path / "elsewhere", {}, {COMPOSERS: {"allComposers": [{"composerId": "x"}]}})
    (user / "workspaceStorage" / "linked" / "state.vscdb").symlink_to(secret)
    assert workspace_folders(user / "globalStorage" / "state.vscdb") == {}
    summary, turns = imported(tmp_path, user / "globalStorage", importer=Cursor())
    assert turns > 0
    assert summary.problems == []
