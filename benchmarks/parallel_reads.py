"""`python -m benchmarks.parallel_reads`: what a turn with ten parallel reads takes beside ten bare reads.

Taken by turns, so that a busy machine slows all alike: "bare" reads ten files in threads, as a program does; "own" is a
turn whose answer asks for ten calls of a tool that has the same results ready, which is the broker's own time with
decisions and records; "reads" is the same turn with ten calls of the tool read. The policy allows everything at once
and the model answers at once: `benchmarks.policies` measures what deciding takes. The bar: "reads" takes at most what
"own" takes and twice what "bare" takes. On a busy machine it is shown and not judged.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import weft.aio
from weft.kernel.authority import Principal, PrincipalKind
from weft.kernel.enums import Decision
from weft.ledger.api import Approval, RunConfig, SessionStanding
from weft.ledger.model import Part, TextPart, ToolUsePart
from weft.runtime.broker.broker import Broker
from weft.runtime.broker.turn_plans import TurnPlan
from weft.runtime.egress.execution_context import context_for
from weft.runtime.inference.model_requests import (
    InferenceRequest,
    ModelSettings,
    ProviderKind,
    ProviderSettings,
    TokenCount,
    ToolSpec,
)
from weft.runtime.policies.policy_decisions import PolicyCall, PolicyDecision
from weft.runtime.replies import FinishReason, Reply
from weft.runtime.tool.gate import ToolGate
from weft.runtime.tool.tool_contract import CallPlan, PlannedTool, ToolCallContext, ToolOutput
from weft.runtime.tool.workspace import WorkspaceFolder
from weft.runtime.tools.reading_tools import ReadTool

TURNS = 200
CALLS = 10
FILE_LINES = 200
BARE_READS = 2.0
BUSY = 0.75
"""Processes that wait for a processor, per processor."""
NOT_JUDGED = 2
PERSON = Principal(PrincipalKind.HUMAN, "benchmark")
PROVIDER = ProviderSettings(id="benchmark", kind=ProviderKind.OPENAI_COMPATIBLE, base_url="http://127.0.0.1:9")
MODEL = ModelSettings(id="benchmark", name="benchmark-model", provider=PROVIDER)


class PreparedTool:
    """Gives what the tool read gave before, in no time."""

    is_idempotent = is_read_only = is_repeatable = True
    spec = ToolSpec(name="prepared", description="", schema={"type": "object"})

    def __init__(self, outputs: dict[str, ToolOutput]) -> None:
        self._outputs = outputs

    async def plan(self, arguments: Any, context: ToolCallContext) -> CallPlan:
        path = arguments["path"]
        return CallPlan(tool="prepared", exact={"path": path}, subjects=(path,), shown=path, is_read_only=True)

    async def perform(self, plan: CallPlan, context: ToolCallContext) -> ToolOutput:
        return self._outputs[plan.exact["path"]]

    async def invoke(self, arguments: Any, context: ToolCallContext) -> Any:
        return (await self.perform(await self.plan(arguments, context), context)).result


class ScriptedModel:
    """Asks for ten calls of one tool, then says that it is done."""

    def __init__(self, tool: str, paths: Sequence[str]) -> None:
        self._parts = tuple(ToolUsePart(f"call-{path}", tool, {"path": path}) for path in paths)
        self._is_asking = True

    async def count(self, request: InferenceRequest, **_: Any) -> TokenCount:
        return TokenCount(tokens=1)

    def sendable(self, model: ModelSettings, parameters: Any) -> Any:
        return parameters

    async def infer(self, request: InferenceRequest, **_: Any) -> Reply:
        self._is_asking, is_asking = not self._is_asking, self._is_asking
        parts: tuple[Part, ...] = self._parts if is_asking else (TextPart("done"),)
        finish = FinishReason.TOOL_CALL if is_asking else FinishReason.STOP
        return Reply(parts=parts, finish=finish, model_id="m", model="m-1", provider="there")


class NoHistory:
    async def is_untrusted(self, turn: str) -> bool:
        return False

    async def session_grants(self) -> Sequence[Approval]:
        return ()


async def allow(call: PolicyCall) -> PolicyDecision:
    return PolicyDecision(decision=Decision.ALLOW, rationale="measured", policy=None, policy_name="none")


class ToolTurns:
    """Turns that call one tool ten times."""

    def __init__(self, ledger: weft.aio.AsyncLedger, tool: PlannedTool, paths: Sequence[str]) -> None:
        self._ledger, self._count, self._name = ledger.sync, 0, tool.spec.name
        name, tools = self._name, {self._name: tool}
        model, gate, acting = ScriptedModel(name, paths), ToolGate(tools, allow, NoHistory()), context_for(PERSON)

        async def plan(standing: SessionStanding, messages: Sequence[Any]) -> TurnPlan:
            return TurnPlan(model=MODEL, inference=model, acting=acting, setting=RunConfig(), tools=tools, gate=gate)  # type: ignore[arg-type]

        self._broker = Broker(self._ledger, ledger.crossing, plan)

    async def take(self) -> None:
        """In a session of its own, so that the context does not grow."""
        self._count += 1
        admission = self._ledger.inbox.admit("read them", session=f"{self._name}-{self._count}")
        await self._broker.wait_for_answer(admission.message, admission.session_id)

    def check(self) -> None:
        """All calls of the last turn succeeded."""
        turn = self._ledger.session(f"{self._name}-{self._count}").head
        assert turn is not None
        assert [call.outcome for call in self._ledger.tool_calls(turn)] == ["ok"] * CALLS


async def measure(folder: Path) -> int:
    workspace = folder / "workspace"
    workspace.mkdir()
    paths = [f"file-{number}.txt" for number in range(CALLS)]
    for path in paths:
        (workspace / path).write_text("".join(f"line {number} of {path}\n" for number in range(FILE_LINES)))

    async def bare() -> None:
        await asyncio.gather(*(asyncio.to_thread((workspace / path).read_text) for path in paths))

    ledger = await weft.aio.open(str(folder / "ledger.db"))
    tool = ReadTool(WorkspaceFolder(workspace))
    prepared = PreparedTool({path: await _read(tool, path) for path in paths})
    own, reads = (ToolTurns(ledger, tool, paths) for tool in (prepared, tool))
    ways: dict[str, Callable[[], Awaitable[None]]] = {"bare": bare, "own": own.take, "reads": reads.take}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        await way()
    for _ in range(TURNS):
        for name, way in ways.items():
            times[name].append(await _timed(way))
    own.check()
    reads.check()
    await ledger.close()
    middle = {name: median(values) for name, values in times.items()}
    print(f"{'':10} {'median':>9} {'shortest':>9}   ({TURNS} each, ms)")
    for name, values in times.items():
        print(f"{name:10} {middle[name]:9.2f} {min(values):9.2f}")
    beyond, bar = middle["reads"] - middle["own"], BARE_READS * middle["bare"]
    print(f"beyond the broker's own: {beyond:.2f}   bar: at most {bar:.2f} (ten bare reads, {BARE_READS:.0f} times)")
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    if load > BUSY:
        print(f"not judged: {load:.1f} processes wait for each processor; run it again where nothing else runs")
        return NOT_JUDGED
    return int(beyond > bar)


async def _read(tool: PlannedTool, path: str) -> ToolOutput:
    context = ToolCallContext(turn="", call="")
    output = await tool.perform(await tool.plan({"path": path}, context), context)
    assert isinstance(output, ToolOutput), "reading waits for nobody"
    return output


async def _timed(way: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await way()
    return 1000 * (time.perf_counter() - began)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        sys.exit(asyncio.run(measure(Path(place))))
