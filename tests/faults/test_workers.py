"""Managers with workers, whose brokers are killed at random: every answer arrives once, and nothing is left running."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import weft
import weft.aio
from tests.faults.broker_processes import MODEL, text_of
from tests.faults.processes import Process, Say
from tests.sizes import Record, chance, sized
from weft.kernel.authority import LOCAL
from weft.kernel.clock import SystemClock
from weft.kernel.enums import Decision
from weft.kernel.events import Usage
from weft.ledger.api import Approval, Ledger, RunConfig, Runs, SessionStanding
from weft.ledger.model import Message, TextPart, ToolUsePart
from weft.ledger.reports.usage import TurnUsage
from weft.runtime.assembly.configuration_layers import WorkerConstraints
from weft.runtime.broker import broker as broker_module
from weft.runtime.broker import turn_state
from weft.runtime.broker.broker import Broker
from weft.runtime.broker.turn_plans import TurnPlan
from weft.runtime.egress.execution_context import context_for
from weft.runtime.inference.model_requests import InferenceRequest, ModelSettings, TokenCount
from weft.runtime.invoke.toolbox import AwaitTool, SessionWorkers, SpawnTool
from weft.runtime.policies.policy_decisions import PolicyCall, PolicyDecision
from weft.runtime.replies import FinishReason, Reply
from weft.runtime.tool.gate import ToolGate
from weft.runtime.tool.tool_contract import PlannedTool

MANAGERS = sized(test=1, prove=6)
WORKERS = 20
BROKERS = sized(test=2, prove=6)
KILLS = sized(test=4, prove=100)
LEASE_SECONDS = 1.0


class LeadingProvider:
    """A manager spawns its workers and waits for them; each third worker has one of its own."""

    async def count(self, request: InferenceRequest, **_: Any) -> TokenCount:
        return TokenCount(tokens=1)

    def sendable(self, model: ModelSettings, parameters: Any) -> Any:
        return parameters

    async def infer(self, request: InferenceRequest, **_: Any) -> Reply:
        await asyncio.sleep(0.002)
        texts = [one.text if isinstance(one, Message) else text_of(one) for one in request.messages]
        roles = [str(one.role) for one in request.messages]
        calls = self._calls(str(texts[0]), roles.count("assistant"))
        parts = tuple(ToolUsePart(f"c{k}", name, given) for k, (name, given) in enumerate(calls))
        usage = Usage(input_tokens=7, output_tokens=3, total_tokens=10)
        if parts:
            return Reply(
                parts=parts, finish=FinishReason.TOOL_CALL, model_id="m", model="m-1", provider="there", usage=usage
            )
        said = TextPart(f"done: {texts[0]}")
        return Reply(parts=(said,), finish=FinishReason.STOP, model_id="m", model="m-1", provider="there", usage=usage)

    def _calls(self, task: str, said: int) -> list[tuple[str, dict[str, Any]]]:
        if task.startswith("lead"):
            count = WORKERS
        elif task.startswith("part") and int(task.split()[1]) % 3 == 0:
            count = 1
        else:
            count = 0
        word = "part" if task.startswith("lead") else "bit"
        if not count or said > 1:
            return []
        return [("await_workers", {})] if said else [("spawn", {"task": f"{word} {k}"}) for k in range(count)]


class Gateless:
    async def is_untrusted(self, turn: str) -> bool:
        return False

    async def session_grants(self) -> Sequence[Approval]:
        return ()


async def allow(call: PolicyCall) -> PolicyDecision:
    return PolicyDecision(decision=Decision.ALLOW, rationale="yes", policy=None, policy_name="p")


def serve(say: Say, path: str) -> None:
    """A broker process, until it is killed."""
    broker_module.RENEW_SECONDS = LEASE_SECONDS / 4
    turn_state.MAX_LOSSES = 1_000  # what is lost here is nobody's poison: the kills are random
    say("serving")
    asyncio.run(_serve(path))


async def _serve(path: str) -> None:
    async with weft.aio.open(path, lease_ttl=LEASE_SECONDS) as ledger:
        await Broker(ledger.sync, ledger.crossing, partial(planned, ledger)).serve()


async def planned(ledger: weft.aio.AsyncLedger, standing: SessionStanding, messages: Sequence[Any]) -> TurnPlan:
    runs = Runs(ledger.sync)
    workers = SessionWorkers(runs, ledger.crossing, standing.id)
    tools: dict[str, PlannedTool] = {
        "spawn": SpawnTool(runs, ledger.crossing, lambda tools: WorkerConstraints(toolsets=("worker",))),
        "await_workers": AwaitTool(runs, ledger.crossing, workers, SystemClock()),
    }
    return TurnPlan(
        model=MODEL,
        inference=LeadingProvider(),  # type: ignore[arg-type]
        acting=context_for(LOCAL.principal),
        setting=RunConfig(),
        tools=tools,
        gate=ToolGate(tools, allow, Gateless()),
    )


def test_every_worker_answers_once_whatever_dies(tmp_path: Path, record_property: Record) -> None:
    dice, path = chance("workers"), str(tmp_path / "ledger.db")
    with weft.open(path) as ledger:
        messages = [ledger.inbox.admit(f"lead {k}", session=f"manager-{k}").message for k in range(MANAGERS)]
        brokers = [Process(serve, path) for _ in range(BROKERS)]
        try:
            for _ in range(KILLS):
                time.sleep(dice.uniform(0.05, 0.5))  # the random moment itself; nothing waits for it
                number = dice.randrange(BROKERS)
                brokers[number].kill()
                brokers[number].end()
                brokers[number] = Process(serve, path)
            while any(ledger.inbox.get(message).state in ("queued", "taken") for message in messages):
                time.sleep(0.1)  # what is looked at is no timing: it ends as soon as all is answered
        finally:
            for broker in brokers:
                broker.kill()
                broker.end()
        for message in messages:
            check(ledger, ledger.inbox.get(message).turn or "")
        assert list(ledger.verify()) == []
    record_property("measured", f"{MANAGERS} managers, {WORKERS} workers each, {BROKERS} brokers, {KILLS} kills")


def check(ledger: Ledger, turn: str) -> None:
    tree = ledger.usage.tree(turn)
    answers = [
        one for call in ledger.tool_calls(turn) if call.name == "await_workers" for one in call.result["answers"]
    ]
    expected = sorted(f"done: part {k}" for k in range(WORKERS))
    assert sorted(one["answer"] for one in answers) == expected
    assert ledger.turn(turn).status == "completed"
    sessions = list(tree.root.workers)
    assert len({worker.session for worker in sessions}) == WORKERS
    below = [node for worker in sessions for node in worker.turns]
    assert [len(worker.turns) for worker in sessions] == [1] * WORKERS
    assert sum(len(node.workers) for node in below) == len([k for k in range(WORKERS) if k % 3 == 0])
    with ledger._store.read() as txn:
        assert txn.sql.fetch_rows("SELECT * FROM open_run") == []
        assert txn.sql.fetch_rows("SELECT * FROM awaiting") == []
        assert txn.sql.fetch_rows("SELECT DISTINCT state FROM worker_answer") == [("awaited",)]
        assert txn.sql.fetch_rows("SELECT 1 FROM inbox WHERE state = 'queued'") == []
    assert tree.root.total.total == sum(node.own.total for node in all_turns(tree.root))
    assert tree.turns == len(all_turns(tree.root))


def all_turns(turn: TurnUsage) -> list[TurnUsage]:
    return [turn, *(below for worker in turn.workers for node in worker.turns for below in all_turns(node))]
