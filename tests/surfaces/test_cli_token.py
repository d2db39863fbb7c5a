"""`weft token`, and what a process may do that was given a token."""

from __future__ import annotations

import json
import os
import re
import stat
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.runtime.inference.asking import CANARY
from tests.runtime.scripted import chat
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell
from tests.surfaces.test_cli_broker import stock
from tests.surfaces.test_cli_docs import run_example
from weft.runtime.tool.tool_contract import ToolFailure
from weft.runtime.tool.workspace import WorkspaceFolder
from weft.surfaces.cli import command_line
from weft.surfaces.cli.credentials import PUBLIC_KEYS_FILE, REVOKED_FILE, ROOT_KEY_FILE
from weft.surfaces.cli.user_files import TOKEN_VARIABLE
from weft.surfaces.cli.work.sandbox_access import protected_places
from weft.surfaces.opening import open as open_ledger


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("USER", "ann")
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    return tmp_path / "config" / "weft"


@pytest.fixture
def person(config: Path, weft: Shell) -> Shell:
    """With a ledger that has a session, and an agent that may read sessions whose labels begin with `note`."""
    weft.record("hello")
    weft.record("secret plans", session="notes")
    weft.json("agent", "create", "scout", "--set", 'permissions.programs=["session:read(note*)"]')
    return weft


def token_of(shell: Shell, *options: str) -> str:
    return str(shell.json("token", "create", *options)["token"])


def in_file(folder: Path, token: str, name: str = "token") -> str:
    path = folder / name
    path.write_text(token + "\n")
    return str(path)


def test_a_scope_stands_for_rights(person: Shell, tmp_path: Path) -> None:
    reading = in_file(tmp_path, token_of(person, "--scope", "read"), "reading")
    assert [one["label"] for one in person.json("--token-file", reading, "sessions")] == ["notes", "main"]
    assert person("--token-file", reading, "rename", "main", "work").code == 4
    writing = in_file(tmp_path, token_of(person, "--scope", "write"), "writing")
    assert person("--token-file", writing, "rename", "main", "work").code == 0
    assert person("--token-file", writing, "fork", "work", "other").code == 0
    for words in (
        ("delete", "work"),
        ("erase", "work", "--yes", "--reason", "x"),
        ("agent", "create", "other"),
        ("room", "create", "talk", "--agent", "scout"),
        ("token", "create"),
    ):
        refused = person("--token-file", writing, *words)
        assert refused.code == 4, (words, refused.err)
    more = person.json("token", "create", "--scope", "read", "--allow", "session:rename")
    assert more["rights"] == [{"allow": ["*:read", "session:rename"], "deny": []}]


def test_an_agent_answers_a_token_that_writes(person: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE_KEY", CANARY)
    with serving(chat()) as server:
        stock(person, server.url, "talk")
        reading, writing = (in_file(tmp_path, token_of(person, "--scope", name), name) for name in ("read", "write"))
        assert person("--token-file", reading, "send", "--session", "talk", "Begin").code == 4
        assert person.json("--token-file", writing, "send", "--session", "talk", "Begin")["state"] == "answered"
    assert len(server.received) == 1


def test_a_token_of_a_scope_counts_longer(person: Shell) -> None:
    plain, scoped = (
        datetime.fromisoformat(person.json("token", "create", *options)["expires_at"])
        for options in ((), ("--scope", "read"))
    )
    assert timedelta(days=89) < scoped - plain < timedelta(days=90)


def test_a_command_with_a_token_may_do_what_the_token_says(person: Shell, tmp_path: Path) -> None:
    token = in_file(tmp_path, token_of(person, "--allow", "session:*", "--deny", "session:archive"))
    assert [one["label"] for one in person.json("--token-file", token, "sessions")] == [
        one["label"] for one in person.json("sessions")
    ]
    assert person("--token-file", token, "rename", "main", "work").code == 0
    refused = person("--token-file", token, "archive", "work")
    assert refused.code == 4
    assert "session:archive" in refused.err
    assert person("--token-file", token, "tag", "add", "work", "x").code == 4
    assert person("archive", "work").code == 0


def test_a_token_for_an_agent_reads_what_the_agent_may(person: Shell, tmp_path: Path) -> None:
    token = in_file(tmp_path, token_of(person, "--as", "scout"))
    assert person.json("--token-file", token, "token", "show")["chain"] == ["human:ann", "agent:scout"]
    assert [one["label"] for one in person.json("--token-file", token, "sessions")] == ["notes"]
    assert person("--token-file", token, "read", "main").code == 3
    assert person("token", "create", "--as", "nobody").code == 3
    narrower = in_file(
        tmp_path, person.json("token", "attenuate", token, "--deny", "session:read(notes)")["token"], "narrower"
    )
    assert person.json("--token-file", narrower, "sessions") == []


def test_the_variable_gives_a_token_and_an_empty_one_gives_nothing(
    person: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, token_of(person, "--allow", "session:read(notes)"))
    assert [one["label"] for one in person.json("sessions")] == ["notes"]
    assert person("rename", "notes", "work").code == 4
    monkeypatch.setenv(TOKEN_VARIABLE, "")
    refused = person("sessions")
    assert refused.code == 4
    assert TOKEN_VARIABLE in refused.err


def test_a_descriptor_gives_a_token_that_is_read_once(person: Shell, tmp_path: Path) -> None:
    token = token_of(person, "--allow", "session:read(notes)")
    reading, writing = os.pipe()
    os.write(writing, token.encode())
    os.close(writing)
    try:
        narrower = person.json("--token-file", f"/dev/fd/{reading}", "token", "attenuate", "--expires", "5m")
    finally:
        os.close(reading)
    file = in_file(tmp_path, narrower["token"])
    assert [one["label"] for one in person.json("--token-file", file, "sessions")] == ["notes"]
    assert person("--token-file", str(tmp_path / "nothing"), "sessions").code == 7


def test_no_command_acts_with_more_than_the_token(person: Shell, tmp_path: Path) -> None:
    token = in_file(tmp_path, token_of(person, "--allow", "session:read"))
    for words in (
        ("agent", "create", "other"),
        ("session", "create", "other"),
        ("erase", "main", "--yes", "--reason", "x"),
        ("session", "promote", "main", "x"),
        ("session", "unify", "notes", "--into", "main"),
        ("secrets", "--ignore", "0" * 16),
        ("move", "main", "notes"),
    ):
        refused = person("--token-file", token, *words)
        assert refused.code == 4, (words, refused.err)
    for command in (
        ("credential", "list"),
        ("trust",),
        ("token", "create"),
        ("token", "revoke", "0" * 32),
        ("token", "list-revoked"),
        ("token", "rotate"),
        ("import", "--background"),
    ):
        refused = person("--token-file", token, *command)
        assert refused.code == 4, (command, refused.err)
        assert "may not" in refused.err
    assert person("--as", "scout", "--token-file", token, "sessions").code == 5
    assert person("--token-file", token, "agent", "create", "other", "--as", "scout").code == 2


def test_the_examples_of_the_page_work(person: Shell) -> None:
    page = (Path(__file__).parents[2] / "docs" / "permissions.md").read_text().partition("\n## Tokens\n")[2]
    lines = re.findall(r"^\$ (.*)$", page.split("```console\n")[1].split("```")[0], re.MULTILINE)
    assert len(lines) == 5
    assert [run_example(person, line).code for line in lines] == [0] * 5


def test_no_tool_reads_the_root_key_in_a_workspace_that_contains_it(person: Shell, tmp_path: Path) -> None:
    token_of(person)
    with open_ledger(person.folder / ".weft" / "ledger.db") as ledger:
        workspace = WorkspaceFolder(tmp_path, withheld=protected_places(ledger.path).paths)
    for name in (ROOT_KEY_FILE, REVOKED_FILE):
        with pytest.raises(ToolFailure, match="not for tools"):
            workspace.resolve(f"config/weft/{name}")


def test_only_the_call_says_in_whose_name_a_ledger_is_opened() -> None:
    cli = Path(command_line.__file__).parent
    naming = {file.name for file in cli.rglob("*.py") if ".acting_as(" in file.read_text()}
    assert naming == {"command_line.py", "mcp_servers.py"}  # the second takes rights away from whom the call names


def test_a_background_import_is_the_owners_alone(person: Shell) -> None:
    assert person("--as", "scout", "import", "--background").code == 4


def test_an_attenuated_token_is_revoked_with_the_one_it_was_made_from(person: Shell, tmp_path: Path) -> None:
    made = person.json("token", "create", "--expires", "2h")
    token = in_file(tmp_path, made["token"])
    narrower = tmp_path / "narrower"
    answer = person.json(
        "--token-file", token, "token", "attenuate", "--as", "scout", "--expires", "5m", "--out", str(narrower)
    )
    assert "token" not in answer
    assert stat.S_IMODE(narrower.stat().st_mode) == 0o600
    assert answer["ids"][0] == made["id"]
    assert answer["expires_at"] < made["expires_at"]
    assert person.json("--token-file", str(narrower), "sessions")
    assert person.json("token", "revoke", made["id"])["id"] == made["id"]
    for file in (token, str(narrower)):
        refused = person("--token-file", file, "sessions")
        assert refused.code == 4
        assert "revoked" in refused.err
        assert person.json("token", "show", file)["state"] == "revoked"
    assert [one["id"] for one in person.json("token", "list-revoked")] == [made["id"]]
    assert person("token", "revoke", "--file", str(narrower)).code == 0
    assert person("token", "revoke", "abc").code == 5
    assert person("token", "revoke").code == 2


def test_a_token_that_was_revoked_elsewhere_is_refused_by_the_ledger(
    person: Shell, config: Path, tmp_path: Path
) -> None:
    made = person.json("token", "create")
    token = in_file(tmp_path, made["token"])
    assert person("token", "revoke", made["id"]).code == 0
    (config / REVOKED_FILE).unlink()
    refused = person("--token-file", token, "sessions")
    assert (refused.code, "revoked" in refused.err) == (4, True)


def test_an_invited_person_is_given_a_link(person: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert person("human", "invite", "ben").code == 3
    person.json("human", "create", "ben")
    invited = person.json("human", "invite", "ben", "--url", "https://weft.example.com/")
    assert re.fullmatch(r"https://weft\.example\.com/sign-in/[\w-]{43}", invited["url"])
    assert person("human", "invite", "ben").out.startswith("http://127.0.0.1:8420/sign-in/")
    assert person("--as", "scout", "human", "invite", "ben").code == 4
    monkeypatch.setenv(TOKEN_VARIABLE, token_of(person))
    assert person("human", "invite", "ben").code == 4


def test_a_new_key_leaves_older_tokens_valid_unless_they_are_forgotten(
    person: Shell, config: Path, tmp_path: Path
) -> None:
    first = in_file(tmp_path, token_of(person))
    private = json.loads((config / ROOT_KEY_FILE).read_text())["private_key"]
    assert person.json("token", "rotate") == {"key": 2, "keys": [1, 2]}
    assert private not in (config / ROOT_KEY_FILE).read_text()
    second = in_file(tmp_path, token_of(person), "second")
    assert [person.json("token", "show", file)["key"] for file in (first, second)] == [1, 2]
    assert person.json("token", "rotate", "--forget") == {"key": 3, "keys": [3]}
    for file in (first, second):
        assert person("--token-file", file, "sessions").code == 4


def test_the_root_key_is_private_and_shown_nowhere(person: Shell, config: Path, tmp_path: Path) -> None:
    answers = [person("token", "create"), person("token", "create", "--json")]
    key = config / ROOT_KEY_FILE
    private = json.loads(key.read_text())["private_key"]
    for name in (ROOT_KEY_FILE, PUBLIC_KEYS_FILE):
        assert stat.S_IMODE((config / name).stat().st_mode) == 0o600
    os.chmod(key, 0o644)
    answers.append(person("token", "create"))
    assert answers[-1].code == 5
    os.chmod(key, 0o600)
    key.write_text(json.dumps({"number": 1, "private_key": private + "zz"}))
    answers.append(person("token", "create"))
    key.write_text(json.dumps({"number": private}))
    answers.append(person("token", "create"))
    assert [answer.code for answer in answers] == [0, 0, 5, 5, 5]
    assert not any(private in answer.out + answer.err for answer in answers)


def test_a_list_of_revoked_tokens_that_cannot_be_read_refuses_all(person: Shell, config: Path, tmp_path: Path) -> None:
    token = in_file(tmp_path, token_of(person))
    (config / REVOKED_FILE).write_text("{")
    assert person("--token-file", token, "sessions").code == 5


def test_a_token_as_an_argument_is_refused_without_showing_it(person: Shell, tmp_path: Path) -> None:
    token = token_of(person)
    for words in (("token", "show", token), ("token", "attenuate", token), ("token", "revoke", token)):
        refused = person(*words)
        assert refused.code == 5
        assert token[:40] not in refused.err + refused.out
    changed = in_file(tmp_path, token[:-4] + "AAAA")
    refused = person("--token-file", changed, "sessions")
    assert refused.code == 4
    assert token[:40] not in refused.err
    assert person("token", "create", "--expires", "soon").code == 2
    shown = person("token", "show", in_file(tmp_path, token_of(person, "--allow", "tool:*", "--deny", "tool:shell")))
    assert "tool:* but tool:shell" in shown.out
    assert "human:ann" in shown.out
