"""What Weft writes is for its owner alone, whatever the umask: the ledger, what lies beside it, copies and exports."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import weft
from tests.postgres import shared_server
from weft.exchange.bundles import create_bundle
from weft.exchange.exporters.export import export
from weft.store.private_files import aside_of, make_folder, new_file, open_to_append
from weft.store.sqlite.connection import write_copy
from weft.store.sqlite.migrations import Schema, shipped_schema
from weft.store.sqlite.store import SqliteStore


@pytest.fixture(params=[0, 0o077, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def modes_below(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): oct(mode_of(path)) for path in sorted(folder.rglob("*"))}


def open_to_others(folder: Path) -> dict[str, str]:
    return {
        name: mode
        for name, mode in modes_below(folder).items()
        if mode != oct(0o700 if (folder / name).is_dir() else 0o600)
    }


def test_a_ledger_its_log_its_lock_its_head_and_its_copies_are_private(tmp_path: Path, umask: int) -> None:
    folder = tmp_path / "new" / "folder"
    make_folder(folder)
    with weft.open(folder / "ledger.db") as ledger:
        ledger.record_turn(session="main", query="hello", response="hi")
        ledger.upkeep.backup(folder / "backup.db")
        ledger.upkeep.export_facts(folder / "facts.jsonl")
        names = {file.name for file in folder.iterdir()}
        assert names >= {"ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db-lock", "ledger.db-head"}
        assert open_to_others(tmp_path) == {}
    assert open_to_others(tmp_path) == {}


def test_a_copy_is_private_while_it_is_written(tmp_path: Path, umask: int) -> None:
    modes = []
    target = tmp_path / "copy.db"
    with weft.open(tmp_path / "ledger.db") as ledger:
        ledger.record_turn(session="main", query="x" * 100_000)
        store = ledger._store
        assert isinstance(store, SqliteStore)
        write_copy(store._writer().connection, target, lambda done, total: modes.append(mode_of(aside_of(target))))
    assert set(modes) == {0o600}
    with new_file(tmp_path / "file") as file:
        file.write(b"text")
        assert mode_of(aside_of(tmp_path / "file")) == 0o600
    assert open_to_others(tmp_path) == {}


def test_the_backup_before_an_upgrade_is_private(tmp_path: Path, umask: int) -> None:
    schema = shipped_schema()
    SqliteStore(tmp_path / "ledger.db", schema=Schema(schema.migrations[:-1], "")).close()
    SqliteStore(tmp_path / "ledger.db").close()
    assert list(tmp_path.glob("*.backup"))
    assert open_to_others(tmp_path) == {}


def test_a_backup_of_a_server_s_ledger_is_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with weft.open(shared_server().address()) as ledger:
            ledger.record_turn(session="main", query="hello")
            ledger.upkeep.backup(tmp_path / "backup.db")
    finally:
        os.umask(before)
    assert open_to_others(tmp_path) == {}


@pytest.mark.slow("starts the installed program three times")
def test_folders_and_ledgers_that_commands_make_are_private(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "work"
    home.mkdir(0o700)
    folder.mkdir(0o700)
    program, env = Path(sys.executable).with_name("weft"), {"HOME": str(home)}
    for arguments in (("init",), ("init", "--user"), ("key", "create", "mine")):
        subprocess.run([program, *arguments], cwd=folder, env=env, check=True, capture_output=True, umask=0)
    public = (".gitignore", ".pub")
    assert {name for name in open_to_others(tmp_path) if not name.endswith(public)} == set()
    assert {"work/.weft/ledger.db", "home/.local/share/weft/ledger.db"} <= modes_below(tmp_path).keys()


def test_bundles_exports_restored_and_salvaged_ledgers_are_private(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "ledger.db"
    with weft.open(path) as ledger:
        ledger.record_turn(session="main", query="hello", response="hi")
        create_bundle(ledger, ["main"], tmp_path / "thread.weft")
        export(ledger, "main", "html", tmp_path / "page.html")
        ledger.upkeep.backup(tmp_path / "backup.db")
    weft.restore(tmp_path / "backup.db", path)
    weft.salvage(path, new=tmp_path / "saved.db")
    assert {"thread.weft", "page.html", "saved.db"} <= modes_below(tmp_path).keys()
    assert open_to_others(tmp_path) == {}


def test_a_log_is_private_and_never_written_through_a_link(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        open_to_append(tmp_path / "log").close()
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "log") == 0o600
    (tmp_path / "link").symlink_to(tmp_path / "log")
    with pytest.raises(OSError, match="symbolic"):
        open_to_append(tmp_path / "link")


def test_a_link_in_the_place_of_an_unfinished_file_is_not_followed(tmp_path: Path) -> None:
    victim, target = tmp_path / "victim", tmp_path / "facts.jsonl"
    victim.write_bytes(b"theirs")
    aside_of(target).symlink_to(victim)
    with new_file(target) as file:
        file.write(b"ours")
    assert victim.read_bytes() == b"theirs"
    assert target.read_bytes() == b"ours"
    assert not target.is_symlink()


def test_a_ledger_that_others_may_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    weft.open(path).close()
    path.chmod(0o644)
    (found,) = [one for one in weft.examine(path) if one.grade == "warning"]
    assert (found.check, found.mend) == ("permissions", f"chmod go= {path}*")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_ledger_that_may_only_be_read_is_still_read(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "ledger.db"
    make_folder(path.parent)
    with weft.open(path) as ledger:
        ledger.record_turn(session="main", query="hello")
    path.chmod(0o400)
    path.parent.chmod(0o500)
    try:
        with weft.open(path, read_only=True) as ledger:
            assert [message.text for message in ledger.thread("main").messages] == ["hello"]
    finally:
        path.parent.chmod(0o700)
