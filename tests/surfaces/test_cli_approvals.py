"""Tool calls that wait for people, on the command line: listed, shown whole, granted once, refused."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.surfaces.approving import opened, waiting
from tests.surfaces.shell import Shell, on_terminal, running
from tests.surfaces.test_cli_docs import run_example
from weft.kernel.contents import dumps
from weft.ledger.api import Runs
from weft.surfaces.cli.work.approvals import EXACTLY, waiting_words

PERMISSIONS = (Path(__file__).parents[2] / "docs" / "permissions.md").read_text()
PAGE = PERMISSIONS.partition("\n## Approvals\n")[2].partition("\n## ")[0]
ID_ON_THE_PAGE = "5d0c6f4a1b2e"
HOSTILE = (
    "\x1b[2J\x1b]0;safe\x07rm -rf /",
    "echo \u202e\u2066hsab\u2069",
    "a\u200b\u200d\u2060\ufeff\u00ad\u034f\ufe0f\u3164b",
    "tab\there, \u00a0 no-break, \u2028 line\u2029\r\nreturn",
    '"}\n\n{"tool":"read","exact":{}}\n  exactly (sha256 0000)\n    {"tool":"read"}',
    "back\\u202eslash \\\\ \U000e0041",
    "x" * 5000,
)


@pytest.fixture(autouse=True)
def _nobody_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker runs here: none is waited for."""
    monkeypatch.setattr("weft.surfaces.cli.work.approvals.TAKEN_UP_SECONDS", 0)


def test_what_waits_is_listed_shown_granted_and_denied(weft: Shell) -> None:
    assert "no tool call waits" in weft("approvals").err
    with opened(weft) as ledger:
        gated, message = waiting(ledger, "light", "door")
        first, second = ledger.approvals.list()
        listed = weft("approvals")
        row = listed.out.splitlines()[0].split("\t")
        assert [row[0], row[1], row[3], row[4], row[7]] == [first.id[:12], "open", "main", "light", "because"]
        assert "weft approve ID" in listed.err
        assert [one["id"] for one in weft.json("approvals", "--session", "main")] == [first.id, second.id]
        assert weft.json("approvals", first.id[:8])["bound"] == first.plan_digest
        assert weft("approvals", first.id, "--all").code == 2
        shown = weft("approve", first.id[:12], "--reason", "it is dark", "--yes")
        assert (shown.code, "  | switch quiet" in shown.out) == (0, True), shown.err
        assert shown.out.splitlines()[-1] == f"approval {first.id[:12]} is granted"
        answered = weft.json("reject", second.id, "--reason", "it is cold")
        assert (answered["state"], answered["reason"], answered["proposed"]) == ("denied", "it is cold", [])
        asyncio.run(gated.serve(message))
        assert [gated.tools[name].ran for name in ("light", "door")] == [["quiet"], []]
        assert weft("approvals").out == ""
        assert len(weft("approvals", "--all").out.splitlines()) == 2
        doubled = weft("approve", first.id)
        assert (doubled.code, "granted already" in doubled.err) == (4, True), doubled
        assert weft("approve", "abcdef012345").code == 3
        assert weft("approve", first.id, "--rule", "--session-scope").code == 2


@pytest.mark.parametrize("verb", ["approve", "reject"])
def test_without_an_id_what_waits_is_listed_and_nothing_is_answered(weft: Shell, verb: str) -> None:
    nothing = weft(verb)
    assert (nothing.code, "no tool call waits" in nothing.err) == (4, True), nothing
    with opened(weft) as ledger:
        waiting(ledger, "light", "door")
        listed = weft(verb)
        ids = [one.id for one in ledger.approvals.list()]
        assert (listed.code, [line.split("\t")[0] for line in listed.out.splitlines()]) == (2, [id[:12] for id in ids])
        assert "`weft approve ID` shows and allows one, `weft reject ID` refuses it" in listed.err
        assert [one["id"] for one in weft(verb, "--json").json] == ids
        assert {one.state for one in ledger.approvals.list()} == {"open"}


def test_nothing_is_allowed_where_nobody_says_yes(weft: Shell) -> None:
    with opened(weft) as ledger:
        waiting(ledger, "light")
        (approval,) = ledger.approvals.list()
        assert weft("human", "create", "ann", "--permission", "approve", "--permission", "session:read").code == 0
        for words in (("approve",), ("human", "approve", "ann")):
            for more in ((), ("--json",)):
                refused = weft(*words, approval.id, *more)
                assert (refused.code, "say --yes" in refused.err) == (4, True), refused
        code, shown = on_terminal(weft.folder, "approve", approval.id, typed="n\n")
        assert (code, "allow exactly this?" in shown, "nothing was changed" in shown) == (4, True, True), shown
        assert ledger.approvals.get(approval.id).state == "open"
        assert weft("approve", approval.id, "--yes").code == 0
        code, shown = on_terminal(weft.folder, "approve", approval.id, typed="y\n")
        assert (code, "granted already" in shown, "allow exactly" in shown) == (4, True, False), shown


def test_whoever_answers_is_told_where_nobody_works_on_the_turn(weft: Shell) -> None:
    hint = "no process works on the turn: `weft broker` goes on with it"
    with opened(weft) as ledger:
        waiting(ledger, "light", "door")
        light, door = ledger.approvals.list()
        assert not Runs(ledger).is_left(light.turn)  # it waits for people
        assert hint in weft("approve", light.id, "--yes").err
        assert Runs(ledger).is_left(light.turn)
        writer = Runs(ledger).adopt(light.turn)
        assert writer is not None
        assert hint not in weft("reject", door.id).err
        writer.leave()
        assert Runs(ledger).is_left(light.turn)


def test_a_broker_says_that_people_are_waited_for(weft: Shell) -> None:
    with opened(weft) as ledger:
        waiting(ledger, "light", "door")
    with running(weft.folder, "broker", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as broker:
        assert broker.stderr is not None
        words = b"2 tool calls wait for a person: `weft approvals` lists what waits\n"
        assert broker.stderr.readline() == words
        broker.send_signal(signal.SIGTERM)
        assert broker.wait() == 0


def displayed(out: str) -> bytes:
    """The bytes that the displayed document stands for: read behind the last mark, as JSON."""
    lines = out.split("\n")
    place = max(number for number, line in enumerate(lines) if line.startswith(EXACTLY))
    return dumps(json.loads(lines[place + 1]))


def test_what_is_displayed_decodes_to_exactly_the_bound_bytes(weft: Shell) -> None:
    worlds = ["".join(HOSTILE[:4]), "".join(HOSTILE[4:]), "plain"]
    with opened(weft) as ledger:
        waiting(ledger, "light", "door", "send", worlds=worlds)
        approvals = ledger.approvals.list()
    for approval in approvals:
        shown = weft("approvals", approval.id[:12]).out
        assert sha256(displayed(shown)).hexdigest() == approval.plan_digest
        assert all(line.isprintable() for line in shown.split("\n"))
        assert not any(sign in shown for sign in "\u200b\u200d\u034f\ufe0f\u3164\u00a0\u2066\u202e")
        headings = [line for line in shown.split("\n") if line.startswith(EXACTLY)]
        assert headings == [f"{EXACTLY} (sha256 {approval.plan_digest})"]


def test_a_yes_for_the_session_and_a_no_that_ends_the_turn(weft: Shell) -> None:
    with opened(weft) as ledger:
        gated, message = waiting(ledger, "light", "door")
        first, second = ledger.approvals.list()
        assert "is granted for this session" in weft("approve", first.id, "--session-scope", "--yes").out
        assert weft.json("reject", second.id, "--abort")["state"] == "denied"
        asyncio.run(gated.serve(message))
        assert gated.bench.interruptions(message) == ["approval_denied"]
        assert ledger.approvals.get(first.id).scope == "session"


def test_a_rule_is_proposed_with_the_yes_and_nothing_is_in_force_by_it(weft: Shell) -> None:
    with opened(weft) as ledger:
        waiting(ledger, "light")
        (approval,) = ledger.approvals.list()
        answered = weft("approve", approval.id, "--rule", "--yes")
        assert answered.code == 0, answered.err
        (policy,) = ledger.policies.list()
        assert f"weft policy show {policy.id}" in answered.err
        assert f"weft policy activate {policy.id}" in answered.err
        assert (policy.state, policy.name) == ("proposal", "default")
        assert '    "light(quiet)",\n' in (policy.source or "")
        assert (policy.docstring or "").startswith("The approval policy that is in force")
        assert ledger.approvals.get(approval.id).scope == "rule"
        assert ledger.policies.active() is None


def test_where_no_rule_says_exactly_that_nothing_is_granted(weft: Shell) -> None:
    with opened(weft) as ledger:
        waiting(ledger, "light", worlds=["rm *", "", ""])
        (approval,) = ledger.approvals.list()
        refused = weft("approve", approval.id, "--rule", "--yes")
        assert (refused.code, "no rule says exactly" in refused.err) == (4, True), refused
        assert ledger.approvals.get(approval.id).state == "open"
        assert ledger.policies.list() == []


def test_an_agent_and_a_person_without_the_right_answer_nothing(weft: Shell) -> None:
    assert weft("agent", "create", "ada").code == 0
    assert weft("human", "create", "bob", "--permission", "session:read").code == 0
    with opened(weft) as ledger:
        waiting(ledger, "light")
        (approval,) = ledger.approvals.list()
        for name in ("ada", "bob"):
            assert weft("--as", name, "approve", approval.id, "--yes").code != 0
            assert weft("--as", name, "reject", approval.id).code != 0
        assert ledger.approvals.get(approval.id).state == "open"


def test_the_page_shows_what_the_commands_say(weft: Shell) -> None:
    def plain(text: str) -> str:
        text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+]0000", "TIME", text)
        return re.sub(r"\(\d+ s ago\)", "AGE", re.sub(r"sha256 [0-9a-f]+", "sha256 HASH", text))

    with opened(weft) as ledger:
        waiting(ledger, "light")
        id = ledger.approvals.list()[0].id[:12]
        blocks = "".join(re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
        for line, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", blocks, re.MULTILINE):
            answer = run_example(weft, line.replace(ID_ON_THE_PAGE, id))
            assert answer.code == 0, answer.err
            assert plain(answer.out).replace(id, ID_ON_THE_PAGE) == plain(output)
        assert ledger.approvals.get(id).reason == "it is dark"


def test_people_answer_the_same_requests_by_both_commands(weft: Shell) -> None:
    assert weft("human", "create", "ann", "--permission", "approve", "--permission", "session:read").code == 0
    assert weft("human", "create", "bob", "--permission", "session:read").code == 0
    other = weft.json("human", "ask", "ann", "May I?")["id"]
    with opened(weft) as ledger:
        waiting(ledger, "light", "door")
        first, second = ledger.approvals.list()
        listed = weft.json("human", "requests", "ann", "--status", "pending")
        assert {one["id"] for one in listed} == {other, first.id, second.id}
        assert "'light'" in next(one["text"] for one in listed if one["id"] == first.id)
        assert weft.json("human", "requests", "bob") == []
        assert first.id[:12] in weft("human", "requests").out
        answered = weft("human", "approve", "ann", first.id[:12], "--reason", "fine", "--yes")
        assert (answered.code, "is granted" in answered.out) == (0, True), answered.err
        granted = ledger.approvals.get(first.id)
        assert (granted.answered_by, granted.reason) == ("ann", "fine")
        assert weft("human", "approve", "bob", second.id, "--yes").code == 4
        assert weft.json("human", "reject", "ann", second.id)["state"] == "denied"
        assert [one["id"] for one in weft.json("human", "requests", "ann", "--status", "pending")] == [other]
        assert weft("approve", first.id).code == 4
    assert weft.json("human", "approve", "ann", other)["status"] == "approved"


def test_what_tells_of_a_request_has_no_passwords_in_it(weft: Shell) -> None:
    with opened(weft) as ledger:
        waiting(ledger, "light")
        (approval,) = ledger.approvals.list()
    why = "it runs curl --token s3cret https://ann:s3cret@host?password=s3cret"
    assert "s3cret" not in waiting_words(replace(approval, rationale=why))
