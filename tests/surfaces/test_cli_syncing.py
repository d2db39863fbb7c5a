"""`weft clone`, `pull`, `push`, `remote`, `settle`, `replica` and `sync-stdio`, as people use them."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.ledger.imported import rich_import
from tests.sizes import share
from tests.surfaces.approving import LEDGER, opened, waiting
from tests.surfaces.shell import PROGRAM, Shell, spawn
from weft import open as open_ledger
from weft.exchange.sync.fact_transfer import PREAMBLE
from weft.ledger.upkeep import verify


@pytest.fixture
def pair(weft: Shell) -> Shell:
    """A ledger here, with a turn, and a clone of it at other.db."""
    weft.record("together")
    assert weft("clone", ".", "other.db").code == 0
    return weft


def on(ledger: str, *arguments: str) -> tuple[str, ...]:
    return ("--ledger", ledger, *arguments)


def test_a_clone_says_what_it_holds_and_knows_where_it_came_from(pair: Shell, folder: Path) -> None:
    assert pair(*on("other.db", "log", "--oneline")).out == pair("log", "--oneline").out
    (origin,) = pair.json(*on("other.db", "remote"))
    assert (origin["name"], origin["address"]) == ("origin", str(folder / ".weft" / "ledger.db"))
    again = pair.json("clone", ".", "other.db")
    assert (again["events"], again["path"]) == (0, str(folder / "other.db"))
    assert pair("clone", "other.db", ".").code == 4
    for wrong, code in (("nowhere.db", 7), ("ftp://host/ledger", 5), ("", 5)):
        assert pair("clone", wrong, "new").code == code
    assert not (folder / "new").exists()


@pytest.mark.parametrize("how", share(["file", "facts"], test=1))
def test_a_clone_says_how_many_turns_have_not_ended(weft: Shell, folder: Path, how: str) -> None:
    source = "." if how == "file" else f"cmd:{shlex.join((*PROGRAM, 'sync-stdio', '--ledger', str(folder / LEDGER)))}"
    with opened(weft) as ledger:
        waiting(ledger, "light")
    cloned = weft("clone", source, "one.db")
    assert cloned.code == 0, cloned.err
    assert "1 turn has not ended" in cloned.err
    assert weft.json("clone", source, "two.db")["unfinished"] == 1


def test_the_views_of_a_clone_are_not_computed_again(
    weft: Shell, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_rebuild(*_: object) -> int:
        raise AssertionError("the views were made anew")

    weft.record("together", session="own")
    with open_ledger(folder / ".weft" / "ledger.db") as ledger:
        rich_import(ledger)
    monkeypatch.setattr(verify, "rebuild", refuse_rebuild)
    assert weft("clone", "--no-imports-secret", ".", "other.db").code == 0
    with open_ledger(folder / "other.db") as ledger:
        assert ledger.session("main").origin == "toy"


def test_a_clone_of_an_own_ledger_is_made_from_its_file_and_goes_on_where_it_was_cut(
    weft: Shell, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    weft.record("together")
    with monkeypatch.context() as interrupted:
        interrupted.setattr("weft.exchange.sync.clone", cut)
        assert weft("clone", ".", "other.db").code == 130
    monkeypatch.setattr("weft.exchange.sync.fact_transfer.checked_line", None)  # no event is told
    answer = weft.json("clone", ".", "other.db")
    assert (answer["events"], answer["created_as"]) == (0, weft.json(*on("other.db", "replica"))["replica"])
    assert weft.json(*on("other.db", "trust", "--show"))["how"] == "cloned"
    whole = weft.json("clone", ".", "third.db")
    assert (whole["events"], whole["contents"]) == (7, 3)
    for name in ("other.db", "third.db"):
        assert weft(*on(name, "verify")).code == 0
        assert weft(*on(name, "log", "--oneline")).out == weft("log", "--oneline").out


def test_what_is_pulled_and_pushed_is_told(pair: Shell, folder: Path) -> None:
    pair.record("more")
    would = pair("push", "other.db", "--dry-run")
    assert re.fullmatch(r"would push 6 events, 2 contents \(.* at most\) to .*other\.db\n", would.out)
    assert pair("push", "other.db").out.startswith("pushed 6 events, 2 contents (")
    assert pair("push", "other.db").out == f"nothing to push to {folder / 'other.db'}\n"
    assert pair.json(*on("other.db", "pull"))["events"] == 0
    assert pair("pull", "nowhere").code == 3
    assert "the name of a ledger is empty" in pair("pull", "").err
    assert pair("pull").code == 4


def test_an_erasure_names_the_ledgers_that_may_still_hold_it(pair: Shell) -> None:
    for ledger, told in (("other.db", True), (".", False)):
        erased = pair(*on(ledger, "erase", "main", "--reason", "asked to", "--yes"))
        assert erased.code == 0
        assert ("ledgers that you sync with may still hold it: origin" in erased.err) is told


def test_a_session_that_both_moved_is_shown_twice_and_settled(pair: Shell) -> None:
    pair.record("here")
    pair("--ledger", "other.db", "record", "--session", "main", "--query", "there", "--response", "yes")
    told = pair("pull", "other.db")
    assert "main was moved elsewhere, too" in told.err
    listed = pair("sessions").out.splitlines()
    name = listed[1].split("\t")[0]
    assert re.fullmatch(r"[0-9a-z]{6}/main", name)
    assert "[moved elsewhere] to " in listed[1]
    assert f"({name}) there" in pair("log", "--oneline", "--graph").out
    assert "there" in pair("log", name, "--oneline").out
    (branch,) = pair.json("sessions")[0]["branches"]
    assert branch["name"] == name
    shown = pair("settle", "main")
    assert [line.split(" ")[0] for line in shown.out.splitlines()] == ["main", name]
    assert pair("settle", "main", "--ours", "--theirs").code == 2
    assert pair("settle", "main", "--theirs").code == 0
    assert pair("settle", "main").code == 4
    pair("push", "other.db")
    assert pair(*on("other.db", "show", "main")).out == pair("show", "main").out
    assert pair.json(*on("other.db", "sessions"))[0]["branches"] == []


def test_remotes_are_added_listed_shown_and_removed(pair: Shell, folder: Path) -> None:
    assert "no remotes yet" in pair("remote").err
    pair.record("aside", session="aside")
    assert pair("remote", "add", "team", "other.db", "--sessions", "aside").code == 0
    assert pair("remote").out == f"team  {folder / 'other.db'}  1 session only\n"
    assert "aside" in pair("remote", "show", "team").out
    pair.record("not for the team")
    assert pair.json("push")["events"] == 7
    assert "not for the team" not in pair(*on("other.db", "log")).out
    assert pair("remote", "add", "team", "other.db").code == 4
    assert pair("remote", "add", "team").code == 2
    assert pair("remote", "add").code == 2
    assert pair("remote", "remove", "team").out == "forgot team\n"
    assert pair("remote", "show", "team").code == 3


def test_the_import_secret_is_shared_when_asked_for(pair: Shell) -> None:
    pair("init", "third.db")
    assert "was taken over" in pair("remote", "add", "third", "third.db", "--share-imports").err
    pair("remote", "remove", "third")
    assert "one import secret already" in pair("remote", "add", "third", "third.db", "--share-imports").err


def test_an_erasure_is_applied_with_a_pull_when_asked_for(pair: Shell) -> None:
    pair(*on("other.db", "erase", "main~0", "--reason", "asked to", "--yes"))
    told = pair("pull", "other.db")
    assert "wait for your word" in told.err
    assert "together" in pair("show", "main").out
    assert "wait for your word" not in pair("pull", "other.db", "--apply-erasures").err
    assert "together" not in pair("show", "main").out


@pytest.mark.slow("starts three programs that serve")
def test_a_ledger_behind_a_program_is_synced_like_any_other(pair: Shell, folder: Path) -> None:
    pair.record("more")
    served = f"cmd:{shlex.join([*PROGRAM, 'sync-stdio', '--ledger', str(folder / 'other.db')])}"
    done = pair.json("push", served)
    assert done["events"] == 6
    assert 0 < done["sent_bytes"] < 3000
    pair.record("refused")
    refused = pair("push", f"{served} --read-only")
    assert refused.code == 4
    assert "the other side refuses" in refused.err
    assert pair("pull", "cmd:echo hello").code == 7
    assert pair("pull", f"{served} --no-such-option").code == 7


def test_serving_nobody_ends_quietly_and_nonsense_is_refused(weft: Shell) -> None:
    def serve(given: bytes) -> tuple[int, bytes]:
        served = spawn(weft.folder, "sync-stdio", stdin=given)
        assert served.stdout.startswith(PREAMBLE)
        return served.returncode, served.stderr

    assert serve(b"") == (0, b"")
    assert serve(b"GET / HTTP/1.1\r\n")[0] == 7
    assert serve(PREAMBLE + b"\x01\x00")[0] == 7


def test_a_copy_behind_our_back_gets_a_name_of_its_own(pair: Shell, folder: Path) -> None:
    (folder / "copy.db").write_bytes((folder / ".weft" / "ledger.db").read_bytes())
    refused = pair("pull", "copy.db")
    assert refused.code == 4
    assert "weft replica --new" in refused.err
    was = pair(*on("copy.db", "replica")).out.strip()
    assert was == pair.json("replica")["replica"]
    changed = pair.json(*on("copy.db", "replica", "--new"))
    assert changed["was"] == was != changed["replica"]
    assert pair("pull", "copy.db").code == 0
    assert pair("replica", "--forget", changed["replica"]).code == 0


def test_names_of_remotes_are_completed(pair: Shell) -> None:
    import click

    from weft.surfaces.cli.ledgers.sync import complete_remotes, pull_command

    pair("remote", "add", "team", "other.db")
    context = click.Context(pull_command, info_name="pull")
    assert complete_remotes(context, pull_command.params[0], "te") == ["team"]
    context.params["ledger"] = "gone.db"
    assert complete_remotes(context, pull_command.params[0], "") == []


def test_another_ledger_at_a_known_address_is_refused_until_it_is_accepted(pair: Shell, folder: Path) -> None:
    assert pair("remote", "add", "other", "other.db").code == 0
    assert pair("pull", "other").code == 0
    was, now = pair.json(*on("other.db", "replica"))["replica"], pair.json(*on("other.db", "replica", "--new"))
    refused = pair("pull", "other")
    assert refused.code == 4
    assert f"at {folder / 'other.db'} answers replica {now['replica']}; it was {was}" in refused.err
    assert "`weft remote repin NAME`" in refused.err
    assert pair("push", "other.db").code == 4
    assert pair.json("remote", "repin", "other") == {"repinned": "other", "was": was}
    assert pair("pull", "other").code == 0
    assert pair("remote", "repin", "other.db").out.endswith(f"is taken for the right one; it was {now['replica']}\n")


def test_a_ledger_that_says_nothing_is_given_up_after_the_time_that_was_given(pair: Shell) -> None:
    silent = pair("pull", "cmd:sleep 1000", "--silence", "1")
    assert "the other side said nothing for 1 seconds" in silent.err
    assert silent.code == 7
    served = subprocess.run([*PROGRAM, "sync-stdio", "--silence", "0"], capture_output=True, check=False)
    assert served.returncode == 2


def test_without_a_remote_a_push_says_how_to_remember_one(weft: Shell) -> None:
    for command in ("push", "pull"):
        answer = weft(command)
        assert answer.code == 4
        assert answer.err.splitlines() == [
            "weft: no ledger is named, and no remote is remembered",
            "hint: give an address, or remember one: `weft remote add origin ADDRESS`",
        ]
