"""`weft bundle` and `weft key`, as people use them."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.surfaces.shell import Shell, spawn
from weft.surfaces.cli.user_files import PASSPHRASE_VARIABLE

VERIFIER = Path(__file__).parents[2] / "tools" / "verify_bundle.py"


@pytest.fixture
def talk(weft: Shell) -> Shell:
    """A ledger with a talk of two turns, of which the first answer is a secret."""
    weft.record("What is the word?", response="swordfish")
    weft.record("Thanks.", response="You are welcome.")
    return weft


def secret(weft: Shell) -> str:
    return str(weft.json("show", "main~1")["messages"][1]["id"])


def test_a_bundle_is_made_verified_and_read(talk: Shell, folder: Path) -> None:
    assert talk("bundle", "create", "main", "-o", "talk.weft").code == 0
    told = talk("bundle", "verify", "talk.weft").out
    digest = talk.json("show", "main")["digest"]
    assert f"thread {digest}, 2 turns" in told
    assert "unsigned: nobody vouches for it" in told
    assert "It does not prove" in told
    before = sorted(path.name for path in folder.iterdir())
    opened = talk("bundle", "open", "talk.weft")
    assert opened.out == talk("log", "main").out
    assert talk("bundle", "open", "talk.weft", "main~1").out == talk("show", "main~1").out.replace(" (main)", "")
    assert sorted(path.name for path in folder.iterdir()) == before
    answer = subprocess.run([sys.executable, str(VERIFIER), "talk.weft"], capture_output=True, cwd=folder, check=True)
    assert json.loads(answer.stdout)["threads"][0]["digest"] == digest


def test_what_is_withheld_is_listed_and_shown_as_not_here(talk: Shell) -> None:
    made = talk("bundle", "create", "main", "-o", "talk.weft", "--withhold", secret(talk))
    assert f"message {secret(talk)}: model_response output.parts[0].text" in made.out
    assert "stay visible" in made.out
    assert "1 content withheld" in talk("bundle", "verify", "talk.weft").out
    shown = talk("bundle", "open", "talk.weft", "main~1").out
    assert "[not here]" in shown
    assert "swordfish" not in shown
    assert talk.json("bundle", "verify", "talk.weft")["absent"] == {"withheld": 1}


def test_withheld_words_that_stand_elsewhere_are_refused(talk: Shell, folder: Path) -> None:
    withheld = secret(talk)
    talk.record("And?", response="Say Swordfish at the door.")
    refused = talk("bundle", "create", "main", "-o", "talk.weft", "--withhold", withheld)
    assert refused.code == 4
    assert "withheld words also stand in turn" in refused.err
    assert "hint: withhold those places too, or say --force" in refused.err
    assert "swordfish" not in refused.err.lower()
    assert [path.name for path in folder.iterdir()] == [".weft"]
    assert talk("bundle", "create", "main", "-o", "talk.weft", "--withhold", withheld, "--force").code == 0
    assert talk("bundle", "create", "main", "-o", "2.weft", "--withhold-matching", "(?i)swordfish").code == 0


def test_a_bundle_comes_into_a_ledger_that_is_named(talk: Shell) -> None:
    talk("bundle", "create", "main", "-o", "talk.weft")
    talk("init", "other.db")
    brought = talk("bundle", "open", "talk.weft", "--into", "other.db")
    assert brought.out.endswith("0 known already\n")
    assert talk("log", "main", "--ledger", "other.db").out == talk("log", "main").out
    assert talk("verify", "--ledger", "other.db").code == 0
    (hinted,) = re.findall(r"`weft (fork .*)`", brought.err)
    assert talk(*hinted.replace("LABEL", "mine").split(), "--ledger", "other.db").code == 0
    gone = talk("bundle", "open", "talk.weft", "--into", "a gone.db")
    assert (gone.code, gone.err.splitlines()[1]) == (7, "hint: `weft init 'a gone.db'` makes one there")
    assert not (talk.folder / "a gone.db").exists()


def test_a_changed_bundle_is_refused_with_a_word(talk: Shell, folder: Path) -> None:
    talk("bundle", "create", "main", "-o", "talk.weft")
    data = (folder / "talk.weft").read_bytes()
    (folder / "talk.weft").write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    for arguments in (("verify", "talk.weft"), ("open", "talk.weft")):
        refused = talk("bundle", *arguments)
        assert (refused.code, refused.out) == (5, "")
        assert refused.err.startswith("weft: the bundle is refused: ")
    assert talk("bundle", "verify", "none.weft").code == 7


def test_a_signature_is_told_from_one_that_is_trusted(talk: Shell, tmp_path: Path) -> None:
    assert talk("key", "create", "laptop").code == 0
    talk("bundle", "create", "main", "-o", "talk.weft", "--sign", "laptop")
    assert "signed with laptop, a key that you trust" in talk("bundle", "verify", "talk.weft").out
    line = talk("key", "export", "laptop").out
    assert talk("key", "delete", "laptop").code == 4
    assert talk("key", "delete", "laptop", "--yes").code == 0
    assert talk("bundle", "verify", "talk.weft", "--signed").code == 1
    assert "a key that you do not know" in talk("bundle", "verify", "talk.weft").out
    assert talk("key", "trust", "--name", "ann", stdin=line).code == 0
    assert talk("bundle", "verify", "talk.weft", "--signed").code == 0
    assert [(key["name"], key["own"]) for key in talk.json("key", "list")] == [("ann", False)]
    assert talk("bundle", "create", "main", "-o", "2.weft", "--sign", "laptop").code == 5


def test_a_private_key_lies_in_the_configuration_folder_and_nowhere_else(
    talk: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSPHRASE_VARIABLE, "correct horse")
    assert talk("key", "create", "work", "--passphrase").code == 0
    key = tmp_path / "home" / ".config" / "weft" / "keys" / "work.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert b"ENCRYPTED" in key.read_bytes()
    assert talk("bundle", "create", "main", "-o", "talk.weft", "--sign", "work").code == 0
    monkeypatch.setenv(PASSPHRASE_VARIABLE, "battery staple")
    refused = talk("bundle", "create", "main", "-o", "2.weft", "--sign", "work")
    assert refused.code == 5
    assert "battery" not in refused.err
    monkeypatch.delenv(PASSPHRASE_VARIABLE)
    assert "passphrase" in talk("bundle", "create", "main", "-o", "2.weft", "--sign", "work").err


def test_no_keys_yet_is_said_with_what_to_do(shell: Shell) -> None:
    answer = shell("key", "list")
    assert (answer.code, answer.out) == (0, "")
    assert "weft key create NAME" in answer.err
    assert shell.json("key", "list") == []
    assert shell("key", "export", "nobody").code == 5
    assert shell("key", "create", "../up").code == 5


def test_the_help_of_a_group_lists_its_commands(shell: Shell) -> None:
    told = shell("help", "bundle").out
    assert "create" in told
    assert "verify" in told
    assert shell("bundle", "--help").code == 0
    assert shell("bundle", "crate").code == 2


def test_without_the_library_for_signatures_the_rest_works(talk: Shell, folder: Path) -> None:
    """An interpreter in which `cryptography` cannot be imported."""
    talk("key", "create", "laptop")
    talk("bundle", "create", "main", "-o", "talk.weft")
    talk("bundle", "create", "main", "-o", "signed.weft", "--sign", "laptop")
    blocked = folder.parent / "blocked" / "cryptography"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ImportError('not here')\n")
    path = {"PYTHONPATH": ":".join([str(blocked.parent), *sys.path])}
    assert spawn(folder, "bundle", "verify", "talk.weft", environment=path).returncode == 0
    refused = spawn(folder, "bundle", "verify", "signed.weft", environment=path)
    assert refused.returncode == 7
    assert b"weft[signing]" in refused.stderr


@pytest.mark.parametrize("command", [("verify",), ("open",), ("open", "--into", "other.db"), ("sign", "-o", "s.weft")])
def test_a_pipe_or_a_device_in_the_place_of_a_bundle_is_refused_and_not_waited_for(
    talk: Shell, folder: Path, command: tuple[str, ...]
) -> None:
    assert talk("key", "create", "laptop").code == 0
    assert talk("init", "other.db").code == 0
    os.mkfifo(folder / "pipe")
    keys = ("laptop",) if command[0] == "sign" else ()
    for name in ("pipe", "/dev/zero"):
        refused = spawn(folder, "bundle", *command, name, *keys)
        assert refused.returncode != 0
        assert f"{name}: it is no regular file" in refused.stderr.decode()
    assert not (folder / "s.weft").exists()
