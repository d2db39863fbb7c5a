"""The tool calls of one turn under way: each is decided on, run, and its outcome told.

A call that a gate guards runs only after a decision that allows it was recorded; what is run is compared with what was
decided on. Calls of a fresh answer are decided on before they are recorded, so that the decision needs no transaction
of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from weft.kernel.enums import ToolCallStatus
from weft.kernel.errors import TIMED_OUT, ContentMissing, NotFound, StoreError, WeftError, error_code, error_text
from weft.ledger.api import Entry, KeptState, Runs, ToolEnded, used_rights
from weft.ledger.model import NewError, SentResult, ToolResultPart, ToolUsePart
from weft.runtime.broker.plans import TurnPlan
from weft.runtime.broker.run import Run, RunCall
from weft.runtime.broker.steps import MAX_CALLS
from weft.runtime.broker.tools import BUSY_SECONDS, CallAnswer, Later, NotYet, ToolCallContext, Verdict
from weft.runtime.broker.turn_entries import decided, ended
from weft.runtime.inference.shown_results import with_images
from weft.runtime.tools.calls import ToolFailure, ToolOutput
from weft.runtime.tools.result_secrets import ResultSecrets, unchecked
from weft.runtime.tools.results import recordable
from weft.runtime.turns.ledger_port import Crossing

T = TypeVar("T")
_Recorded = tuple[Any, Any]
"""The arguments and the plan of a call."""


class ToolCalls:
    """What this process does about the calls of one turn."""

    def __init__(
        self,
        runs: Runs,
        crossing: Crossing,
        plan: TurnPlan,
        lose: Callable[[WeftError], None],
        secrets: ResultSecrets,
    ) -> None:
        """`lose` is called where the ledger cannot be read: the call did not run, and whoever goes on with the turn
        says so. `secrets` takes out of results what no model is sent."""
        self._runs, self._crossing, self._plan, self._lose, self._secrets = runs, crossing, plan, lose, secrets
        self._deciding: dict[str, asyncio.Task[Verdict]] = {}
        self._running: dict[str, asyncio.Task[Any]] = {}
        self._reading: asyncio.Task[dict[str, _Recorded]] | None = None
        """The last reading of what is recorded of calls that are to run."""
        self._ahead: tuple[Verdict | None, ...] = ()
        """Decisions about the calls of the last answer, in its order, made before it was recorded; None where an
        earlier call changes the same file, or somebody else is at work."""
        self._ahead_keys: tuple[str | None, ...] = ()
        """The files that these calls change."""
        self._exclusive_keys: dict[str, str | None] = {}
        """The files that calls of an earlier broker change, by their events."""
        self._call_ids: dict[str, str] = {}
        """The provider's ids of the calls that are under way, by their events."""
        self._used_rights: dict[str, tuple[str, ...]] = {}
        self._performed: set[str] = set()
        self._kept: dict[int, KeptState] = {}
        """What entries tell that resources were like, by its identity, until they are recorded."""
        self._results: dict[str, ToolResultPart] = {}
        self._sent: dict[str, SentResult] = {}
        """By call what models are sent in the place of its result, until that is recorded."""
        self.later: dict[str, Later] = {}
        self.rationales: dict[str, str] = {}
        """Why calls were refused, by their events; of earlier processes the ledger says it."""

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        return [*self._deciding.values(), *self._running.values()]

    async def decide_ahead(self, calls: Sequence[ToolUsePart], turn: str) -> None:
        """Decide on the calls of an answer that is about to be recorded."""
        self._ahead, self._ahead_keys = (), ()
        gate = self._plan.gate
        if gate is None or not self._plan.tools or len(calls) > MAX_CALLS:
            return
        keys = tuple([await gate.exclusive_key(one.name, one.input) for one in calls])
        places = [place for place, key in enumerate(keys) if key is None or key not in keys[:place]]
        decided = (self._decided_at_once(calls[place], turn) for place in places)
        verdicts = dict(zip(places, await asyncio.gather(*decided), strict=True))
        self._ahead, self._ahead_keys = tuple(map(verdicts.get, range(len(calls)))), keys

    async def _decided_at_once(self, call: ToolUsePart, turn: str) -> Verdict | None:
        """None where that has to wait: the call is recorded first, and decided on when it may be."""
        try:
            return await self._decided(call.name, call.input, turn, "")
        except NotYet:
            return None

    async def find_exclusive_keys(self, run: Run) -> None:
        """Find out which calls of an earlier broker wait for each other, where one of them is not decided on."""
        gate, calls = self._plan.gate, run.open_calls
        if gate is None or len(calls) < 2 or all(call.decision is not None for call in calls):
            return
        recorded = await self._read_together(calls)
        for call in calls:
            self._exclusive_keys[call.event] = await gate.exclusive_key(call.tool, recorded[call.event][0])

    def note_exclusive_keys(self, run: Run) -> None:
        """Have a run know which of its open calls wait for each other."""
        is_fresh = len(self._ahead_keys) == len(run.answer_calls)
        for place, event in enumerate(run.answer_calls):
            run.calls[event].exclusive_key = self._ahead_keys[place] if is_fresh else self._exclusive_keys.get(event)

    def decision_entries(self, run: Run, calls: Sequence[str]) -> list[Entry]:
        """The decisions that are made already, of those that are wanted."""
        entries: list[Entry] = []
        for call in calls:
            place = run.answer_calls.index(call) if call in run.answer_calls else len(self._ahead)
            is_fresh = run.calls[call].decision is None and len(self._ahead) == len(run.answer_calls)
            verdict = self._ahead[place] if is_fresh and place < len(self._ahead) else None
            if verdict is not None and call not in self._deciding:
                entries += self._verdict_entries(run.calls[call], verdict)
        return entries

    async def settle(self, *, is_over: bool = False) -> None:
        """All that was told so far is recorded; where the turn is over, nothing more will be."""
        kept, self._kept = list(self._kept.values()), {}
        if self._plan.gate is not None and (kept or is_over):
            await self._plan.gate.recorded(None if is_over else kept)

    def _verdict_entries(self, call: RunCall, verdict: Verdict) -> list[Entry]:
        self._kept |= {id(state): state for state in verdict.kept}
        if verdict.rationale is not None:
            self.rationales[call.event] = verdict.rationale
        return decided(call, verdict)

    def start(self, run: Run) -> None:
        """Start what is recorded as intended and not under way."""
        calls: list[RunCall] = []
        for call in run.open_calls:
            if run.is_gated and call.needs_decision:
                if call.event not in self._deciding and not run.is_held(call):
                    self._deciding[call.event] = asyncio.ensure_future(self._decide(run, call))
            elif call.event not in self._performed and run.may_run(call):
                self._performed.add(call.event)
                call.needs_repeat = False
                calls.append(call)
        if calls:
            self._reading = asyncio.ensure_future(self._read_together(calls))
            for call in calls:
                self._running[call.event] = asyncio.ensure_future(self._run(run, call, self._reading))

    async def _decide(self, run: Run, call: RunCall) -> Verdict:
        arguments, answer = await self._read(partial(self._read_call, call)), call.answer
        if answer is not None and answer.reason is not None:
            reason = await self._crossing.run(partial(self._runs.text, answer.reason))
            answer = replace(answer, reason=reason)
        while True:
            try:
                return await self._decided(call.tool, arguments, run.turn, call.event, answer)
            except NotYet:
                await asyncio.sleep(BUSY_SECONDS)

    async def _decided(
        self, tool: str, arguments: Any, turn: str, event: str, answer: CallAnswer | None = None
    ) -> Verdict:
        gate = self._plan.gate
        assert gate is not None
        context = ToolCallContext(turn=turn, call=event, acting=self._plan.acting)
        return await gate.decide(tool, arguments, context, answer)

    async def _run(self, run: Run, call: RunCall, reading: asyncio.Task[dict[str, _Recorded]]) -> ToolOutput | Later:
        """What a call gives, once it is known what models are sent of it."""
        try:
            result = await self._performed_call(run, call, reading)
        except Exception as error:  # of whatever kind: its message is sent to a model
            await self._take_secrets_out(call, recordable(_fault(error).message))
            raise
        if isinstance(result, Later):
            return result
        output = result if isinstance(result, ToolOutput) else ToolOutput(result=result, is_untrusted=False)
        urls = [str(image.url) for image in output.images]
        output = replace(output, result=with_images(recordable(output.result), urls))
        await self._take_secrets_out(call, output.result)
        return output

    async def _take_secrets_out(self, call: RunCall, words: Any) -> None:
        """Whatever goes wrong here, the call has run: its outcome is recorded, and no model is sent it unchecked."""
        try:
            sent = await self._secrets.sent_instead(words, self._plan.rules_folder, self._runs.ignored_secrets)
        except Exception as error:  # of whatever kind: nothing is sent that was not looked through
            sent = unchecked(error)
        if sent is not None:
            self._sent[call.event] = sent

    async def _performed_call(self, run: Run, call: RunCall, reading: asyncio.Task[dict[str, _Recorded]]) -> Any:
        arguments, plan = (await asyncio.shield(reading))[call.event]
        acting, is_approved = self._plan.acting, call.is_approved
        context = ToolCallContext(turn=run.turn, call=call.event, acting=acting, is_approved=is_approved)
        if self._plan.gate is not None:
            return await self._plan.gate.perform(call.tool, arguments, context, call.bound or "", plan)
        tool = self._plan.tools.get(call.tool)
        if tool is None:
            raise NotFound("tool", call.tool, "call one that is offered")
        return await tool.invoke(arguments, context)

    async def _read_together(self, calls: Sequence[RunCall]) -> dict[str, _Recorded]:
        """What is recorded of calls that start together, read in one crossing."""
        return await self._read(lambda: {call.event: (self._read_call(call), self._read_plan(call)) for call in calls})

    async def _read(self, call: Callable[[], T]) -> T:
        try:
            return await self._crossing.run(call)
        except StoreError as error:
            self._lose(error)
            raise

    def _read_plan(self, call: RunCall) -> Any:
        return None if call.plan is None or self._plan.gate is None else self._runs.value(call.plan)

    def _read_call(self, call: RunCall) -> Any:
        """The arguments of a call; the provider's id of it is kept for its result."""
        self._call_ids[call.event], arguments = self._runs.tool_use(call.call_id, call.arguments)
        self._used_rights[call.event] = tuple(used_rights(call.tool, arguments))
        return arguments

    def used_rights(self, call: RunCall) -> tuple[str, ...]:
        """What a call that ran made use of; where its arguments were erased meanwhile, its tool."""
        if call.event not in self._used_rights:  # another broker ran it
            try:
                self._used_rights[call.event] = tuple(used_rights(call.tool, self._runs.value(call.arguments)))
            except ContentMissing:
                return (call.tool,)
        return self._used_rights[call.event]

    def resume(self, run: Run) -> None:
        """Calls that waited for workers are performed once more, now that these have answered."""
        for event in [event for event in self.later if event in run.calls and not run.calls[event].is_parked]:
            del self.later[event]
            self._performed.discard(event)

    def outcomes(self, run: Run) -> list[Entry]:
        """What is recorded of the calls that were decided on, or ended, meanwhile."""
        entries: list[Entry] = []
        for event in [event for event, task in self._deciding.items() if task.done()]:
            task, call = self._deciding.pop(event), run.calls[event]
            error = error_of(task)
            if error is not None:
                raise error
            entries += self._verdict_entries(call, task.result())
        for event in [event for event, task in self._running.items() if task.done()]:
            entry = self._outcome(run.calls[event], self._running.pop(event))
            if entry is not None:
                self._kept |= {id(state): state for state in entry.kept}
                entries.append(entry)
        return entries

    def results(self, run: Run) -> list[ToolResultPart]:
        """The outcomes of all calls of the last answer, in the order of the calls, once none is under way or held."""
        is_open = any(run.calls[call].outcome is None and call not in self._results for call in run.answer_calls)
        if is_open or self._running or self._deciding or self.later:
            return []
        return [self._results.pop(call) for call in run.answer_calls if call in self._results]

    def _outcome(self, call: RunCall, task: asyncio.Task[Any]) -> ToolEnded | None:
        name, error = self._call_ids.pop(call.event, ""), error_of(task)
        sent = self._sent.pop(call.event, None)
        if error is not None:
            fault = _fault(error)
            words = fault.message if sent is None else sent.value
            self._results[call.event] = ToolResultPart(name, words, is_error=True)
            kept = error.kept if isinstance(error, ToolFailure) else ()
            is_untrusted = self._plan.gate is not None
            return ended(call, _status(error), error=fault, is_untrusted=is_untrusted, kept=kept, sent=sent)
        result = task.result()
        if isinstance(result, Later):
            self.later[call.event] = result
            call.is_parked = True
            return None
        self._results[call.event] = ToolResultPart(name, result.result if sent is None else sent.value)
        return ended(call, ToolCallStatus.OK, output=result, sent=sent)

    async def stop(self) -> None:
        tasks = self.tasks if self._reading is None else [*self.tasks, self._reading]
        self._deciding, self._running, self._reading = {}, {}, None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _fault(error: BaseException) -> NewError:
    if isinstance(error, ToolFailure):
        return NewError(code=error.code, message=error.message, details=error.details)
    return NewError(code=error_code(error), message=error_text(error))


def _status(error: BaseException) -> ToolCallStatus:
    """A tool that ran out of its time has a status of its own."""
    code = error.code if isinstance(error, ToolFailure) else ""
    is_timeout = isinstance(error, TimeoutError) or code in ("timeout", TIMED_OUT)
    return ToolCallStatus.TIMEOUT if is_timeout else ToolCallStatus.ERROR


def error_of(task: asyncio.Task[Any]) -> BaseException | None:
    """What a task that is done raised; whoever cancelled itself has failed as well."""
    return asyncio.CancelledError("it was cancelled") if task.cancelled() else task.exception()
