"""The tools with which an agent has workers: `spawn`, `await_workers` and `message_worker`.

A call that waits parks its turn: nobody works on it until the workers have answered. Each tool may be performed again
where nobody knows whether it was: a call spawns one worker and sends one message, however often it is performed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from msgspec import Meta, Struct

from weft.kernel.clock import Clock
from weft.kernel.errors import quoted
from weft.ledger.api import NewWorker, Runs, Worker, have_answered
from weft.runtime.broker.tools import Later, ToolCallContext
from weft.runtime.tools.calls import CallPlan, StructTool, ToolFailure, ToolOutput
from weft.runtime.turns.ledger_port import Crossing
from weft.runtime.workers.constraints import WorkerConstraints

SPAWN, AWAIT, MESSAGE = "spawn", "await_workers", "message_worker"
TASK_CHARACTERS = 100_000
PATTERN_CHARACTERS = 1000
LONGEST_WAIT_SECONDS = 7 * 24 * 3600
QUEUE = "the workers of this session"
"""Calls that bring answers run one after another: each answer is brought once."""
SPAWN_DESCRIPTION = (
    "Start a worker on a task of its own. It sees the task and nothing else of this conversation, so say everything "
    "that it needs. It works beside you, with no more rights than you have; `await_workers` brings its answer. "
    "`tools` leaves it with fewer tools. Returns the worker's name."
)
AWAIT_DESCRIPTION = (
    "Wait for workers and get what they answered. Without `workers`, all that you spawned. With `any`, the first "
    "answer is enough. Each answer is given once. After `timeout_seconds` you go on without them; their answers then "
    "come as messages."
)
MESSAGE_DESCRIPTION = "Send another message to a worker that you spawned. `await_workers` brings its answer."

Name = Annotated[str, Meta(min_length=1, max_length=100, pattern="^[A-Za-z0-9_.-]+$")]
Patterns = Annotated[tuple[Annotated[str, Meta(max_length=PATTERN_CHARACTERS)], ...], Meta(max_length=100)]
Text = Annotated[str, Meta(min_length=1, max_length=TASK_CHARACTERS)]
Constrain = Callable[[tuple[str, ...] | None], WorkerConstraints]
"""What a worker of the turn may do at most, where it is to be left with these patterns of tools."""


class SpawnArguments(Struct, frozen=True, forbid_unknown_fields=True):
    task: Annotated[str, Meta(min_length=1, max_length=TASK_CHARACTERS, description="All that the worker is told.")]
    name: Annotated[Name, Meta(description="A short name for it.")] | None = None
    tools: Annotated[Patterns, Meta(description="Patterns of tools it may use.")] | None = None


class AwaitArguments(Struct, frozen=True, forbid_unknown_fields=True):
    workers: Annotated[tuple[str, ...], Meta(max_length=100, description="Names of workers.")] | None = None
    any: bool = False
    timeout_seconds: Annotated[float, Meta(gt=0, le=LONGEST_WAIT_SECONDS)] | None = None


class MessageArguments(Struct, frozen=True, forbid_unknown_fields=True):
    worker: str
    text: Text


class SpawnTool(StructTool[SpawnArguments]):
    """Starts workers."""

    is_idempotent = True
    is_repeatable = True

    def __init__(self, runs: Runs, crossing: Crossing, constrain: Constrain) -> None:
        super().__init__(SPAWN, SPAWN_DESCRIPTION, SpawnArguments)
        self._runs, self._crossing, self._constrain = runs, crossing, constrain

    def plan_of(self, arguments: SpawnArguments) -> CallPlan:
        constraints = self._constrain(arguments.tools)
        exact = {"task": arguments.task, "name": arguments.name, "constraints": constraints.record()}
        shown = f"start a worker{f' named {arguments.name}' if arguments.name else ''}:\n{arguments.task}"
        return CallPlan(tool=SPAWN, exact=exact, shown=shown)

    async def perform(self, plan: CallPlan, context: ToolCallContext) -> ToolOutput:
        new = NewWorker(
            turn=context.turn,
            call=context.call,
            task=plan.exact["task"],
            name=plan.exact["name"],
            constraints=plan.exact["constraints"],
        )
        worker = await self._crossing.run(partial(self._runs.spawn, new))
        return ToolOutput(result={"worker": worker.label}, spawned=worker.session, is_untrusted=False)


class SessionWorkers:
    """The workers of the session that a turn belongs to, by the names that its model knows them by."""

    def __init__(self, runs: Runs, crossing: Crossing, session: str) -> None:
        self._runs, self._crossing, self._session = runs, crossing, session

    async def named(self, names: tuple[str, ...] | None) -> list[Worker]:
        workers = {
            worker.label: worker for worker in await self._crossing.run(partial(self._runs.workers, self._session))
        }
        if names is None:
            return list(workers.values())
        missing = [name for name in names if name not in workers]
        if missing:
            known = ", ".join(workers) or "none"
            raise ToolFailure("unknown_worker", f"you spawned no worker {quoted(missing[0], 100)}; there are: {known}")
        return [workers[name] for name in dict.fromkeys(names)]


class AwaitTool(StructTool[AwaitArguments]):
    """Brings the answers of workers."""

    is_idempotent = True
    is_read_only = True

    def __init__(self, runs: Runs, crossing: Crossing, workers: SessionWorkers, clock: Clock) -> None:
        super().__init__(AWAIT, AWAIT_DESCRIPTION, AwaitArguments)
        self._runs, self._crossing, self._workers, self._clock = runs, crossing, workers, clock

    def plan_of(self, arguments: AwaitArguments) -> CallPlan:
        exact = {
            "workers": None if arguments.workers is None else list(arguments.workers),
            "any": arguments.any,
            "timeout_seconds": arguments.timeout_seconds,
        }
        return CallPlan(tool=AWAIT, exact=exact, shown="wait for workers", is_read_only=True)

    async def exclusive_key(self, arguments: Any) -> str:
        """Calls that bring answers wait for each other."""
        return QUEUE

    async def perform(self, plan: CallPlan, context: ToolCallContext) -> ToolOutput | Later:
        names = plan.exact["workers"]
        workers = await self._workers.named(None if names is None else tuple(names))
        if not have_answered(workers, is_any=plan.exact["any"]):
            return self._later(plan, workers)
        replies = [
            (worker, await self._crossing.run(partial(self._runs.worker_reply, answer)))
            for worker in workers
            if worker.is_idle
            for answer in worker.ready
        ]
        result = {
            "answers": [
                {
                    "worker": worker.label,
                    "status": reply.status,
                    "answer": reply.text,
                    **({} if reply.error is None else {"error": reply.error}),
                }
                for worker, reply in replies
            ],
            "running": [worker.label for worker in workers if not worker.is_idle],
        }
        return ToolOutput(
            result=result,
            awaited=tuple(reply.id for _, reply in replies),
            is_untrusted=any(reply.is_untrusted for _, reply in replies),
        )

    def _later(self, plan: CallPlan, workers: list[Worker]) -> Later:
        seconds = plan.exact["timeout_seconds"]
        running = [worker for worker in workers if not worker.is_idle]
        return Later(
            why=f"waits for {', '.join(worker.label for worker in running)}",
            until_ms=None if seconds is None else self._clock.now_ms() + round(seconds * 1000),
            workers=tuple(worker.session for worker in workers),
            is_any=plan.exact["any"],
        )


class MessageTool(StructTool[MessageArguments]):
    """Sends messages to workers."""

    is_idempotent = True
    is_repeatable = True

    def __init__(self, runs: Runs, crossing: Crossing, workers: SessionWorkers) -> None:
        super().__init__(MESSAGE, MESSAGE_DESCRIPTION, MessageArguments)
        self._runs, self._crossing, self._workers = runs, crossing, workers

    def plan_of(self, arguments: MessageArguments) -> CallPlan:
        exact = {"worker": arguments.worker, "text": arguments.text}
        return CallPlan(tool=MESSAGE, exact=exact, shown=f"to {arguments.worker}:\n{arguments.text}")

    async def perform(self, plan: CallPlan, context: ToolCallContext) -> ToolOutput:
        (worker,) = await self._workers.named((plan.exact["worker"],))
        send = partial(self._runs.send_to_worker, context.turn, worker.session, plan.exact["text"], context.call)
        await self._crossing.run(send)
        return ToolOutput(result={"sent_to": worker.label}, is_untrusted=False)
