"""A stranger's ledger in a folder that somebody entered: everything can be read, and nothing of it acts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import weft
from tests.runtime.scripted import chat_saying
from tests.surfaces import script_runs
from tests.surfaces.forking import shared_forker
from tests.surfaces.shell import Shell
from tests.surfaces.talking import serving, typing
from weft.exchange.sync import Remote, add_remote, mark_as_copy
from weft.kernel.errors import NotTrusted
from weft.programs import Programs
from weft.store.replicas import MADE, TrustStore
from weft.surfaces.cli.user_files import trust_store

CANARY = "ghp_0123456789abcdefghijklmnopqrstuvwxyz"
IS_ROOT = os.geteuid() == 0


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, folder = tmp_path / "home", tmp_path / "repository"
    home.mkdir()
    folder.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("WEFT_LEDGER", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "repository"


@pytest.fixture
def shell(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(folder, monkeypatch, capsys)


@pytest.fixture
def stranger(folder: Path) -> Path:
    """A ledger as it comes with a repository: the library made it, and this person's trust store knows nothing."""
    path = folder / ".weft" / "ledger.db"
    path.parent.mkdir()
    with weft.open(path) as ledger:
        ledger.record_turn(session="main", query="what is here?", response="a trap")
    return path


def with_command(path: Path, mark: Path) -> None:
    with weft.open(path) as ledger:
        add_remote(ledger, Remote(name="origin", address=f"cmd:touch {mark}"))


def test_pulling_in_a_repository_starts_no_command_of_its_ledger(shell: Shell, stranger: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    with_command(stranger, mark)
    for verb in ("pull", "push"):
        answer = shell(verb)
        assert answer.code != 0
        assert "not trusted" in answer.err
        assert " trust --show" in answer.err
    assert not mark.exists()
    assert shell("trust").code == 0
    shell("pull")
    assert mark.exists()


def test_a_provider_of_the_ledger_gets_no_variable_and_no_words(
    shell: Shell, stranger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", CANARY)
    with serving(chat_saying({"content": "hello"})) as server:
        with weft.open(stranger) as ledger:
            programs = Programs(ledger)
            provider = {"providerType": "openai", "baseUrl": server.url, "apiKey": "${GITHUB_TOKEN}"}
            programs.create("provider", "near", provider)
            programs.create("model", "trap", {"provider": "@(near)", "modelId": "m"})
            programs.create_session("chat", model="@(trap)")
        answer = shell("chat", stdin="hi\n")
        assert answer.code != 0
        assert "not trusted" in answer.err
        assert shell("program", "invoke", "trap", "hi").code != 0
        assert server._server.received == []
        shown = shell("trust", "--show")
        assert "GITHUB_TOKEN" in shown.out
        assert server.url in shown.out
        assert "is not trusted" in shown.out
        assert shell("program", "invoke", "trap", "hi").code != 0


def test_an_approval_is_not_taken(shell: Shell, stranger: Path) -> None:
    with weft.open(stranger) as ledger:
        programs = Programs(ledger)
        programs.create("human", "ada", {"name": "Ada", "permissions": ["approve"]})
        request = programs.notify("ada", "may I?", asks=True)
    answer = shell("human", "approve", "ada", request.id, "--json")
    assert answer.error["code"] == "not_trusted"


def test_nothing_is_imported_under_the_secret_of_the_ledger(shell: Shell, stranger: Path, tmp_path: Path) -> None:
    source = tmp_path / "b4a2.jsonl"
    source.write_text('{"type":"user","sessionId":"b4a2","uuid":"u1","message":{"role":"user","content":"hi"}}\n')
    answer = shell("import", str(source))
    assert answer.code != 0
    assert "not trusted" in answer.err


def test_everything_can_be_read_and_recorded(shell: Shell, stranger: Path) -> None:
    assert "a trap" in shell("show", "main").out
    assert shell("record", "--session", "main", "--query", "q", "--response", "r").code == 0
    assert shell("verify").code == 0


def test_another_file_in_the_place_of_a_trusted_one_is_not_trusted(shell: Shell, stranger: Path, folder: Path) -> None:
    assert shell("trust").code == 0
    other = folder / "other.db"
    shutil.copy(stranger, other)
    for beside in stranger.parent.glob("ledger.db-*"):
        beside.unlink()
    os.replace(other, stranger)
    shown = shell.json("trust", "--show")
    assert not shown["trusted"]
    assert "another one" in shown["doubt"]


def test_another_ledger_in_the_file_of_a_trusted_one_is_not_trusted(shell: Shell, folder: Path, tmp_path: Path) -> None:
    assert shell("init").code == 0
    trusted = folder / ".weft" / "ledger.db"
    with weft.open(tmp_path / "other.db") as other:
        other.record_turn(session="main", query="q", response="r")
    for beside in trusted.parent.glob("ledger.db-*"):
        beside.unlink()
    inode = trusted.stat().st_ino
    trusted.write_bytes((tmp_path / "other.db").read_bytes())
    assert trusted.stat().st_ino == inode
    shown = shell.json("trust", "--show")
    assert not shown["trusted"]
    assert "another ledger" in shown["doubt"]


def test_an_older_state_of_the_same_ledger_in_the_same_file_is_not_trusted(shell: Shell, folder: Path) -> None:
    """As a checkout writes it: the same inode, the same replica, and what the repository says."""
    path = folder / ".weft" / "ledger.db"
    path.parent.mkdir()
    with weft.open(path) as ledger:
        ledger.record_turn(session="main", query="q", response="r")
    from_repository = path.read_bytes()
    assert shell("trust").code == 0
    assert shell.json("trust", "--show")["trusted"]
    for beside in path.parent.glob("ledger.db-*"):
        beside.unlink()
    path.write_bytes(from_repository)
    shown = shell.json("trust", "--show")
    assert not shown["trusted"]
    assert "another one" in shown["doubt"]


def test_a_copy_into_a_ledger_that_was_there_does_not_make_it_trusted(
    shell: Shell, folder: Path, tmp_path: Path
) -> None:
    assert shell("init").code == 0
    with weft.open(folder / "empty.db") as ledger:
        add_remote(ledger, Remote(name="origin", address=f"cmd:touch {tmp_path / 'ran'}"))
    shell("copy", ".", "empty.db")
    assert not shell.json("--ledger", "empty.db", "trust", "--show")["trusted"]


def test_a_new_ledger_is_not_made_through_links_of_a_repository(shell: Shell, folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (folder / "linked").mkdir()
    (folder / "linked" / ".weft").symlink_to(outside)
    assert shell("init", "linked").code != 0
    (folder / "ignored" / ".weft").mkdir(parents=True)
    (folder / "ignored" / ".weft" / ".gitignore").symlink_to(outside / "made")
    assert shell("init", "ignored").code == 0
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("linked", [".weft", ".weft/ledger.db"])
@pytest.mark.parametrize("words", [("init",), ("init", "."), ("init", ".weft/ledger.db")])
def test_no_ledger_that_a_link_of_a_repository_leads_to_is_taken_for_its_own(
    shell: Shell, folder: Path, tmp_path: Path, linked: str, words: tuple[str, ...]
) -> None:
    trusted = tmp_path / "other" / ".weft" / "ledger.db"
    assert shell("init", str(tmp_path / "other")).code == 0
    (folder / linked).parent.mkdir(exist_ok=True)
    (folder / linked).symlink_to(trusted if linked.endswith(".db") else trusted.parent)
    refused = shell(*words)
    assert refused.code != 0
    assert f"{folder / linked} is a link" in " ".join(refused.err.split())
    assert not (folder / ".weft" / ".gitignore").exists() or linked == ".weft"
    assert shell("--ledger", ".weft/ledger.db", "init").code == 0  # who names it means it


def test_a_strangers_backup_brings_no_trust_and_a_refused_clone_leaves_nothing(
    shell: Shell, folder: Path, stranger: Path
) -> None:
    assert shell("backup", "theirs.db").code == 0
    shutil.rmtree(stranger.parent)
    assert shell("init").code == 0
    assert shell("recover", "--from", "theirs.db", "--accept").code == 0
    assert not shell.json("trust", "--show")["trusted"]
    refused = shell("clone", "theirs.db", "clone.db")
    assert refused.code != 0
    assert "(to clone without it: --no-imports-secret)" in refused.err
    assert not (folder / "clone.db").exists()
    assert shell("clone", "theirs.db", "clone.db", "--no-imports-secret").code == 0


def test_trust_in_a_ledger_that_is_gone_is_taken_back_by_its_path(shell: Shell, folder: Path) -> None:
    assert shell("init", "gone").code == 0
    shutil.rmtree(folder / "gone")
    assert ", gone" in shell("trust", "--list").out
    assert shell.json("--ledger", "gone/.weft/ledger.db", "trust", "--revoke")["was_trusted"]
    assert shell.json("trust", "--list") == []
    assert not shell.json("--ledger", "gone/.weft/ledger.db", "trust", "--revoke")["was_trusted"]


def test_a_ledger_that_was_made_here_is_trusted_and_so_are_its_copies(shell: Shell, folder: Path) -> None:
    assert shell("init").code == 0
    shell.record("hello")
    assert shell.json("trust", "--show")["how"] == "made"
    assert shell("copy", ".", "copy.db").code == 0
    assert shell("backup", "backup.db").code == 0
    assert shell("clone", ".", "clone.db").code == 0
    for name, how in (("copy.db", "copied"), ("backup.db", "copied"), ("clone.db", "cloned")):
        assert shell.json("--ledger", name, "trust", "--show")["how"] == how
    assert shell("recover", "--from", "backup.db", "--accept").code == 0
    assert shell.json("trust", "--show")["how"] == "recovered"
    shell.record("on the restored one, which goes by a new name")
    assert shell.json("trust", "--show")["how"] == "recovered"
    assert shell("recover", "--salvage", "copy.db", "new.db").code == 0
    assert shell.json("--ledger", "new.db", "trust", "--show")["how"] == "recovered"
    assert shell("trust", "--revoke").code == 0
    assert not shell.json("trust", "--show")["trusted"]
    places = [known["identity"]["place"] for known in shell.json("trust", "--list")]
    assert str(folder / ".weft" / "ledger.db") not in places
    assert str(folder / "clone.db") in places


def test_what_was_made_from_a_strangers_ledger_is_not_trusted(shell: Shell, stranger: Path) -> None:
    assert shell("copy", ".", "copy.db").code == 0
    assert shell("backup", "backup.db").code == 0
    assert shell("recover", "--salvage", "copy.db", "new.db").code == 0
    for name in ("copy.db", "backup.db", "new.db"):
        assert not shell.json("--ledger", name, "trust", "--show")["trusted"]


def test_a_backup_names_no_remote(shell: Shell, stranger: Path, tmp_path: Path) -> None:
    with_command(stranger, tmp_path / "never")
    assert shell("backup", "backup.db").code == 0
    assert str(tmp_path / "never").encode() not in Path("backup.db").read_bytes()
    assert shell.json("--ledger", "backup.db", "remote", "list") == []


def test_the_person_at_a_terminal_is_asked_once(folder: Path, stranger: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    with_command(stranger, mark)
    with typing(folder, "pull") as person:
        person.wait("remote origin would start the command touch")
        person.wait("do you trust it?")
        person.line("n")
        assert person.end() != 0
    assert not mark.exists()
    with typing(folder, "pull") as person:
        person.wait("do you trust it?")
        person.line("y")
        person.end()
    assert mark.exists()
    with typing(folder, "pull") as person:
        person.end()
        assert "do you trust it?" not in person.shown


@pytest.mark.skipif(not IS_ROOT, reason="only root can give files away")
def test_a_ledger_of_another_user_is_not_used_unasked(shell: Shell, stranger: Path) -> None:
    os.chown(stranger, 4321, 4321)
    answer = shell("log")
    assert answer.code != 0
    assert "belongs to another user" in answer.err
    assert shell("--ledger", str(stranger), "log").code == 0
    os.chown(stranger, 0, 0)
    os.chown(stranger.parent, 4321, 4321)
    assert "belongs to another user" in shell("log").err


@pytest.mark.parametrize("linked", [".weft", ".weft/ledger.db"])
def test_a_link_to_a_ledger_that_is_trusted_is_not_followed_unasked(
    shell: Shell, folder: Path, tmp_path: Path, linked: str
) -> None:
    own = tmp_path / "project" / ".weft" / "ledger.db"
    assert shell("init", str(tmp_path / "project")).code == 0
    link = folder / linked
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(own.parent if linked == ".weft" else own)
    record = ("record", "--session", "main", "--query", "where?", "--response", "here")
    for words in (record, ("log",), ("send", "--session", "main", "Begin")):
        answer = shell(*words)
        assert answer.code != 0
        assert f"{link} is a link" in answer.err
        assert "--ledger or WEFT_LEDGER" in answer.err
    assert "where?" not in shell("--ledger", str(own), "log").out
    assert shell("--ledger", str(folder), *record).code == 0
    assert "where?" in shell("--ledger", str(own), "log").out


def test_a_trust_file_that_others_could_have_written_is_not_believed(shell: Shell, stranger: Path) -> None:
    assert shell("trust").code == 0
    path = trust_store().path
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    path.chmod(0o666)
    answer = shell("trust", "--show")
    assert answer.code != 0
    assert "could have been written by others" in answer.err
    path.chmod(0o600)
    path.write_text("{")
    assert "cannot be read" in shell("trust", "--list").err


def test_what_is_pinned_stays_pinned_under_a_new_name(tmp_path: Path) -> None:
    store = TrustStore(tmp_path / "trust.json")
    with weft.open(tmp_path / "ledger.db", trust=store) as ledger:
        ledger.trust.pin_replica("elsewhere", "R1")
        mark_as_copy(ledger)
        was = ledger.replica
    with weft.open(tmp_path / "ledger.db", trust=store) as ledger:
        assert ledger.replica != was
        assert ledger.trust.is_trusted
        assert ledger.trust.pinned_replica("elsewhere") == "R1"


def test_a_trust_file_that_is_a_link_is_not_followed(shell: Shell, stranger: Path, tmp_path: Path) -> None:
    path = trust_store().path
    path.parent.mkdir(parents=True)
    (tmp_path / "elsewhere.json").write_text('{"version":1,"ledgers":[]}')
    path.symlink_to(tmp_path / "elsewhere.json")
    assert "is a link" in shell("trust", "--list").err


def test_the_library_acts_for_whoever_opened_the_ledger(stranger: Path, tmp_path: Path) -> None:
    store = TrustStore(tmp_path / "trust.json")
    with weft.open(stranger, trust=store) as ledger:
        assert not ledger.trust.is_trusted
        with pytest.raises(NotTrusted, match="run a program"):
            ledger.trust.ensure("run a program")
        with pytest.raises(NotTrusted):
            ledger.programs["anything"].invoke("hello")
        store.trust_of(ledger._store).allow()
        ledger.trust.ensure("run a program")
    with weft.open(stranger) as ledger:
        assert ledger.trust.is_trusted
    with weft.open(tmp_path / "new.db", trust=store) as ledger:
        assert ledger.trust.is_trusted
    assert [known.how for known in store.ledgers()] == [MADE, "allowed"]


def test_two_processes_that_trust_at_once_lose_nothing(tmp_path: Path) -> None:
    script = (
        "import sys, weft\nfrom pathlib import Path\n"
        "from weft.store.replicas import TrustStore\n"
        "for n in range(5):\n"
        "    weft.open(Path(sys.argv[1]) / f'{sys.argv[2]}-{n}.db',"
        " trust=TrustStore(Path(sys.argv[1]) / 'trust.json')).close()\n"
    )
    arguments = (script_runs.__name__, script, str(tmp_path))
    others = [shared_forker().run_main(*arguments, name) for name in ("a", "b", "c")]
    assert [other.wait(60) for other in others] == [0, 0, 0]
    assert len(TrustStore(tmp_path / "trust.json").ledgers()) == 15
