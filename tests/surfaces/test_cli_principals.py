"""`weft log`, `weft show` and `weft audit` say on whose behalf something was done, where somebody acted for others; and
`weft --as NAME` finds the private agents that work for whoever that is."""

import pytest

import weft as library
from tests.surfaces.shell import Shell
from weft.kernel.authority import LOCAL, Principal, PrincipalKind
from weft.programs import Programs


@pytest.fixture
def turns(weft: Shell) -> tuple[str, str]:
    """A turn that an agent ran for a session that acts for a person, and one that it ran for itself."""
    with library.open(weft.folder / ".weft" / "ledger.db") as ledger:
        Programs(ledger).create("human", "Ann Other", {})
        Programs(ledger).create("agent", "scout", {})
        ledger.create_session("worker")
        person, worker = Principal(PrincipalKind.HUMAN, "Ann Other"), Principal(PrincipalKind.SESSION, "worker")
        chain = LOCAL.delegate(person).delegate(worker)
        first = ledger.acting_as(chain).record_turn(session="main", query="q", response="r", persona="scout").id
        return first, ledger.record_turn(session="main", query="q2", response="r2", persona="scout").id


def test_show_names_those_for_whom_a_turn_was_run(weft: Shell, turns: tuple[str, str]) -> None:
    first, second = turns
    assert "For:     worker for Ann Other for local\n" in weft("show", first).out
    assert "For:" not in weft("show", second).out
    assert weft.json("show", first)["on_behalf_of"] == ["worker", "Ann Other", "local"]
    assert "on_behalf_of" not in weft.json("show", second)


def test_log_names_them_too(weft: Shell, turns: tuple[str, str]) -> None:
    assert weft("log").out.count("For:   worker for Ann Other for local\n") == 1
    newest, oldest = weft.json("log")
    assert ("on_behalf_of" in newest, oldest["on_behalf_of"]) == (False, ["worker", "Ann Other", "local"])


def test_the_audit_of_events_gives_their_ids(weft: Shell, turns: tuple[str, str]) -> None:
    with library.open(weft.folder / ".weft" / "ledger.db") as ledger:
        ids = [ledger.session("worker").id, Programs(ledger).get("Ann Other").id, "local"]
        agent = Programs(ledger).get("scout").id
    assert " for ".join([agent, *ids]) in weft("audit", "--events").out
    deeds = weft.json("audit", "--events", "--actor", "scout")
    assert {tuple(deed["on_behalf_of"]) for deed in deeds} == {tuple(ids), ()}


def test_a_private_agent_is_shared_unshared_and_made_public(weft: Shell) -> None:
    for person in ("ann", "bob"):
        weft("human", "create", person)
    weft("agent", "create", "diarist", "--set", "visibility=private", "--as", "ann")
    assert weft("--as", "bob", "agent", "status", "diarist").code != 0
    assert weft("--as", "bob", "agent", "list").out == ""
    shared = weft.json("agent", "share", "diarist", "bob", "--as", "ann")
    assert (shared["createdBy"], shared["sharedWith"], shared["config"]["visibility"]) == ("ann", ["bob"], "private")
    assert "works for  ann, bob" in weft("--as", "bob", "agent", "status", "diarist").out
    assert "may not configure" in weft("agent", "visibility", "diarist", "public", "--as", "bob").err
    assert "sharedWith" not in weft.json("agent", "unshare", "diarist", "bob", "--as", "ann")
    refused, missing = (weft("--as", "bob", "agent", "pause", name).err for name in ("diarist", "nobody"))
    assert refused.replace("diarist", "nobody") == missing
    assert "works for  everybody" in weft("agent", "visibility", "diarist", "public", "--as", "ann").out
    assert "diarist" in weft("--as", "bob", "agent", "list").out
    history = weft.json("program", "history", "diarist")
    assert [change["kind"] for change in history][:3] == ["agent_configured", "agent_unshared", "agent_shared"]
