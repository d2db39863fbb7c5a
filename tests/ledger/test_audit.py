"""An audit says what was used without being allowed, what was never used, and what nobody recorded."""

from typing import Any

import pytest

from tests.ledger.histories import change, grow, kinds
from tests.ledger.imported import rich_import
from weft.kernel.clock import FixedClock
from weft.kernel.errors import InvalidInput, NotFound
from weft.ledger.api.ledger import Ledger
from weft.ledger.model import NewToolCall
from weft.ledger.reports import audit
from weft.ledger.reports.audit import AuditFinding, AuditTally, FindingKind, covers_right


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments, "result": "ok"}


def record(ledger: Ledger, *calls: dict[str, Any], session: str = "main", **turn: Any) -> str:
    return ledger.record_turn(session=session, query="q", response="r", tool_calls=list(calls), **turn).id


def told(found: list[AuditFinding]) -> list[tuple[str, str | None]]:
    return [(finding.kind.value, finding.tool or finding.right) for finding in found]


def test_an_empty_ledger_has_nothing_to_audit(ledger: Ledger) -> None:
    tally = AuditTally()
    assert list(ledger.audit.findings(tally=tally)) == []
    assert (tally.turns, tally.calls, tally.problems) == (0, 0, 0)


def test_a_tool_that_was_not_there_is_reported_with_its_call(ledger: Ledger) -> None:
    turn = record(ledger, call("Read"), call("Bash", command="ls"), tools_available=["Read", "Write"])
    found = list(ledger.audit.findings())
    assert told(found) == [("tool_not_available", "Bash"), ("tool_unused", "Write")]
    assert found[0].turn_id == turn
    assert found[0].session == "main"
    assert found[0].call_id == ledger.tool_calls(turn)[1].id
    assert found[0].severity == "problem"


def test_rights_are_held_against_what_was_granted(ledger: Ledger) -> None:
    record(
        ledger,
        call("Bash", command="git status"),
        call("Bash", command="rm -rf ."),
        permissions_granted=["Bash(git *)", "Bash(make *)", "repo:read", "repo:write"],
        permissions_used=["repo:read", "repo:admin"],
    )
    assert told(list(ledger.audit.findings())) == [
        ("tool_not_permitted", "Bash"),
        ("right_not_granted", "repo:admin"),
        ("right_unused", "Bash(make *)"),
        ("right_unused", "repo:write"),
    ]


def test_a_tool_that_an_unused_right_covers_is_told_of_once(ledger: Ledger) -> None:
    record(
        ledger,
        call("read", path="a"),
        tools_available=["read", "edit", "shell", "mcp/a", "mcp/b"],
        permissions_granted=["read", "edit", "shell(git *)", "mcp/*"],
    )
    assert told(list(ledger.audit.findings())) == [
        ("right_unused", "edit"),
        ("right_unused", "shell(git *)"),
        ("right_unused", "mcp/*"),
        ("tool_unused", "shell"),
    ]


def test_what_nobody_recorded_is_not_known_and_never_fine(ledger: Ledger) -> None:
    tally = AuditTally()
    record(ledger, call("Bash"))
    record(ledger, permissions_granted=["repo:read"])
    found = list(ledger.audit.findings(tally=tally))
    assert [finding.kind for finding in found] == [FindingKind.NOT_KNOWN, FindingKind.USE_NOT_RECORDED]
    assert (tally.turns, tally.calls, tally.allowed, tally.not_known) == (2, 1, 0, 1)


def test_unused_rights_are_gathered_by_turn_session_or_persona(ledger: Ledger) -> None:
    both = {"tools_available": ["a", "b"], "persona": "ann"}
    record(ledger, call("a"), session="one", **both)
    record(ledger, call("b"), session="two", **both)
    record(ledger, session="two", **both)
    by_session = list(ledger.audit.findings())
    assert [(f.session, f.tool, f.turns) for f in by_session] == [("one", "b", 1), ("two", "a", 2)]
    assert list(ledger.audit.findings(by="persona")) == []
    by_turn = list(ledger.audit.findings(by="turn"))
    assert [f.tool for f in by_turn] == ["b", "a", "a", "b"]
    assert all(f.turn_id for f in by_turn)
    with pytest.raises(InvalidInput):
        ledger.audit.findings(by="week")


def test_an_audit_can_be_limited(ledger: Ledger, clock: FixedClock) -> None:
    first = record(ledger, call("x"), session="one", persona="ann", tools_available=[])
    clock.tick(60_000)
    later = clock.now_ms()
    second = record(ledger, call("y"), session="two", persona="bob", tools_available=[])
    grow(ledger, "two", "idle")

    def turns(*names: str, **only: Any) -> list[str | None]:
        return [finding.turn_id for finding in ledger.audit.findings(*names, **only) if finding.severity == "problem"]

    assert turns() == [first, second]
    assert turns("one") == turns(first) == turns(actor="ann") == turns(tool="x") == turns(until=later) == [first]
    assert turns("two") == turns("two~1") == turns(actor="bob") == turns(tool="*y") == [second]
    assert turns(since=later) == [second]
    assert turns("one", second) == [first, second]
    assert turns("one", actor="bob") == []
    for wrong in ({"actor": "nobody"}, {"names": "nothing"}):
        with pytest.raises(NotFound):
            list(ledger.audit.findings(*filter(None, [wrong.get("names")]), actor=wrong.get("actor")))
    with pytest.raises(InvalidInput):
        ledger.audit.findings(colour="red")  # type: ignore[call-arg]


def test_what_importers_bring_is_told_as_the_origin_tells_it(ledger: Ledger) -> None:
    rich_import(ledger)
    tally = AuditTally()
    found = list(ledger.audit.findings(tally=tally))
    assert tally.calls > 0
    assert tally.problems == 0
    assert {finding.severity.value for finding in found} <= {"unknown", "note"}


def test_a_long_ledger_is_audited_in_pieces(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "CHUNK", 2)
    turns = [record(ledger, call("x"), session=f"s{i % 2}", tools_available=["y"]) for i in range(5)]
    found = list(ledger.audit.findings())
    assert [finding.turn_id for finding in found if finding.tool == "x"] == turns
    assert [(f.session, f.turns) for f in found if f.tool == "y"] == [("s0", 3), ("s1", 2)]


def test_arguments_that_are_gone_leave_a_call_not_known(disk: Ledger) -> None:
    record(disk, call("Bash", command="git log"), permissions_granted=["Bash(git *)"])
    change(disk.path, "DELETE FROM content WHERE CAST(bytes AS TEXT) LIKE '%git log%'")
    tally = AuditTally()
    found = list(disk.audit.findings(tally=tally))
    assert (tally.problems, tally.not_known) == (0, 1)
    assert FindingKind.NOT_KNOWN in {finding.kind for finding in found}


def test_everything_an_actor_did_comes_in_order_of_arrival(ledger: Ledger) -> None:
    turn = record(ledger, call("Bash"), persona="ann")
    grow(ledger, "main", "by nobody in particular", persona="bob")
    ledger.labels.archive("main")
    done = list(ledger.audit.actor_history("ann"))
    assert {deed.turn_id for deed in done if deed.stream.startswith("run:")} == {turn}
    assert [deed.kind for deed in done if deed.turn_id] == kinds(ledger, turn)
    assert [deed.tool for deed in done if deed.kind == "tool_call"] == ["Bash"]
    everything = list(ledger.audit.actor_history())
    assert [deed.n for deed in everything] == list(range(1, len(everything) + 1))
    assert everything[-1].kind == "session_archived"
    assert everything[-1].session_id == ledger.session("main").id
    assert {deed.n for deed in done} < {deed.n for deed in everything}
    with pytest.raises(NotFound):
        ledger.audit.actor_history("nobody")


def test_deeds_can_be_limited_in_time(ledger: Ledger, clock: FixedClock) -> None:
    grow(ledger, "main", "a")
    clock.tick(60_000)
    middle = clock.now_ms()
    grow(ledger, "main", "b")
    before, after = list(ledger.audit.actor_history(until=middle)), list(ledger.audit.actor_history(since=middle))
    assert before
    assert after
    assert [deed.n for deed in [*before, *after]] == [deed.n for deed in ledger.audit.actor_history()]


@pytest.mark.parametrize(
    ("granted", "used", "is_covered"),
    [
        ("shell", "shell(git status)", True),
        ("shell(git *)", "shell(git status)", True),
        ("shell(git *)", "shell(rm x)", False),
        ("shell(git *)", "shell", False),
        ("read", "shell(git status)", False),
        ("github/*", "github/create_issue(x)", True),
        ("repo:*", "repo:write", True),
    ],
)
def test_a_right_stands_for_the_uses_that_it_allows(granted: str, used: str, is_covered: bool) -> None:
    assert covers_right(granted, used) is is_covered


def test_the_smallest_grant_names_what_was_used_and_what_was_granted_beside_it_is_unused(ledger: Ledger) -> None:
    calls = [
        NewToolCall(name="shell", id="1", arguments={"cmd": "git status && git log -3"}, result=""),
        NewToolCall(name="read", id="2", arguments={"path": "src/a.py"}, result=""),
        NewToolCall(name="write", id="3", arguments={"path": "x" * 400, "content": "y"}, result=""),
        NewToolCall(name="write", id="4", arguments={"path": "b", "content": "y"}, result=""),
    ]
    used = ["read(src/a.py)", "shell(git log -3)", "shell(git status)", "write"]
    granted = {"layers": [{"allow": ["shell(git *)", "read", "write", "edit"]}]}
    ledger.record_turn(
        session="main", query="q", response="r", tool_calls=calls, permissions_granted=granted, permissions_used=used
    )
    (grant,) = ledger.audit.suggest("main")
    assert (grant.turns, grant.calls, list(grant.allow)) == (1, 4, used)
    findings = [(one.kind.value, one.right) for one in ledger.audit.findings()]
    assert findings == [("right_unused", "edit")]
    assert ledger.audit.suggest("main", tool="read")[0].allow == ("read(src/a.py)",)
