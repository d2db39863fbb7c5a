"""A scripted model that answers as a thread is recorded, and replays of that thread with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import weft.aio
from tests.runtime.inference.asking import model, person, provider
from tests.runtime.scripted import Script, Scripted, chat_saying
from weft.ledger.api import InboxMessage, RunConfig, SessionStanding
from weft.runtime.assembly.configuration_layers import read_overrides
from weft.runtime.broker.turn_plans import TurnPlan
from weft.runtime.egress.credentials import ConnectionRules
from weft.runtime.inference.dialects.dialect_port import wire_name
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import ModelSettings
from weft.runtime.recorded_threads import RecordedAnswer, RecordedThread, argument_fields
from weft.runtime.thread_replay import (
    OnMissing,
    ReplayChange,
    StopReplay,
    ThreadRange,
    ThreadReplay,
    ThreadReplayer,
    read_thread,
)


def saying(text: str, calls: Sequence[tuple[str, Any]] = ()) -> Script:
    """An answer of a text and calls."""
    asked = [
        {
            "id": f"call-{place}",
            "type": "function",
            "function": {"name": wire_name(name), "arguments": json.dumps(argument_fields(arguments))},
        }
        for place, (name, arguments) in enumerate(calls)
    ]
    message: dict[str, Any] = {"content": text, **({"tool_calls": asked} if asked else {})}
    return chat_saying(message, "tool_calls" if asked else "stop")


def as_recorded(answer: RecordedAnswer) -> Script:
    return saying(answer.text, [(call.name, call.arguments) for call in answer.calls])


def script_of(thread: RecordedThread) -> list[Script]:
    return [as_recorded(answer) for exchange in thread.exchanges for answer in exchange.answers]


async def stop(*_: Any) -> StopReplay:
    return StopReplay()


class ReplayBench:
    """An open ledger, a scripted model and somebody who replays."""

    def __init__(self, ledger: weft.aio.AsyncLedger, server: Scripted, inference: Inference) -> None:
        self.ledger, self.server, self.inference = ledger, server, inference

    @property
    def settings(self) -> ModelSettings:
        return model(
            self.server.url, provider=provider(self.server.url, rules=ConnectionRules()), context_window=100_000_000
        )

    async def plan(self, standing: SessionStanding, messages: Sequence[InboxMessage]) -> TurnPlan:
        """As whoever replays has turns planned: the prompt is the one that the message brings."""
        return TurnPlan(
            model=self.settings,
            inference=self.inference,
            acting=person(self.server.url),
            setting=RunConfig(),
            system=read_overrides(messages[0].overrides, messages[0].id).system,
        )

    async def read(self, name: str, after: str | None = None) -> tuple[ThreadRange, RecordedThread]:
        turns = ThreadRange(last=await self.ledger.resolve(name), after=after)
        return turns, await self.ledger.crossing.run(lambda: read_thread(self.ledger.sync, turns))

    async def replay(
        self,
        turns: ThreadRange,
        scripts: Sequence[Script],
        change: ReplayChange | None = None,
        on_missing: OnMissing = stop,
    ) -> ThreadReplay:
        self.server.scripts, self.server.received = list(scripts), []
        return await ThreadReplayer(self.ledger, self.plan, change or ReplayChange(), on_missing).replay(turns)
