"""Calls that wait for a person: asked, answered once, by people alone, for exactly what was shown; and policies."""

from __future__ import annotations

from typing import Any

import pytest

import weft
from tests.ledger.histories import exported, import_into
from tests.ledger.test_inbox import begun
from weft.kernel.enums import Decision, DecisionSource, FileKind, MessageRole, MessageSource, ToolCallStatus
from weft.kernel.errors import InvalidInput, NotAllowed, NotApplicable, NotFound
from weft.kernel.events import ApprovalGranted, ApprovalRequested, EventRef, PolicyProposed, PolicyTests
from weft.ledger.api.base import store_of, writer_of
from weft.ledger.api.broker import Runs
from weft.ledger.api.ledger import Ledger
from weft.ledger.broker.inbox import (
    ApprovalAsked,
    FinishedRun,
    ModelAnswered,
    ModelAsked,
    ParkedRun,
    ToolAsked,
    ToolDecision,
    ToolEnded,
)
from weft.ledger.broker.run_writer import RunWriter
from weft.ledger.model import FileNote, LintNote, NewError, NewMessage, ToolUsePart
from weft.ledger.read.session_list import load_files
from weft.ledger.write.approvals import digest_of_source
from weft.ledger.write.transaction import Append
from weft.programs import Programs

BOUND = "ab" * 32
PASSED = PolicyTests(total=2, passed=2, failed=0)


def asking(ledger: Ledger, session: str = "main", *, expires: int | None = None) -> tuple[RunWriter, Any, str]:
    """A turn of a broker whose one call waits for a person: its writer, the event of the call, the request."""
    ledger.inbox.admit("do it", session=session)
    run, _ = begun(ledger, session)
    asked = run.record([ModelAsked(model="m")]).events[-1]
    correlation = asked.event.correlation_id  # type: ignore[attr-defined]
    said = NewMessage(role=MessageRole.ASSISTANT, content=(ToolUsePart("c1", "shell", {"cmd": "ls"}),))
    answer = ModelAnswered(request=asked.id, correlation=correlation, message=said)
    call = ToolAsked(name="shell", arguments={"cmd": "ls"}, call_id="c1", correlation=correlation)
    (*_, called) = run.record([answer, call]).events
    ask = ToolDecision(
        call=called.id, decision=Decision.ASK, by=DecisionSource.POLICY, plan_digest=BOUND, rationale="new"
    )
    request = ApprovalAsked(call=called.id, plan_digest=BOUND, shown="ls", rationale="new", expires=expires)
    events = run.record([ask, request, ParkedRun(calls=(called.id,))]).events
    return run, called, events[1].id


def ended(called: Any, status: ToolCallStatus = ToolCallStatus.OK, **fields: Any) -> ToolEnded:
    event = called.event
    return ToolEnded(call=called.id, call_id=event.call_id, correlation=event.correlation_id, status=status, **fields)


def status_in_sql(ledger: Ledger) -> str:
    """The status of the only call."""
    with ledger._store.read() as txn:
        ((status,),) = txn.sql.fetch_rows("SELECT status FROM tool_calls")
    return str(status)


def test_a_request_is_listed_and_answered_once_and_the_turn_comes_back(ledger: Ledger) -> None:
    run, called, request = asking(ledger)
    assert status_in_sql(ledger) == ledger.tool_calls(run.id)[0].status == "pending"
    (approval,) = ledger.approvals.list()
    assert (approval.id, approval.tool, approval.arguments) == (request, "shell", {"cmd": "ls"})
    assert (approval.plan_digest, approval.shown, approval.rationale, approval.session) == (BOUND, "ls", "new", "main")
    assert Runs(ledger).waiting() == []
    granted = ledger.approvals.grant(request[:8], plan_digest=BOUND, reason="it only lists")
    assert (granted.state, granted.is_used, granted.scope) == ("granted", False, "once")
    assert granted.reason == "it only lists"
    assert [one.turn for one in Runs(ledger).waiting()] == [run.id]
    for answer in (ledger.approvals.grant, ledger.approvals.deny):
        with pytest.raises(NotApplicable, match="granted already"):
            answer(request)
    writer = Runs(ledger).adopt(run.id)
    assert writer is not None
    grant = ledger.events(run.id)[-1].id
    use = ToolDecision(call=called.id, decision=Decision.ALLOW, by=DecisionSource.GRANT, plan_digest=BOUND, grant=grant)
    writer.record([use])
    assert status_in_sql(ledger) == ledger.tool_calls(run.id)[0].status == "running"
    writer.record([ended(called, result="x"), FinishedRun()])
    assert ledger.approvals.get(request).is_used
    assert [(one.decision, one.by) for one in ledger.approvals.decisions(run.id)] == [
        ("ask", "policy"),
        ("allow", "grant"),
    ]
    assert ledger.approvals.decisions(run.id)[1].approval == request
    assert list(ledger.verify()) == []


def test_an_answer_that_came_before_the_turn_was_parked_is_not_slept_through() -> None:
    with weft.open(":memory:") as ledger:
        run, called, request = asking(ledger)
        ledger.approvals.deny(request)
        writer = Runs(ledger).adopt(run.id)
        assert writer is not None
        writer.record([ParkedRun(calls=(called.id,))])  # whoever parks it again has not heard of the answer
        assert [one.turn for one in Runs(ledger).waiting()] == [run.id]


def test_what_is_late_or_means_something_else_is_refused() -> None:
    with weft.open(":memory:") as ledger:
        _, _, request = asking(ledger)
        with pytest.raises(NotApplicable, match="another call"):
            ledger.approvals.grant(request, plan_digest="cd" * 32)
        _, _, expired = asking(ledger, "other", expires=1)
        with pytest.raises(NotApplicable, match="expired"):
            ledger.approvals.grant(expired)
        with pytest.raises(NotFound):
            ledger.approvals.grant("ffffffff")


def test_a_request_is_void_when_its_call_or_its_turn_is_over() -> None:
    with weft.open(":memory:") as ledger:
        run, called, request = asking(ledger)
        writer = Runs(ledger).adopt(run.id)
        assert writer is not None
        writer.record([ended(called, ToolCallStatus.TIMEOUT, error=NewError(code="timeout", message="too late"))])
        assert ledger.approvals.get(request).state == "void"
        with pytest.raises(NotApplicable, match="void already"):
            ledger.approvals.grant(request)
        writer.record([FinishedRun()])


def test_only_people_answer() -> None:
    with weft.open(":memory:") as ledger:
        programs = Programs(ledger)
        programs.create("agent", "bot", {"permissions": {"programs": ["approve", "session:read"]}})
        programs.create("human", "ann", {"permissions": ["approve", "session:read"]})
        programs.create("human", "carl", {"permissions": ["approve"]})
        _, _, request = asking(ledger)
        with pytest.raises(NotFound):  # what they cannot read
            ledger.acting_as("carl").approvals.grant(request)
        with pytest.raises(NotAllowed, match="may not answer"):
            ledger.acting_as("bot").approvals.grant(request)
        ledger.acting_as("ann").approvals.grant(request)
        approval = ledger.approvals.get(request)
        assert (approval.state, approval.answered_by) == ("granted", "ann")


def test_a_page_is_full_where_requests_that_others_read_lie_between() -> None:
    with weft.open(":memory:") as ledger:
        Programs(ledger).create("human", "ann", {"permissions": ["session:read(mine*)"]})
        requests = [asking(ledger, session)[2] for session in ("main", "mine", "other", "mine-2")]
        ann = ledger.acting_as("ann").approvals
        assert [approval.id for approval in ann.list(limit=2)] == [requests[1], requests[3]]
        (first,) = ann.list(limit=1)
        assert [approval.id for approval in ann.list(limit=1, after=first.n)] == [requests[3]]
        with pytest.raises(InvalidInput, match="limit"):
            ann.list(limit=-1)


def test_an_answer_from_elsewhere_changes_nothing_here() -> None:
    with weft.open(":memory:") as here, weft.open(":memory:") as there:
        _, _, request = asking(here)
        import_into(there, exported(here))
        with pytest.raises(NotApplicable, match="another ledger"):
            there.approvals.grant(request)


def test_files_lints_and_strangers_words_stand_with_the_message_that_asked() -> None:
    with weft.open(":memory:") as ledger:
        run, called, request = asking(ledger)
        ledger.approvals.grant(request)
        writer = Runs(ledger).adopt(run.id)
        assert writer is not None
        files = (FileNote(kind=FileKind.WRITTEN, path="a.py", line_start=1, line_end=3),)
        lints = (LintNote(path="a.py", message="unused", start_line=2),)
        writer.record([ended(called, result="ok", files=files, lints=lints, is_untrusted=True), FinishedRun()])
        message = next(one for one in ledger.messages(run.id) if one.role == "assistant")
        with store_of(ledger).read() as txn:
            assert load_files(txn, [message.id]) == {message.id: list(files)}
            assert txn.sql.fetch_rows("SELECT start_line FROM message_lint WHERE message = ?", (message.id,)) == [(2,)]
        assert Runs(ledger).is_untrusted(run.id)
        later = ledger.record_turn(session="main", query="q", response="r").id
        assert Runs(ledger).is_untrusted(later)  # whatever comes after it
        assert not Runs(ledger).is_untrusted(ledger.record_turn(session="new", query="q", response="r").id)


def test_a_policy_is_proposed_by_anybody_and_decided_by_people() -> None:
    with weft.open(":memory:") as ledger:
        Programs(ledger).create("agent", "bot", {"permissions": {"programs": ["policy:*"]}})
        first = ledger.policies.propose("careful", "print(1)", docstring="Asks.")
        second = ledger.acting_as("bot").policies.propose("bold", "print(2)", notes="please")
        assert [(one.name, one.state) for one in ledger.policies.list()] == [
            ("careful", "proposal"),
            ("bold", "proposal"),
        ]
        assert ledger.policies.active() is None
        with pytest.raises(NotAllowed):
            ledger.acting_as("bot").policies.activate(second.id, digest=second.digest, tests=PASSED)
        with pytest.raises(NotApplicable, match="not the source"):
            ledger.policies.activate(first.id, digest=second.digest, tests=PASSED)
        with pytest.raises(NotApplicable, match="1 of 2"):
            ledger.policies.activate(first.id, digest=first.digest, tests=PolicyTests(total=2, passed=1, failed=1))
        ledger.policies.activate("careful", digest=first.digest, tests=PASSED)
        ledger.policies.activate("bold", digest=second.digest, tests=PASSED)
        assert [(one.name, one.state) for one in ledger.policies.list()] == [
            ("careful", "replaced"),
            ("bold", "active"),
        ]
        active = ledger.policies.roll_back(first.id, digest=first.digest, reason="too bold")
        assert (active.name, active.state, active.reason) == ("careful", "active", "too bold")
        third = ledger.policies.propose("worse", "print(3)")
        assert ledger.policies.reject(third.id, reason="no").state == "rejected"
        with pytest.raises(NotApplicable, match="rejected"):
            ledger.policies.activate(third.id, digest=third.digest, tests=PASSED)
        assert list(ledger.verify()) == []


def test_a_policy_goes_by_its_name_and_by_no_pattern_nor_a_letter_of_its_id() -> None:
    with weft.open(":memory:") as ledger:
        policy = ledger.policies.propose("careful", "print(1)")
        end = policy.id[-6:]
        for name in ("%", "_", end[-1], end[-5:], f"%{end}", f"_{end}", f"{end}\0x", "x" * 70_000):
            with pytest.raises(NotFound):
                ledger.policies.get(name)
        assert [ledger.policies.get(name).id for name in ("careful", end.lower(), policy.id)] == [policy.id] * 3


def test_the_fact_of_a_proposal_says_what_the_policy_tells_of_itself() -> None:
    with weft.open(":memory:") as ledger:
        policy = ledger.policies.propose("careful", "print(1)", docstring="Asks.", tests=PASSED)
        (fact,) = [each.event for each in ledger.changes() if isinstance(each.event, PolicyProposed)]
        assert (fact.policy_ref, fact.digest, fact.tests) == (policy.id, digest_of_source("print(1)"), PASSED)
        texts = [b"".join(ledger.read_content(str(ref))).decode() for ref in (fact.docstring, fact.uri)]
        assert texts == ["Asks.", "resource://approval-policy/policy.py"]


def test_an_agent_can_have_a_policy_of_its_own_and_one_from_elsewhere_is_only_read() -> None:
    with weft.open(":memory:") as ledger, weft.open(":memory:") as there:
        bot = Programs(ledger).create("agent", "bot", {}).id
        everybody = ledger.policies.propose("all", "print(1)")
        own = ledger.policies.propose("own", "print(2)", agent="bot")
        for policy in (everybody, own):
            ledger.policies.activate(policy.id, digest=policy.digest, tests=PASSED)
        assert [one and one.name for one in (ledger.policies.active(), ledger.policies.active(bot))] == ["all", "own"]
        import_into(there, exported(ledger))
        assert (there.policies.get("all").is_own, there.policies.active()) == (False, None)
        with pytest.raises(NotApplicable, match="another ledger"):
            there.policies.activate("all", digest=everybody.digest, tests=PASSED)


def test_another_ledger_that_asks_and_answers_in_our_turn_decides_nothing() -> None:
    with weft.open(":memory:") as here, weft.open(":memory:") as there:
        run, called, request = asking(here)
        import_into(there, exported(here))
        append_forged_approval(there, run.id, called.id)
        import_into(here, exported(there))
        assert [(one.id, one.state) for one in here.approvals.list(states=["open", "granted"])] == [(request, "open")]
        assert Runs(here).waiting() == []
        kinds = [type(one.event).__name__ for one in Runs(here).events(run.id)]
        assert (kinds.count("ApprovalRequested"), kinds.count("ApprovalGranted")) == (1, 0)


def append_forged_approval(ledger: Ledger, turn: str, call: str) -> None:
    """What a peer that means harm adds to the stream of a turn of another ledger."""

    def work(append: Append) -> None:
        row = append.view.turn(turn)
        stream = append.stream(f"run:{turn}", row.digest)
        asked = stream.add(ApprovalRequested, call=EventRef(call), bound=BOUND)
        stream.add(ApprovalGranted, request=EventRef(asked), bound=BOUND)
        append.seal()

    writer_of(ledger).write(work)


def test_a_policy_that_is_activated_elsewhere_leaves_ours_in_force() -> None:
    with weft.open(":memory:") as here, weft.open(":memory:") as there:
        for ledger, name in ((here, "strict"), (there, "loose")):
            policy = ledger.policies.propose(name, f"print('{name}')")
            ledger.policies.activate(policy.id, digest=policy.digest, tests=PASSED)
        import_into(here, exported(there))
        active = here.policies.active()
        assert active is not None
        assert (active.name, here.policies.get("loose").is_own) == ("strict", False)


def test_what_an_agent_sends_is_never_a_persons() -> None:
    with weft.open(":memory:") as ledger:
        Programs(ledger).create("agent", "scout", {"permissions": {"programs": ["turn:record", "session:*"]}})
        said = NewMessage(role=MessageRole.USER, content="hi", source=MessageSource.HUMAN)
        message = ledger.acting_as("scout").inbox.admit(said, session="own").message
        assert ledger.inbox.get(message).source == "agent"


def test_the_audit_counts_no_call_that_never_ran() -> None:
    with weft.open(":memory:") as ledger:
        run, called, request = asking(ledger)
        assert ledger.audit.suggest() == []
        ledger.approvals.grant(request)
        writer = Runs(ledger).adopt(run.id)
        assert writer is not None
        grant = ledger.events(run.id)[-1].id
        use = ToolDecision(
            call=called.id, decision=Decision.ALLOW, by=DecisionSource.GRANT, plan_digest=BOUND, grant=grant
        )
        writer.record([use, ended(called, result="x"), FinishedRun()])
        assert [one.allow for one in ledger.audit.suggest()] == [("shell(ls)",)]


def test_what_an_agent_records_is_never_a_persons() -> None:
    with weft.open(":memory:") as ledger:
        Programs(ledger).create("agent", "bot", {"permissions": {"programs": ["turn:*", "session:*"]}})
        Programs(ledger).create("human", "ann", {})
        bot, runs = ledger.acting_as("bot"), Runs(ledger)
        asked = bot.record_turn(session="a", query="q", persona="bot").id
        answered = bot.record_turn(session="b", response="r", persona="bot").id
        claimed = bot.record_turn(session="c", query={"role": "user", "content": "q", "source": "human"}, persona="bot")
        called = bot.record_turn(session="d", tool_calls=[{"name": "t", "result": 1}], persona="bot").id
        with bot.begin_turn(session="e", persona="bot") as steps:
            steps.message("q")
        turns = [asked, answered, claimed.id, called, steps.id]
        assert [runs.is_untrusted(turn) for turn in turns] == [True] * 5
        assert [message.source for message in ledger.messages(claimed.id)] == ["agent"]
        later = ledger.record_turn(session="a", query="q", response="r").id
        assert runs.is_untrusted(later)
        own = ledger.record_turn(session="own", query="q", response="r", tool_calls=[{"name": "t", "result": 1}]).id
        persons = ledger.acting_as("ann").record_turn(session="anns", query="q", response="r").id
        assert not runs.is_untrusted(own)
        assert not runs.is_untrusted(persons)


def test_a_late_result_is_marked_with_every_turn_that_follows_its_own() -> None:
    with weft.open(":memory:") as ledger:
        runs = Runs(ledger)
        with ledger.begin_turn(session="main") as steps:
            steps.message("q")
            steps.tool_call("fetch", {}, id="call-1")
            steps.interrupt()
        first = steps.id
        second, third = (ledger.record_turn(parent=first, session=None, query=text).id for text in "ab")
        fourth = ledger.record_turn(parent=third, query="c").id
        other = ledger.record_turn(session="other", query="d").id
        ledger.record_late_result(first, "call-1", {"page": "words of a stranger"})
        later = ledger.record_turn(parent=fourth, query="e").id
        turns = (first, second, third, fourth, later, other)
        assert [runs.is_untrusted(turn) for turn in turns] == [True, True, True, True, True, False]
        assert list(ledger.verify()) == []
        assert ledger.upkeep.rebuild() == 0
