"""Commands on a ledger that a server answers for: the same JSON, the same lines and exit codes as on the ledger."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.surfaces.shell import Answer, Shell, running
from weft.surfaces.server.route_table import ROUTES

PROVIDER = ("--kind", "openai", "--base-url", "https://provider.example/v1")
READING = (
    "log main",
    "log",
    "log main -n 1",
    "tree main",
    "show main~1",
    "show main",
    "read main",
    "read",
    "search hello",
    "search again -n 1",
    "search nothing",
)
"""What people are shown of these takes more of the ledger: through a server it is JSON."""
REPORTS = (
    "context main",
    "context main~1 --original",
    "diff main~1 main",
    "files /nothing",
    "blame /nothing",
    "usage",
    "projects",
    "story",
    "audit",
    "stats",
)
"""What people are shown of these is theirs to test: here their JSON is compared."""
COMMANDS = (
    "show nothing", "log nothing",
    "sessions", "sessions -n 1", "sessions --origin nowhere", "session create made", "session configure made --set a=1",
    "session pause made", "session resume made", "session complete made",
    "delete made", "restore made",
    "rename main first", "rename nothing x", "alias first second", "alias second", "alias",
    "session history first", "reflog first", "reflog",
    "fork first~1 side", "fork first", "merge side --into first --text found", "cherry-pick side --onto first",
    "summarize side --into first --text short", "move first first~1", "undo side", "undo side --redo", "settle first",
    "session promote side", "archive side", "archive side --undo",
    "session unify first side", "fork first copied",
    f"provider create p {' '.join(PROVIDER)}", f"provider create p {' '.join(PROVIDER)}",
    f"provider create k {' '.join(PROVIDER)} --key k1", f"provider create k {' '.join(PROVIDER)} --key k1",
    "provider list", "provider show p", "provider configure p --base-url https://other.example/v1",
    "model create m --backend gpt --provider p", "model list", "model show m", "model configure m --set temperature=1",
    "program list", "program get m", "program configure m --set temperature=0 --expected 1",
    "program configure m --set temperature=0 --expected 9", "program history m", "program diff m",
    "program revert m --to 1", "program publish m", "program deprecate m", "code list", "info list",
    "info validate nothing", "info activate nothing", "info archive nothing",
    "tag add session:first urgent", "tag list session:first", "nodes urgent", "tag remove session:first urgent",
    "trigger create daily --cron '0 9 * * *' --session first --message hello", "trigger list", "trigger show daily",
    "trigger configure daily --message other", "trigger history daily", "trigger pause daily", "trigger resume daily",
    "trigger delete daily", "program delete m", "program get nothing",
)  # fmt: skip
CHANGING = re.compile(
    r"(?<=next\":\")[^\"]+|[0-9A-HJKMNP-TV-Z]{26}|[0-9a-f]{40,64}|\b[0-9A-HJKMNP-TV-Z]{6,8}\b|[^\"\s]*(?:local|remote)\.db"
)
TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+Z| [+-]\d{4})")


def as_words(line: str) -> list[str]:
    import shlex

    return shlex.split(line)


def in_order(text: str) -> str:
    """The same without times, and with ids and digests by the order in which they come."""
    places: dict[str, str] = {}
    return CHANGING.sub(lambda found: places.setdefault(found[0], f"<{len(places)}>"), TIME.sub("<time>", text))


@contextmanager
def served(folder: Path, ledger: Path) -> Iterator[str]:
    """The address of a server of this ledger."""
    arguments = ("--ledger", str(ledger), "serve", "--port", "0", "--no-broker", "--json")
    with running(folder, *arguments, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        yield json.loads(server.stdout.readline())["url"]


class TwoLedgers:
    """Two ledgers with the same history: one asked itself, the other through a server."""

    def __init__(self, weft: Shell, local: Path, url: str, token: Path) -> None:
        self._weft, self._local, self.url, self._token = weft, str(local), url, str(token)

    def local(self, *arguments: str) -> Answer:
        return self._weft("--ledger", self._local, *arguments)

    def through_server(self, *arguments: str) -> Answer:
        return self._weft("--token-file", self._token, "--ledger", self.url, *arguments)


@pytest.fixture
def ledgers(weft: Shell, tmp_path: Path) -> Iterator[TwoLedgers]:
    local, remote, token = tmp_path / "local.db", tmp_path / "remote.db", tmp_path / "token"
    for path in (local, remote):
        assert weft("init", str(path)).code == 0
        for query in ("hello", "again"):
            turn = {"session": "main", "query": query, "response": f"re: {query}"}
            assert weft("--ledger", str(path), "record", stdin=json.dumps(turn)).code == 0
    token.write_text(weft("token", "create").out.split()[-1])
    with served(tmp_path, remote) as url:
        yield TwoLedgers(weft, local, url, token)


@pytest.mark.slow("runs every command with a route twice")
def test_each_command_answers_the_same_json_and_exit_code(ledgers: TwoLedgers) -> None:
    for line in (*READING, *REPORTS, *COMMANDS):
        answers = ledgers.local(*as_words(line), "--json"), ledgers.through_server(*as_words(line), "--json")
        assert answers[0].code == answers[1].code, (line, answers)
        assert in_order(answers[0].out) == in_order(answers[1].out), line
        assert in_order(answers[0].err) == in_order(answers[1].err), line


@pytest.mark.slow("runs every command with a route twice")
def test_each_command_shows_the_same(ledgers: TwoLedgers) -> None:
    for line in COMMANDS:
        answers = ledgers.local(*as_words(line)), ledgers.through_server(*as_words(line))
        assert answers[0].code == answers[1].code, line
        assert in_order(answers[0].out) == in_order(answers[1].out), line
        assert in_order(answers[0].err) == in_order(answers[1].err), line


def test_what_takes_more_of_the_ledger_to_be_shown_comes_as_json(ledgers: TwoLedgers) -> None:
    for line in READING:
        asked, told = ledgers.through_server(*as_words(line), "--json"), ledgers.through_server(*as_words(line))
        assert (told.code, told.out) == (0, asked.out), line
        assert "as JSON" in told.err


UNCOMPARED = frozenset(
    """
agent assign | agent configure | agent create | agent list | agent pause | agent reset
agent share | agent show | agent stop | agent unshare | agent visibility | approvals
approve | human create | human list | human presence | human show | reject
room add | room archive | room create | room decline | room fork | room invitations
room invite | room leave | room list | room profile | room read | room remove
room restore | room show | room title | task assign | task configure | task create
task fail | task list | task show | task start | toolset create | toolset delete
toolset edit | toolset list | toolset show
""".replace("\n", " | ")
    .strip(" |")
    .split(" | ")
)
"""Commands with a route that are not compared yet. This list only becomes shorter."""


def test_every_command_with_a_route_is_compared() -> None:
    compared = {" ".join(as_words(line)[:count]) for line in (*READING, *REPORTS, *COMMANDS) for count in (1, 2)}
    assert {route.verb.name for route in ROUTES} - compared == UNCOMPARED


def test_a_command_without_a_route_says_which_have_one(weft: Shell) -> None:
    for line in ("verify", "backup there.db", "checkout main --to there"):
        refused = weft("--ledger", "http://127.0.0.1:1", *as_words(line), "--json")
        assert (refused.code, refused.error["code"]) == (7, "unsupported"), line
        assert "sessions" in refused.error["hint"], line
    assert weft("--ledger", "http://127.0.0.1:1", "help").code == 0


def test_a_server_takes_who_acts_from_the_token(weft: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "http://127.0.0.1:1"
    assert weft("--ledger", url, "sessions", "--json").error["code"] == "token_refused"
    monkeypatch.setenv("WEFT_TOKEN", "made-elsewhere")
    assert weft("--ledger", url, "--as", "ann", "sessions", "--json").error["code"] == "invalid_input"
    unreachable = weft("sessions", "--ledger", url, "--json")
    assert (unreachable.code, unreachable.error["code"]) == (7, "store_error")
    assert weft("program", "create", "--ledger", "http://10.0.0.1", "--json").code == 2
    clear = weft("--ledger", "http://10.0.0.1", "program", "list", "--json")
    assert (clear.code, clear.error["code"]) == (5, "invalid_input")


@pytest.mark.parametrize(
    "line",
    [
        "token create",
        f"token revoke {'0' * 32}",
        "token rotate",
        "key create k",
        "trust",
        "mcp list",
        "clone a.db b.db",
    ],
)
def test_a_token_does_here_what_it_may_also_where_a_server_is_named(
    weft: Shell, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """Else a holder of any token would make one with all rights by naming a server that nobody asks."""
    weft("init", "a.db")
    monkeypatch.setenv("WEFT_TOKEN", weft("--ledger", "a.db", "token", "create", "--scope", "read").out.strip())
    for ledger in ("a.db", "http://127.0.0.1:9"):
        refused = weft("--ledger", ledger, *as_words(line), "--json")
        assert refused.code != 0
        assert refused.error["code"] in ("not_allowed", "unsupported"), ledger
    monkeypatch.setenv("WEFT_TOKEN", "made-elsewhere")
    assert weft("--ledger", "http://127.0.0.1:9", *as_words(line), "--json").error["code"] == "token_refused"


def test_a_token_for_a_server_opens_no_ledger_here(weft: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    weft("init", "a.db")
    monkeypatch.setenv("WEFT_TOKEN", "made-elsewhere")
    for line in ("sessions", "session create x", "stats", "mcp list", "session create x --as ann"):
        refused = weft("--ledger", "a.db", *as_words(line), "--json")
        assert refused.code != 0, line
        assert refused.error["code"] in ("token_refused", "usage"), line
