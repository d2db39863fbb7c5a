"""`weft resource`: declaring, keeping, bringing back and handing over what conversations work with."""

from __future__ import annotations

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import weft
from tests.container_engine import EngineMissing, engine_address, image_of
from tests.ledger.histories import grow
from tests.postgres import shared_server
from tests.runtime.resources.docker.running import Runner
from tests.surfaces.shell import Shell, masked, on_terminal
from tests.surfaces.test_cli_docs import run_example
from weft.kernel.errors import InvalidInput
from weft.ledger.api import ResourceLog
from weft.runtime.resources.container_engine import ContainerEngine
from weft.runtime.tool.tool_contract import ToolFailure
from weft.runtime.tool.workspace import WorkspaceFolder
from weft.surfaces.cli.user_files import (
    beside_ledger,
    configuration_folder,
    state_folder,
    this_machine,
    user_ledger,
)
from weft.surfaces.cli.work.sandbox_access import (
    SnapshotSettings,
    files_folder,
    load_resource_settings,
    protected_places,
)


@pytest.fixture
def work(shell: Shell, folder: Path) -> Path:
    """A ledger with a session, and a folder to work in."""
    assert shell("init").code == 0
    assert shell("record", "--session", "main", "--query", "hello").code == 0
    made = folder / "work"
    made.mkdir()
    (made / "a.txt").write_text("one\n")
    return made


def test_a_folder_is_kept_changed_and_brought_back(shell: Shell, folder: Path, work: Path) -> None:
    added = shell.json("resource", "add", "work", "--session", "main")
    assert (added["kind"], added["name"], added["place"]) == ("directory", "work", str(work))
    taken = shell.json("resource", "snapshot", "work")
    assert (taken["state"], taken["method"], taken["size_bytes"]) == ("ok", "git_tree", 4)
    (work / "a.txt").write_text("two\n")
    (work / "b.txt").write_text("more\n")
    refused = shell("resource", "restore", taken["id"])
    assert (refused.code, "2 paths would change: say --yes" in refused.err) == (4, True)
    assert "  write a.txt\n  remove b.txt\n" in refused.err
    assert (work / "a.txt").read_text() == "two\n"
    done = shell("resource", "restore", taken["id"][-6:], "--yes")
    assert (done.code, done.out) == (0, f"restored work at {work}\n")
    assert [path.name for path in work.iterdir()] == ["a.txt"]
    assert (work / "a.txt").read_text() == "one\n"
    (undo,) = [line for line in done.err.splitlines() if line.startswith("undo: weft ")]
    assert shell(*undo.removeprefix("undo: weft ").split(), "--yes").code == 0
    assert (work / "b.txt").read_text() == "more\n"
    shown = shell.json("resource", "show", "work")
    assert [one["state"] for one in shown["snapshots"]] == ["ok"] * 3
    with weft.open(folder / ".weft" / "ledger.db") as ledger:
        assert files_folder(ledger).is_dir()


def test_a_person_is_shown_what_changes_and_asked(shell: Shell, folder: Path, work: Path) -> None:
    shell("resource", "add", "work", "--session", "main")
    taken = shell.json("resource", "snapshot", "work")["id"]
    (work / "a.txt").write_text("two\n")
    code, screen = on_terminal(folder, "resource", "restore", taken, typed="n\n")
    assert (code, "write a.txt" in screen, f"overwrite {work}? [y/N]" in screen) == (4, True, True)
    assert (work / "a.txt").read_text() == "two\n"


def test_a_copy_goes_beside_for_another_session(shell: Shell, folder: Path, work: Path) -> None:
    shell("fork", "main", "alt")
    shell("resource", "add", "work", "--session", "main")
    taken = shell.json("resource", "snapshot", "work")["id"]
    copy = shell.json("resource", "restore", taken, "--session", "alt")
    assert copy["place"] == f"{work}-alt"
    assert (Path(copy["place"]) / "a.txt").read_text() == "one\n"
    other = shell.json("resource", "restore", taken, "--to", "other")
    assert other["place"] == str(folder / "other")
    (listed,) = shell.json("resource", "list", "--session", "alt")
    assert (listed["is_made"], listed["place"]) == (True, copy["place"])
    gone = shell("resource", "discard", listed["id"])
    assert (gone.code, Path(copy["place"]).exists()) == (4, True), "nobody said yes"
    assert shell("resource", "discard", listed["id"], "--yes").code == 0
    assert not Path(copy["place"]).exists()
    assert shell("resource", "discard", "work").out == f"work is discarded; {work} stays as it is\n"
    assert work.is_dir()
    assert [one["name"] for one in shell.json("resource", "list")] == ["work-main"]
    assert len(shell.json("resource", "list", "--all")) == 3


def test_owners_are_told_from_when_to_when(shell: Shell, work: Path) -> None:
    shell("fork", "main", "alt")
    shell("resource", "add", "work", "--session", "main")
    assert shell("resource", "migrate", "work", "--session", "alt").out == "work belongs to session alt\n"
    assert shell("resource", "migrate", "work", "--session", "alt").err == (
        "weft: 'alt' owns 'work' already\nhint: `weft resource list` lists them\n"
    )
    first, second = shell.json("resource", "owners", "work")
    assert (first["owner"]["kind"], first["owner"]["name"], first["why"]) == ("session", "main", "declared")
    assert (second["owner"]["name"], second["why"]) == ("alt", "migrate")
    assert first["until_at"] == second["since_at"]
    assert second["until_at"] is None
    assert len(shell("resource", "owners", "work").out.splitlines()) == 2


def test_it_is_attached_to_write_to_one_and_read_only_to_others(shell: Shell, work: Path) -> None:
    shell("fork", "main", "alt")
    shell("resource", "add", "work", "--session", "main")
    shell.json("resource", "attach", "work", "--session", "main")
    assert shell("resource", "attach", "work", "--session", "alt").code == 4
    uses = shell.json("resource", "attach", "work", "--session", "alt", "--read-only")["uses"]
    assert [(use["user"]["name"], use["mode"]) for use in uses] == [("main", "rw"), ("alt", "ro")]
    assert len(shell.json("resource", "detach", "work", "--session", "alt")["uses"]) == 1


def test_files_and_addresses_are_guessed(shell: Shell, work: Path) -> None:
    assert shell("resource", "list").err.startswith("there is no resource; ")
    assert shell.json("resource", "add", "work/a.txt", "--name", "notes")["kind"] == "file"
    assert shell.json("resource", "add", "https://example.org/x")["kind"] == "uri"
    assert shell("resource", "add", "gone").code == 5
    assert shell("resource", "snapshot", "https://example.org/x").code == 7, "unsupported"
    probed = shell.json("resource", "probe", "notes")
    assert probed["liveness"] == "alive"
    (work / "a.txt").unlink()
    assert shell("resource", "probe", "notes").out == "notes is dead\n"
    for words in (("exec", "notes", "ls"), ("logs", "notes"), ("kill", "notes")):
        refused = shell("resource", *words)
        assert (refused.code, "has no open handle for" in refused.err) == (7, True)


def test_a_snapshot_that_cannot_be_taken_is_told_and_recorded(shell: Shell, work: Path) -> None:
    configuration_folder().mkdir(parents=True, exist_ok=True)
    (configuration_folder() / "resources.toml").write_text("[snapshots]\nfile_bytes = 2\nturns = false\n")
    assert load_resource_settings().snapshots.turns is False
    shell("resource", "add", "work")
    taken = shell("resource", "snapshot", "work")
    assert taken.out.endswith("  without a.txt: too large\n")
    (configuration_folder() / "resources.toml").write_text("[snapshots]\ntotal_bytes = 2\n")
    failed = shell("resource", "snapshot", "work")
    assert (failed.code, failed.out.startswith("work was not kept: ")) == (1, True)
    assert [one["state"] for one in shell.json("resource", "show", "work")["snapshots"]] == ["error", "ok"]
    for text in ("[snapshots]\nturn = 1\n", "[snapshots]\nfiles = 0\n", "[", "\xff"):
        (configuration_folder() / "resources.toml").write_text(text, encoding="latin-1")
        refused = shell("resource", "snapshot", "work")
        assert (refused.code, "resources.toml" in refused.err) == (5, True), text


def test_open_wishes_are_told_by_the_doctor_and_carried_out(shell: Shell, folder: Path, work: Path) -> None:
    added = shell.json("resource", "add", "work")
    assert shell("resource", "reconcile").out == "nothing is open\n"
    with weft.open(folder / ".weft" / "ledger.db") as ledger:
        ResourceLog(ledger).request_snapshot(added["id"])
    examined = shell("doctor")
    assert "1 snapshot and 0 restores of resources are wanted and not done" in examined.out
    assert "`weft resource reconcile`" in examined.out
    done = shell.json("resource", "reconcile")
    assert [one["state"] for one in done["snapshots"]] == ["ok"]
    assert "wanted and not done" not in shell("doctor").out


def test_in_another_name_nothing_outside_of_the_ledger_is_touched(shell: Shell, work: Path) -> None:
    shell("human", "create", "guest", "--set", 'permissions=["resource:*","ledger:read","session:*"]')
    shell("resource", "add", "work")
    for words in (("add", "work"), ("snapshot", "work"), ("probe", "work"), ("reconcile",), ("exec", "work", "ls")):
        assert shell("--as", "guest", "resource", *words).code == 4, words


def test_the_page_says_what_the_commands_do(shell: Shell, folder: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "branches.md").read_text()
    (folder / "notes").mkdir()
    (folder / "notes" / "a.md").write_text("milk\n")
    (block,) = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    for line, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
        answer = run_example(shell, line)
        assert answer.code == 0, f"{line}\n{answer.err}"
        assert not output or masked(answer.out) == masked(output)
    (settings,) = re.findall(r"```toml\n(\[snapshots\].*?)```", page, re.DOTALL)
    (engine,) = re.findall(r"```toml\n(\[docker\].*?)```", page, re.DOTALL)
    configuration_folder().mkdir(parents=True, exist_ok=True)
    (configuration_folder() / "resources.toml").write_text(settings + engine)
    loaded = load_resource_settings()
    assert loaded.snapshots == SnapshotSettings(), "the page shows what holds without the file"
    assert loaded.docker.tar_image is not None


def test_what_is_kept_for_a_ledger_on_a_server_lies_in_the_data_folder() -> None:
    address = shared_server().address()
    with weft.open(address) as ledger, weft.open(address.replace("host=/", "host=//")) as same:
        assert same.path != ledger.path
        earlier = beside_ledger(ledger.path)
        kept = earlier.with_name(f"{earlier.name}-files")
        kept.mkdir(parents=True)
        (kept / "trees").mkdir()
        folder = files_folder(same)
        assert not folder.exists(), "the other spelling knows nothing of what an earlier version kept"
        assert files_folder(ledger) == folder, "two spellings of an address are one ledger"
        assert folder == user_ledger().with_name(f"server-{ledger.replica}-files")
        assert (folder / "trees").is_dir(), "what an earlier version kept is taken along"
        assert not kept.exists()


def test_the_id_of_a_machine_is_drawn_once_and_never_guessed(shell: Shell) -> None:
    with ThreadPoolExecutor() as threads:
        assert len(set(threads.map(lambda _: this_machine(), range(8)))) == 1
    path = state_folder() / "machine"
    assert [one.name for one in path.parent.iterdir() if one.name.startswith("machine")] == ["machine"]
    path.write_text("nonsense\n")
    with pytest.raises(InvalidInput, match="does not hold the id of this machine"):
        this_machine()


def test_a_folder_on_another_machine_is_left_to_it(
    shell: Shell, folder: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_LEDGER", shared_server().address())
    assert shell("init").code == 0
    assert shell("record", "--session", "main", "--query", "hello").code == 0
    added = shell.json("resource", "add", "work", "--session", "main")
    assert added["machine"] == this_machine() == (state_folder() / "machine").read_text().strip()
    taken = shell.json("resource", "snapshot", "work")["id"]
    assert shell("resource", "add", "urn:y", "--session", "main").code == 0
    with weft.open(os.environ["WEFT_LEDGER"]) as ledger:
        ResourceLog(ledger).request_snapshot("work")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state of another"))
    assert shell("trust").code == 0
    assert this_machine() != added["machine"]
    said = f"the directory {work} is on another machine"
    for command in (
        ("probe", "work"),
        ("snapshot", "work"),
        ("restore", taken, "--yes"),
        ("restore", taken, "--to", str(folder / "copy"), "--yes"),
    ):
        refused = shell("resource", *command)
        assert (refused.code, said in refused.err) == (4, True), refused.err
    assert not (folder / "copy").exists()
    assert "nothing is open" in shell("resource", "reconcile").out
    assert shell("resource", "probe", "urn:y").code == 0, "an address is on every machine"
    shown = shell("fork", "main", "alt", "--dry-run")
    assert "work stays with main (it is on another machine" in shown.out
    assert shell.json("resource", "add", "work", "--name", "mine")["id"] != added["id"]


@pytest.mark.parametrize("is_postgres", [False, True])
def test_an_attempt_to_restore_what_nothing_is_kept_of_is_recorded_as_unsupported(
    shell: Shell, work: Path, monkeypatch: pytest.MonkeyPatch, is_postgres: bool
) -> None:
    if is_postgres:
        monkeypatch.setenv("WEFT_LEDGER", shared_server().address())
        assert shell("init").code == 0
    added = shell.json("resource", "add", str(work / "a.txt"))
    (work / "a.txt").unlink()
    assert shell("resource", "snapshot", added["id"]).code != 0
    (failed,) = shell.json("resource", "show", added["id"])["snapshots"]
    refused = shell("resource", "restore", failed["id"], "--yes")
    assert (refused.code, "nothing is kept of it; the attempt is recorded" in refused.err) == (7, True), refused.err
    events = [json.loads(line) for line in shell("graph", "emit").out.splitlines()]
    (attempt,) = [event for event in events if event["kind"] == "restore_attempted"]
    assert (attempt["snapshot_ref"], attempt["outcome"]) == (failed["id"], "unsupported")
    assert not (work / "a.txt").exists()
    assert "nothing is open" in shell("resource", "reconcile").out
    assert shell("verify").code == 0


def test_a_container_is_acted_on_through_its_handle(shell: Shell, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        address = engine_address()
    except EngineMissing as reason:
        pytest.skip(f"no container engine: {reason}")
    monkeypatch.setenv("DOCKER_HOST", address)
    with ContainerEngine(address) as engine:
        runner = Runner(engine, image_of(address))
        container = runner.started(["/bin/sh", "-c", "echo said; sleep 1000"])
        try:
            added = shell.json("resource", "add", f"docker:container/{container}", "--name", "box")
            assert [handle["provider"] for handle in added["handles"]] == ["docker"]
            assert "restored as a new one only, not in place" in shell("resource", "show", "box").out
            ran = shell("resource", "exec", "box", "--", "/bin/sh", "-c", "echo out; exit 3")
            assert (ran.code, ran.out, ran.err) == (1, "out\n", "it ended with 3\n")
            assert shell("resource", "logs", "box").out == "said\n"
            refused = shell("resource", "restore", shell.json("resource", "snapshot", "box")["id"], "--yes")
            assert (refused.code, "is not restored over itself" in refused.err) == (7, True)
            killed = shell.json("resource", "kill", "box", "--signal", "KILL")
            assert killed["was_running"] is True
            assert shell.json("resource", "probe", "box")["liveness"] == "dead"
            assert shell("resource", "exec", "box", "ls").code == 7
        finally:
            runner.remove_all()


def test_no_tool_sees_what_is_kept(folder: Path) -> None:
    with weft.open(folder / "project.db") as ledger:
        workspace = WorkspaceFolder(folder, withheld=protected_places(ledger.path).paths)
        with pytest.raises(ToolFailure):
            workspace.resolve("project.db-files/trees")
        files_folder(ledger).mkdir()
        (folder / "link").symlink_to("project.db-files")
        for path in ("project.db-files/trees", "project.db-files", "link", "link/new.txt"):
            with pytest.raises(ToolFailure):
                workspace.resolve(path)


def test_a_terminal_offers_to_migrate_the_folder_that_a_fork_kept_with_the_other_branch(
    shell: Shell, folder: Path
) -> None:
    site = folder / "site"
    site.mkdir()
    with weft.open(folder / "ledger.db") as ledger:
        grow(ledger, "main", "one")
    for words in (
        ("resource", "add", "site", "--session", "main"),
        ("fork", "main", "alt", "--files", "keep"),
    ):
        assert shell("--ledger", "ledger.db", *words).code == 0, words
    send = ("--ledger", "ledger.db", "send", "--session", "alt", "--workspace", str(site), "--no-wait", "hello")

    def owner() -> str | None:
        with weft.open(folder / "ledger.db") as ledger:
            (resource,) = ledger.resources.list()
            return None if resource.owner is None else resource.owner.name

    quiet = shell(*send)
    assert (quiet.code, owner()) == (0, "main")
    code, screen = on_terminal(folder, *send, typed="n\n")
    assert (code, owner()) == (0, "main")
    assert "with main: migrate it to alt?" in " ".join(screen.split())
    code, screen = on_terminal(folder, *send, typed="y\n")
    assert (code, owner()) == (0, "alt")
    assert "migrate it" not in on_terminal(folder, *send)[1]
