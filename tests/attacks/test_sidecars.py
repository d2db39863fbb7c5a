"""Files beside a source that lead to a reader's own files, or that never end."""

import os
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from tests.attacks.importing import imported
from tests.descriptors import open_below
from tests.exchange.fixtures.factory_droid import sessions as droid
from tests.exchange.fixtures.opencode import sessions as opencode
from weft.exchange.importers import foreign_files
from weft.exchange.importers.copilot_cli import _title_beside
from weft.exchange.importers.factory_droid import FactoryDroid
from weft.exchange.importers.foreign_files import FileRefused, names_beneath, open_beneath, read_beneath, read_beside
from weft.exchange.importers.opencode import Opencode
from weft.exchange.importers.port import Report
from weft.kernel.errors import LimitExceeded

SECRET = "the reader's own words"


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """What lies elsewhere in the reader's home, in the form that each importer would take."""
    folder = tmp_path / "home" / "secrets"
    folder.mkdir(parents=True)
    message, parts = opencode.user("msg_1", opencode.text(SECRET))
    (folder / "msg_1.json").write_bytes(orjson.dumps(message))
    (folder / "prt_1.json").write_bytes(orjson.dumps(parts[0]))
    (folder / "settings.json").write_bytes(orjson.dumps({"model": SECRET}))
    (folder / "todo.json").write_bytes(orjson.dumps([{"content": SECRET}]))
    return folder


def everything(folder: Path) -> bytes:
    """All that a ledger holds, as its files have it."""
    return b"".join(path.read_bytes() for path in folder.glob("ledger.db*") if path.is_file())


def linked_messages(root: Path, secrets: Path) -> None:
    folder = root / "message" / opencode.SESSION
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.symlink_to(secrets)


def linked_parts(root: Path, secrets: Path) -> None:
    folder = root / "part" / "msg_00"
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.symlink_to(secrets)


def linked_message_folders(root: Path, secrets: Path) -> None:
    (secrets.parent / opencode.SESSION).symlink_to(secrets)
    (root / "message").symlink_to(secrets.parent)


def linked_todos(root: Path, secrets: Path) -> None:
    (root / "todo").mkdir()
    (root / "todo" / f"{opencode.SESSION}.json").symlink_to(secrets / "todo.json")


@pytest.mark.parametrize("link", [linked_messages, linked_parts, linked_message_folders, linked_todos])
def test_links_out_of_an_opencode_folder_bring_nothing_in(
    tmp_path: Path, secrets: Path, link: Callable[[Path, Path], None]
) -> None:
    storage = tmp_path / "sources" / "storage"
    session = storage / "session" / "project1" / f"{opencode.SESSION}.json"
    session.parent.mkdir(parents=True)
    session.write_bytes(orjson.dumps(opencode.info()))
    if link is linked_parts:
        message, _ = opencode.user("msg_00")
        (storage / "message" / opencode.SESSION).mkdir(parents=True)
        (storage / "message" / opencode.SESSION / "msg_00.json").write_bytes(orjson.dumps(message))
    link(storage, secrets)
    imported(tmp_path, tmp_path / "sources", importer=Opencode())
    assert SECRET.encode() not in everything(tmp_path)


def test_a_link_out_of_a_droid_session_brings_nothing_in_and_is_reported(tmp_path: Path, secrets: Path) -> None:
    path = droid.write(tmp_path / "sources", droid.dialogue())
    path.with_name(f"{path.stem}.settings.json").symlink_to(secrets / "settings.json")
    summary, turns = imported(tmp_path, path, importer=FactoryDroid())
    assert turns > 0
    assert SECRET.encode() not in everything(tmp_path)
    assert any("is a link or no regular file" in problem.what for problem in summary.problems)


@pytest.mark.parametrize("target", ["pipe", "/dev/zero", "/dev/tty"])
def test_a_pipe_or_a_device_beside_a_session_is_not_waited_for(tmp_path: Path, target: str) -> None:
    path = droid.write(tmp_path / "sources", droid.dialogue())
    beside = path.with_name(f"{path.stem}.settings.json")
    if target == "pipe":
        os.mkfifo(beside)
    else:
        beside.symlink_to(target)
    _, turns = imported(tmp_path, path, importer=FactoryDroid())
    assert turns > 0


def test_a_pipe_that_is_read_by_its_beginning_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "workspace.yaml")
    assert _title_beside(tmp_path / "events.jsonl") is None


def test_a_file_is_opened_beneath_its_folder_or_not_at_all(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "inner").mkdir(parents=True)
    (root / "inner" / "a.json").write_text("plain")
    (tmp_path / "b.json").write_text("elsewhere")
    (root / "inner" / "b.json").symlink_to(tmp_path / "b.json")
    (root / "back").symlink_to(root / "inner")
    (root / "away").symlink_to(tmp_path)
    assert read_beneath(root / "inner" / "a.json", root) == b"plain"
    for path in ("inner/b.json", "back/a.json", "away/b.json", "inner/../../b.json"):
        with pytest.raises(FileRefused):
            read_beneath(root / path, root)
    with pytest.raises(FileNotFoundError), open_beneath(root / "inner" / "c.json", root):
        pass
    assert names_beneath(root / "inner", root) == ["a.json"]
    assert names_beneath(root / "back", root) == names_beneath(root / "away", root) == []


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "c").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "a" / "b" / "pipe")
    for path in ("a/b/none", "a/b/pipe", "a/c/none", "a/none/none"):
        with pytest.raises(OSError):  # noqa: PT011
            read_beneath(tmp_path / path, tmp_path)
    assert names_beneath(tmp_path / "a" / "b", tmp_path) == []
    assert open_below(tmp_path) == []


def test_a_file_that_is_too_large_says_how_large(tmp_path: Path) -> None:
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(1 << 40)  # takes no room on the disk
    with pytest.raises(FileRefused, match="it has 1099511627776 bytes; 67108864 is the most"):
        read_beneath(tmp_path / "a.json", tmp_path)
    (tmp_path / "a.json").unlink()  # whoever looks through the folder afterwards would read all of it


def test_the_files_of_one_session_are_held_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_files, "SESSION_BYTES", 1000)
    (tmp_path / "a.json").write_bytes(b"x" * 400)
    report = Report("a session")
    assert read_beside(tmp_path / "a.json", tmp_path, report) == b"x" * 400
    assert read_beside(tmp_path / "gone.json", tmp_path, report) is None
    assert [problem.what for problem in report.problems] == ["gone.json: No such file or directory"]
    read_beside(tmp_path / "a.json", tmp_path, report)
    with pytest.raises(LimitExceeded, match="the bytes of the files of one session: 1200, where 1000"):
        read_beside(tmp_path / "a.json", tmp_path, report)
