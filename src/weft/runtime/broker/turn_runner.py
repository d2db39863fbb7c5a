"""Runs one turn: intents are recorded and performed, outcomes recorded with the intents that follow.

Tool calls under way are each decided on, run, and their outcome told.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from weft.kernel.clock import Clock
from weft.kernel.enums import Decision, InterruptionReason, MessageRole, RunExit, ToolCallStatus
from weft.kernel.errors import (
    TIMED_OUT,
    ContentMissing,
    ContextTooLong,
    LeaseLost,
    NotApplicable,
    OutsideError,
    ReplyUnfit,
    StoreError,
    WeftError,
    error_code,
    error_text,
)
from weft.kernel.events import (
    BROKEN_OFF,
    ApprovalRequested,
    HistoryAppend,
    Interruption,
    ModelRequest,
    RequestInput,
    RunFinished,
    Usage,
)
from weft.ledger.api import (
    Entry,
    FinishedRun,
    InputChain,
    KeptState,
    ModelAnswered,
    ModelAsked,
    RecordedEvent,
    RunInterruption,
    RunRecord,
    Runs,
    RunWriter,
    TakeMessage,
    Then,
    ToolAsked,
    ToolEnded,
    used_rights,
)
from weft.ledger.model import NewError, NewMessage, SentResult, TextPart, ToolResultPart, ToolUsePart
from weft.runtime.answer_streams import TurnText
from weft.runtime.broker.turn_plans import RequestFitting, ShortenedContext, TurnPlan
from weft.runtime.broker.turn_state import (
    CUT_FINISHES,
    MAX_CALLS,
    AskModel,
    CloseCall,
    CutRun,
    DecideCalls,
    FailTurn,
    FinishTurn,
    ParkRun,
    Run,
    RunAgain,
    RunCall,
    RunRequest,
    StartTools,
    Step,
    TurnEnd,
    answer_entry,
    call_end_entry,
    decision_entries,
    next_steps,
    parking_entries,
    spec_fields,
    status_of_cut,
)
from weft.runtime.inference.model_requests import (
    InferenceRequest,
    ModelConversation,
    ModelParameters,
    ModelSettings,
    asks_by_cache_key,
    count_images,
    with_images,
)
from weft.runtime.ledger_port import Executor
from weft.runtime.replies import FinishReason, Reply, ReplyToken, TokenKind
from weft.runtime.spans import SpanValue, span
from weft.runtime.tool.recorded_results import ResultSecrets, recordable, unchecked
from weft.runtime.tool.tool_contract import (
    BUSY_SECONDS,
    CALLER,
    CallAnswer,
    CallersTool,
    LaterResult,
    NotYet,
    ToolCallContext,
    ToolFailure,
    ToolOutput,
    Verdict,
    ensure_object,
    server_of,
    unknown_tool,
)

# --- The tool calls of one turn under way: each is decided on, run, and its outcome told.

CACHE_KEY_DIGITS = 32
T = TypeVar("T")
_Recorded = tuple[Any, Any]
"""The arguments and the plan of a call."""


class ToolCalls:
    """What this process does about the calls of one turn."""

    def __init__(
        self,
        runs: Runs,
        crossing: Executor,
        plan: TurnPlan,
        abort: Callable[[WeftError], None],
        secrets: ResultSecrets,
    ) -> None:
        """`abort` is called where the ledger cannot be read: the call did not run, and whoever goes on with the turn
        says so. `secrets` takes out of results what no model is sent."""
        self._runs, self._crossing, self._plan, self._abort, self._secrets = runs, crossing, plan, abort, secrets
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
        self.later: dict[str, LaterResult] = {}
        self.rationales: dict[str, str] = {}
        """Why calls were refused, by their events; of earlier processes the ledger says it."""

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        return [*self._deciding.values(), *self._running.values()]

    async def decide_ahead(self, calls: Sequence[ToolUsePart], turn: str, *, is_cut: bool) -> None:
        """Decide on the calls of an answer that is about to be recorded, but for the one that it broke off with."""
        self._ahead, self._ahead_keys = (), ()
        gate = self._plan.gate
        if gate is None or len(calls) > MAX_CALLS:
            return
        keys = tuple([await gate.exclusive_key(call.name, call.input) for call in calls])
        places = [place for place, key in enumerate(keys) if key is None or key not in keys[:place]]
        places = [place for place in places if not (is_cut and place == len(calls) - 1)]
        decided = (self._decided_at_once(calls[place], turn) for place in places)
        verdicts = dict(zip(places, await asyncio.gather(*decided), strict=True))
        self._ahead, self._ahead_keys = tuple(map(verdicts.get, range(len(calls)))), keys

    async def _decided_at_once(self, call: ToolUsePart, turn: str) -> Verdict | None:
        """None where that has to wait: the call is recorded first, and decided on when it may be."""
        try:
            return await self._decide_safely(call.name, call.input, turn, "")
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
        states, self._kept = list(self._kept.values()), {}
        if self._plan.gate is not None and (states or is_over):
            await self._plan.gate.recorded(None if is_over else states)

    def _verdict_entries(self, call: RunCall, verdict: Verdict) -> list[Entry]:
        self._kept |= {id(state): state for state in verdict.kept}
        if verdict.rationale is not None:
            self.rationales[call.event] = verdict.rationale
        return decision_entries(call, verdict)

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
        arguments, answer = await self._read_ledger(partial(self._read_call, call)), call.answer
        if answer is not None and answer.reason is not None:
            reason = await self._crossing.run(partial(self._runs.text, answer.reason))
            answer = replace(answer, reason=reason)
        while True:
            try:
                return await self._decide_safely(call.tool, arguments, run.turn, call.event, answer)
            except NotYet:
                await asyncio.sleep(BUSY_SECONDS)

    async def _decide_safely(
        self, tool: str, arguments: Any, turn: str, event: str, answer: CallAnswer | None = None
    ) -> Verdict:
        gate = self._plan.gate
        assert gate is not None
        context = ToolCallContext(turn=turn, call=event, acting=self._plan.acting)
        return await gate.decide(tool, arguments, context, answer)

    async def _run(
        self, run: Run, call: RunCall, reading: asyncio.Task[dict[str, _Recorded]]
    ) -> ToolOutput | LaterResult:
        """What a call gives, once it is known what models are sent of it."""
        try:
            traced: dict[str, SpanValue] = {"gen_ai.tool.name": call.tool, "gen_ai.tool.call.id": call.event}
            with span("execute_tool", call.tool, traced):
                result = await self._performed_call(run, call, reading)
        except Exception as error:  # of whatever kind: its message is sent to a model
            await self._take_secrets_out(call, recordable(_fault(error).message))
            raise
        if isinstance(result, LaterResult):
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
            return await self._plan.gate.perform(call.tool, arguments, context, call.plan_digest or "", plan)
        tool = self._plan.tools.get(call.tool)
        if tool is None:
            raise unknown_tool(call.tool)
        ensure_object(call.tool, arguments)
        return await tool.invoke(arguments, context)

    async def _read_together(self, calls: Sequence[RunCall]) -> dict[str, _Recorded]:
        """What is recorded of calls that start together, read in one crossing."""
        return await self._read_ledger(
            lambda: {call.event: (self._read_call(call), self._read_plan(call)) for call in calls}
        )

    async def _read_ledger(self, call: Callable[[], T]) -> T:
        try:
            return await self._crossing.run(call)
        except StoreError as error:
            self._abort(error)
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
            states = error.kept if isinstance(error, ToolFailure) else ()
            is_untrusted = self._plan.gate is not None
            return call_end_entry(call, _status(error), error=fault, is_untrusted=is_untrusted, kept=states, sent=sent)
        result = task.result()
        if isinstance(result, LaterResult):
            self.later[call.event] = result
            call.is_parked = True
            return None
        self._results[call.event] = ToolResultPart(name, result.result if sent is None else sent.value)
        return call_end_entry(call, ToolCallStatus.OK, output=result, sent=sent)

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


# --- Runs one turn: intents are recorded, performed, and their outcomes recorded with the intents that follow.


def _model_attributes(model: ModelSettings) -> dict[str, SpanValue]:
    """Which model is asked, in the words of OpenTelemetry's conventions."""
    vendor = model.vendor or model.provider.kind.value
    return {"gen_ai.provider.name": _PROVIDERS_BY_VENDOR.get(vendor, vendor), "gen_ai.request.model": model.name}


_PROVIDERS_BY_VENDOR = {"google": "gcp.gemini", "openai-compatible": "openai"}


def _reply_attributes(reply: Reply) -> dict[str, SpanValue]:
    attributes: dict[str, SpanValue] = {
        "gen_ai.response.model": reply.model,
        "gen_ai.response.finish_reasons": [str(reply.finish)],
    }
    usage = reply.usage or Usage()
    read, written = usage.cached_input_tokens or 0, usage.cache_write_tokens or 0
    if usage.input_tokens is not UNSET:  # there, of all that was sent; here without what a cache had
        attributes["gen_ai.usage.input_tokens"] = usage.input_tokens + read + written
        attributes["gen_ai.usage.cache_read.input_tokens"] = read
        attributes["gen_ai.usage.cache_creation.input_tokens"] = written
    if usage.output_tokens is not UNSET:
        attributes["gen_ai.usage.output_tokens"] = usage.output_tokens
    return attributes


class TurnRunner:
    """One turn on its way, in the hands of this broker."""

    def __init__(
        self,
        runs: Runs,
        crossing: Executor,
        clock: Clock,
        plan: TurnPlan,
        text: TurnText,
        secrets: ResultSecrets,
        *,
        messages: Sequence[str] = (),
        is_streamed: bool = False,
    ) -> None:
        self._runs, self._crossing, self._clock, self._text = runs, crossing, clock, text
        self._plan, self._inference, self._is_streamed = plan, plan.inference, is_streamed
        self._expected = messages
        self.fitting = RequestFitting(runs, crossing, plan)
        self.messages: ModelConversation | None = None
        """What the next request is sent; None: that is read back from the ledger."""
        self.brings_prompt = False
        """Whether the first message of the turn is a system prompt, which goes before everything."""
        self.chain: InputChain | None = None
        self._run = Run("")
        self._writer: RunWriter | None = None
        self._wake = asyncio.Event()
        self._model: asyncio.Task[Reply | ShortenedContext] | None = None
        self._tools = ToolCalls(runs, crossing, plan, self.abort, secrets)
        self._calls: tuple[ToolUsePart, ...] = ()
        self._performed: set[str] = set()
        self._asks_next = False
        """Whether the model is asked next, as far as that is known before it is recorded."""
        self._partial: list[str] = []
        """The pieces that came of the answer."""
        self._billed: Usage | None = None
        """What the provider has counted of the answer that is under way."""
        self._attempt = 1
        self._reply: Reply | None = None
        self._error: BaseException | None = None
        self._failure: str | None = None
        self._stop: InterruptionReason | None = None
        self._steers: tuple[str, ...] = ()
        self._handed: dict[str, NewMessage] = {}
        self._cache_key: str | None = None
        self._lost: WeftError | None = None

    @property
    def turn(self) -> str:
        return self._run.turn

    # --- from outside --------------------------------------------------------------------------------------------

    def interrupt(self, reason: InterruptionReason) -> None:
        """Cut the turn short as soon as may be."""
        self._stop = self._stop or reason
        self._wake.set()

    def steer(self, messages: dict[str, NewMessage]) -> None:
        """Messages that want to enter with the next request, by their ids in the inbox."""
        self._steers, self._handed = tuple(messages), messages

    @property
    def awaits_answers(self) -> bool:
        """Whether it waits for a person or for workers while something else is under way."""
        return any(call.is_parked for call in self._run.open_calls)

    def notify(self, events: Sequence[RecordedEvent]) -> None:
        """Take up what people and workers answered meanwhile."""
        if self._run.apply_answers(events):
            self._tools.resume(self._run)
            self._wake.set()

    def abort(self, error: WeftError) -> None:
        """Another broker has the session, or the ledger cannot be reached: stop, and write nothing more."""
        self._lost = error
        self._wake.set()

    async def renew(self) -> None:
        if self._writer is not None and not self._writer.is_over:
            await self._crossing.run(self._writer.renew)

    # --- the turn ------------------------------------------------------------------------------------------------

    def intents(self, events: Sequence[RecordedEvent]) -> Sequence[Entry]:
        """The entries that the next steps are recorded as, after the events of this transaction so far."""
        run = self._run.copy().apply(events)
        self._prepare(run)
        return [entry for step in next_steps(run, self._clock.now_ms()) for entry in self._entries_of_step(run, step)]

    async def begin(self, writer: RunWriter, record: RunRecord) -> TurnEnd:
        """Perform what was recorded when the turn was begun, and go on."""
        self._run = Run(writer.id)
        self._take_up(record.events)
        if self._run.taken != list(self._expected):
            self.messages = None  # one of them was cancelled meanwhile
        self._note_request(record.events)
        self._text.recorded()
        return await self._go_on(writer, record)

    async def resume(self, writer: RunWriter, run: Run) -> TurnEnd:
        """Go on with a turn that another broker began."""
        self._run = run
        self._stop = self._stop or run.stop
        await self._tools.find_exclusive_keys(run)
        self._prepare(run)
        self._writer = writer
        if self.chain is not None:
            since, self._asks_next = run.refs_since_request(), run.has_results or run.pauses > 0
            await self.fitting.measure(self.turn, self.chain, since, is_answered=self._asks_next)
        return await self._go_on(writer, await self._record_entries(()))

    async def _go_on(self, writer: RunWriter, record: RunRecord) -> TurnEnd:
        """Until the turn is over, parked or lost."""
        model, persona = self._plan.model, self._plan.persona
        traced = {**_model_attributes(model), **({} if persona is None else {"gen_ai.agent.id": persona})}
        with span("invoke_agent", attributes={**traced, "weft.turn.id": writer.id}) as turn_span:
            end = await self._perform_steps(writer, record)
            if end.error is not None:
                turn_span.set({"error.type": error_code(end.error)})
            return end

    async def _perform_steps(self, writer: RunWriter, record: RunRecord) -> TurnEnd:
        self._writer = writer
        try:
            while record.ended is None and not self._run.is_parked and not writer.is_over:
                await self._tools.settle()
                self._perform()
                record = await self._record_entries(await self._outcomes())
            if not writer.is_over:  # it is still parked
                await self._crossing.run(writer.leave)
            return self._end(writer.id, record)
        finally:
            await self._stop_all()
            await self._tools.settle(is_over=True)
            self._text.end()

    def _end(self, turn: str, record: RunRecord) -> TurnEnd:
        """What the last transaction says: whoever asked to cut the turn short may have come after its end."""
        last = record.events[-1].event if record.events else None
        failed = isinstance(last, RunFinished) and last.exit is not RunExit.SUCCESS
        cuts = [
            recorded.event.reason
            for recorded in record.events
            if isinstance(recorded.event, Interruption) and recorded.event.goes_on is not True
        ]
        error = self._error
        if failed and error is None:
            error = NotApplicable(self._failure or "the turn failed", "send the message again")
        return TurnEnd(
            turn=turn,
            recorded=record.ended,
            reply=self._reply,
            error=error,
            cut=cuts[-1] if cuts and not failed and record.ended is not None else None,
        )

    async def shut_down(self) -> None:
        """Stop working on the turn for this broker ends: what is under way is recorded as interrupted, tools that may
        run again excepted, and another broker goes on."""
        writer = self._writer
        if writer is None or writer.is_over:
            return
        run = self._run.copy().mark_lost(InterruptionReason.SHUTDOWN)
        entries: list[Entry] = []
        if run.last_request is not None and run.last_request.is_lost:
            entries += self._broken_answer(run.last_request)
            entries.append(RunInterruption(InterruptionReason.SHUTDOWN, (run.last_request.event,)))
        for call in run.open_calls:
            if call.needs_repeat and call.tool not in run.idempotent:
                error = NewError(code=InterruptionReason.SHUTDOWN.value, message="whoever ran it was shut down")
                entries.append(call_end_entry(call, ToolCallStatus.INTERRUPTED, error=error))
                entries.append(RunInterruption(InterruptionReason.SHUTDOWN, (call.event,), goes_on=True))
        if entries:
            await self._crossing.run(lambda: writer.record(entries))
        await self._crossing.run(writer.leave)

    @property
    def taken(self) -> list[str]:
        """The messages that the turn took."""
        return self._run.taken

    async def leave(self) -> None:
        """Stop working on the turn: another broker may go on with it at once."""
        if self._writer is not None and not self._writer.is_over:
            await self._crossing.run(self._writer.leave)

    def _take_up(self, events: Sequence[RecordedEvent]) -> None:
        self._run.apply(events)
        self._prepare(self._run)

    def _prepare(self, run: Run) -> None:
        tools = self._plan.tools.items()
        run.is_gated = self._plan.gate is not None
        run.read_only = frozenset(name for name, tool in tools if tool.is_read_only)
        run.idempotent = frozenset(
            name for name, tool in tools if tool.is_idempotent or (run.is_gated and tool.is_repeatable)
        )
        run.steers, run.stop, run.max_requests = self._steers, self._stop, self._plan.max_requests
        run.deadline_seconds = self._plan.deadline_seconds
        self._tools.note_exclusive_keys(run)
        for event, later in self._tools.later.items():
            if event in run.calls:
                run.calls[event].is_parked, run.calls[event].parked_until = True, later.until_ms

    async def _record_entries(self, entries: Sequence[Entry]) -> RunRecord:
        writer = self._writer
        assert writer is not None
        if self._lost is not None:
            raise self._lost
        before = self._run.last_request
        if self._asks_next and self._stop is None and self.fitting.is_exceeded(self._handed.values()):
            if entries:  # recorded before the request, so that all of it can be named and cut
                await self._write_entries(writer, entries)
            await self._cut_context(more=tuple(self._handed.values()))
            entries = ()
        self._asks_next = False
        try:
            record = await self._write_entries(writer, entries, self.intents)
        except NotApplicable:
            if not self._steers:
                raise
            self._steers, self._handed = (), {}  # one of them was cancelled meanwhile; the others wait for the next
            record = await self._write_entries(writer, entries, self.intents)
        self._text.recorded()
        self._notify(record.events)
        request = self._run.last_request
        if request is not None and request is not before:
            self._note_request(record.events)
        return record

    def _notify(self, events: Sequence[RecordedEvent]) -> None:
        """Have people told that they are asked. The request is recorded, whatever becomes of that."""
        if self._plan.on_asked is not None:
            for recorded in events:
                if isinstance(recorded.event, ApprovalRequested):
                    self._plan.on_asked(recorded.id)

    async def _cut_context(self, window: int | None = None, more: Sequence[NewMessage] = ()) -> bool:
        """Cut what the next request is sent, so that it fits; whether there was something to cut."""
        since = self._run.refs_since_request()
        fitted = None
        if self.chain is not None:
            fitted = await self.fitting.cut_request(self.turn, self.chain, since, window, more)
        if fitted is not None:
            self.messages, self.chain = ModelConversation(fitted.messages), fitted.chain
        return fitted is not None

    async def _write_entries(self, writer: RunWriter, entries: Sequence[Entry], then: Then | None = None) -> RunRecord:
        """What was begun is written, also where this task is cancelled meanwhile; the run knows of it either way."""
        writing = asyncio.ensure_future(self._crossing.run(lambda: writer.record(entries, then)))
        try:
            await asyncio.wait({writing})
        except asyncio.CancelledError:
            await asyncio.wait({writing})
            if writing.exception() is None:
                self._take_up(writing.result().events)
            raise
        self._take_up(writing.result().events)
        return writing.result()

    # --- intents -------------------------------------------------------------------------------------------------

    def _entries_of_step(self, run: Run, step: Step) -> Sequence[Entry]:
        entries: Sequence[Entry] = ()
        match step:
            case AskModel():
                entries = self._ask_entries(run, step)
            case StartTools():
                entries = self._tool_entries(run, step)
            case DecideCalls():
                entries = self._tools.decision_entries(run, step.calls)
            case CloseCall():
                self.messages = None  # the outcome is told as the ledger tells it
                error = NewError(code=step.code, message=step.why or self._why_refused(run.calls[step.call]))
                entries = (call_end_entry(run.calls[step.call], step.status, error=error),)
                if step.status is ToolCallStatus.INTERRUPTED:
                    entries = (*entries, RunInterruption(run.lost_because, (step.call,), goes_on=True))
            case ParkRun():
                entries = parking_entries(run, step, self._tools.later)
            case CutRun():
                entries = self._cut_entries(run, step)
            case FinishTurn():
                entries = (FinishedRun(permissions_used=self._used_rights(run)),)
            case FailTurn():
                self._failure = step.message
                discarded = () if step.discard is None else (RunInterruption(step.reason, (step.discard,)),)
                error = NewError(code=step.code, message=step.message)
                entries = (*discarded, FinishedRun(exit=RunExit.ERROR, error=error))
            case RunAgain():  # its intent is recorded already
                pass
        return entries

    def _used_rights(self, run: Run) -> list[str]:
        """What the calls that ran made use of, as patterns of tools."""
        ran = [call for call in run.calls.values() if call.decision in (None, Decision.ALLOW)]
        return sorted({right for call in ran for right in self._tools.used_rights(call)})

    def _why_refused(self, call: RunCall) -> str:
        recorded = None if call.rationale is None else self._tools.rationales.get(call.event)
        if recorded is None and call.rationale is not None:
            recorded = self._runs.text(call.rationale)
        return recorded or "it is not allowed"

    def _ask_entries(self, run: Run, step: AskModel) -> Sequence[Entry]:
        if step.steers and not set(step.steers) <= set(run.taken):
            fresh = tuple(message for message in step.steers if message not in run.taken)
            return tuple(map(TakeMessage, fresh))
        entries: list[Entry] = []
        if step.discard is not None:
            entries.append(RunInterruption(step.reason, (step.discard,)))
        return [*entries, self._model_asked(run, step.attempt, self._plan.model, None)]

    def _model_asked(
        self, run: Run, attempt: int, model: ModelSettings, parameters: ModelParameters | None
    ) -> ModelAsked:
        plan = self._plan
        wanted = model.in_situation(plan.situation, plan.parameters) if parameters is None else parameters
        params = self._inference.sendable(model, wanted).given() if parameters is None else wanted.given()
        params |= self.fitting.parameters
        if not model.takes_images and self.messages is not None and count_images(self.messages.so_far()):
            params["images"] = "as text"
        since = run.refs_since_request()
        prompt = 1 if self.brings_prompt and len(run.requests) == 0 else 0
        chain = self.chain
        return ModelAsked(
            model=model.name,
            provider=model.provider.id,
            vendor=model.vendor,
            params=params,
            input=UNSET if chain is None else chain.input(since[prompt:], since[:prompt]),
            tools_spec=[spec_fields(tool.spec) for tool in plan.tools.values()] or None,
            attempt=attempt,
        )

    def _tool_entries(self, run: Run, step: StartTools) -> Sequence[Entry]:
        """The calls of the last answer; on the way back from a crash its words are read again."""
        request, answer = run.last_request, run.answer
        assert request is not None
        assert answer is not None
        is_fresh = len(self._calls) == len(step.uses)
        parts = self._calls if is_fresh else tuple(map(self._read_use, step.uses))
        return [
            ToolAsked(
                name=part.name,
                arguments=part.input,
                call_id=part.id,
                correlation=request.correlation,
                answer=answer[0],
                message=answer[1],
                server=self._server_of(part.name),
            )
            for part in parts
        ]

    def _server_of(self, name: str) -> str:
        """Where a tool runs, as its call is recorded."""
        return CALLER if isinstance(self._plan.tools.get(name), CallersTool) else server_of(name)

    def _read_use(self, use: Any) -> ToolUsePart:
        call_id, arguments = self._runs.tool_use(use.id, use.input)
        return ToolUsePart(call_id, str(use.name), arguments)

    def _cut_entries(self, run: Run, step: CutRun) -> Sequence[Entry]:
        """What had come of an answer was really said, and is kept as what it is."""
        entries: list[Entry] = []
        request = run.last_request
        if request is not None and request.is_open:
            if self._partial:
                entries.append(self._partial_answer(request.event, request.correlation, "interrupted"))
            else:
                entries += self._broken_answer(request)
                entries.append(RunInterruption(step.reason, (request.event,)))
        error = NewError(code=step.reason.value, message="the turn was cut short")
        status = status_of_cut(step.reason)
        closed = [call_end_entry(run.calls[call], status, error=error) for call in step.calls]
        return [*entries, *closed, RunInterruption(step.reason, step.calls), FinishedRun()]

    def _partial_answer(self, request: str, correlation: str, finish: str) -> ModelAnswered:
        message = NewMessage(
            role=MessageRole.ASSISTANT, content=(TextPart("".join(self._partial)),), metadata={"partial": True}
        )
        usage = UNSET if self._billed is None else self._billed
        return ModelAnswered(
            request=request, correlation=correlation, message=message, usage=usage, finish_reason=finish
        )

    def _broken_answer(self, request: RunRequest) -> list[ModelAnswered]:
        """What an answer cost that broke off and is not kept."""
        if self._billed is None:
            return []
        return [
            ModelAnswered(
                request=request.event,
                correlation=request.correlation,
                message=None,
                usage=self._billed,
                finish_reason=BROKEN_OFF,
            )
        ]

    # --- effects -------------------------------------------------------------------------------------------------

    def _note_request(self, events: Sequence[RecordedEvent]) -> None:
        """What the request that was just recorded is sent, kept for the one after it."""
        run = self._run
        for recorded in events:
            match recorded.event:
                case HistoryAppend(admitted=str(message)) if message in self._handed and self.messages is not None:
                    self.messages.append(self._handed[message])
                    self.fitting.add([self._handed[message]])
                case ModelRequest(input=RequestInput() as sent) if self.chain is not None:
                    self.chain.add_request(recorded.id, sent)
        self._handed = {id: message for id, message in self._handed.items() if id not in run.taken}
        self._steers = tuple(self._handed)

    def _perform(self) -> None:
        """Start what is recorded as intended and not under way."""
        run = self._run
        request = run.last_request
        if request is not None and request.is_open and not request.is_lost and request.event not in self._performed:
            self._performed.add(request.event)
            self._partial, self._billed, self._attempt = [], None, request.attempt
            self._text.begin(run.turn, len(run.requests), run.taken)
            self._model = asyncio.ensure_future(self._ask_model())
        self._tools.start(run)

    async def _ask_model(self) -> Reply | ShortenedContext:
        """The reply; or, once in a turn, what is to be sent in place of what was too long."""
        shorten = self._plan.on_overflow
        try:
            return await self._inferred()
        except ContextTooLong as error:
            was_reset = any(request.interrupted is InterruptionReason.CONTEXT_RESET for request in self._run.requests)
            if was_reset:
                error.say_more("it was sent less already, once in this turn")
            if shorten is None or was_reset or self.messages is None:
                raise
            shortened = await shorten(self._run.turn, tuple(self.messages))
            if shortened is not None:
                self.fitting.replace(shortened.messages, shortened.compaction)
                return shortened
            # nothing can be compacted: the provider counted more than fits, so half the window is reckoned with
            if not await self._cut_context(self.fitting.budget.window // 2):
                error.say_more("there is nothing that could be compacted or cut")
                raise
            return ShortenedContext(messages=tuple(self.messages), chain=self.chain)

    async def _inferred(self) -> Reply:
        plan, turn = self._plan, self._run.turn
        if self.messages is None:
            self.messages = ModelConversation(await self._crossing.run(lambda: self._runs.sent(turn)))
        request = InferenceRequest(
            model=plan.model,
            messages=self.messages.so_far(),
            situation=plan.situation,
            parameters=plan.parameters,
            tools=tuple(tool.spec for tool in plan.tools.values()),
            cache_key=await self._known_cache_key(),
        )
        with span("chat", plan.model.name, _model_attributes(plan.model)) as request_span:
            reply = await self._inference.infer(
                request,
                on_token=self._take_token if self._is_streamed or self._text.is_followed else None,
                budget=plan.budget,
                context=plan.acting,
                before=self._record_attempt,
                on_usage=self._add_usage,
            )
            request_span.set(_reply_attributes(reply))
            return reply

    async def _known_cache_key(self) -> str | None:
        """The same for a session and its forks in every process; it says nothing of either."""
        if self._cache_key is None and asks_by_cache_key(self._plan.model):
            turn = self._run.turn
            first = await self._crossing.run(lambda: self._runs.first_turn(turn))
            self._cache_key = hashlib.sha256(first.encode()).hexdigest()[:CACHE_KEY_DIGITS]
        return self._cache_key

    async def _record_attempt(self, model: ModelSettings, parameters: ModelParameters, attempt: int) -> None:
        """Every attempt after the first has an intent of its own."""
        if attempt == 1:
            return
        run, writer = self._run, self._writer
        assert writer is not None
        assert run.last_request is not None
        asked = self._model_asked(run, run.last_request.attempt + 1, model, parameters)
        record = await self._write_entries(writer, [*self._broken_answer(run.last_request), asked])
        self._note_request(record.events)
        self._performed.add(record.events[-1].id)
        self._partial, self._billed, self._attempt = [], None, asked.attempt
        self._text.begin(run.turn, len(run.requests), run.taken)

    def _add_usage(self, usage: Usage) -> None:
        self._billed = usage

    def _take_token(self, token: ReplyToken) -> None:
        if token.kind is TokenKind.TEXT:
            self._partial.append(token.text)
        self._text.add(ReplyToken(token.text, token.kind, self._attempt))

    # --- outcomes ------------------------------------------------------------------------------------------------

    async def _outcomes(self) -> Sequence[Entry]:
        """Wait for the next thing to happen, and say what is recorded of it."""
        wake = asyncio.ensure_future(self._wake.wait())
        waiting: set[asyncio.Task[Any]] = {wake, *self._tools.tasks}
        if self._model is not None:
            waiting.add(self._model)
        try:
            await asyncio.wait(waiting, timeout=self._seconds_left(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            wake.cancel()
        self._wake.clear()
        if self._lost is not None:
            raise self._lost
        if self._model is not None and self._model.done() and error_of(self._model) is None:
            reply = self._model.result()
            if isinstance(reply, Reply):
                await self._tools.decide_ahead(reply.calls, self.turn, is_cut=reply.finish in CUT_FINISHES)
        entries = [*self._model_outcome(), *self._tools.outcomes(self._run)]
        if entries:
            self._add_results()
        if self._stop is not None or self._seconds_left() == 0:
            await self._stop_all()
        return entries

    def _seconds_left(self) -> float | None:
        deadline = self._run.deadline_ms
        return None if deadline is None else max(0.0, (deadline - self._clock.now_ms()) / 1000)

    def _model_outcome(self) -> Sequence[Entry]:
        if self._model is None or not self._model.done():
            return ()
        task, self._model = self._model, None
        request = self._run.last_request
        assert request is not None
        error = error_of(task)
        if error is None:
            reply = task.result()
            if isinstance(reply, ShortenedContext):
                self.messages, self.chain = ModelConversation(reply.messages), reply.chain
                return (RunInterruption(InterruptionReason.CONTEXT_RESET, (request.event,)),)
            self._reply = reply
            self._calls = reply.calls
            self._asks_next = reply.finish is FinishReason.PAUSE
            answer = NewMessage(role=MessageRole.ASSISTANT, content=reply.parts, metadata=reply.metadata or None)
            self.fitting.count(reply.usage, answer)
            if self.messages is not None:
                self.messages.append(answer)
            return (answer_entry(reply, request.event, request.correlation),)
        if isinstance(error, LeaseLost | StoreError):  # this broker's own trouble, not the provider's
            raise error
        return self._failed(error, request)

    def _failed(self, error: BaseException, request: RunRequest) -> Sequence[Entry]:
        """The turn has ended badly and says so; what had come of the answer is kept."""
        self._error = error
        if isinstance(error, OutsideError) and error.partial:
            self._partial = [error.partial]
        is_ours = isinstance(error, WeftError)
        fault = NewError(code=error_code(error), message=str(error) if is_ours else "not weft's own error")
        if isinstance(error, ReplyUnfit) and isinstance(error.reply, Reply):  # whole, and paid for
            answer = answer_entry(error.reply, request.event, request.correlation)
            return [answer, FinishedRun(exit=RunExit.ERROR, error=fault)]
        if self._partial:
            partial = [self._partial_answer(request.event, request.correlation, BROKEN_OFF)]
        else:
            partial = self._broken_answer(request)
        return [*partial, FinishedRun(exit=RunExit.ERROR, error=fault)]

    def _add_results(self) -> None:
        """The outcomes of all calls of the last answer, in the order of the calls."""
        parts = self._tools.results(self._run)
        results = NewMessage(role=MessageRole.TOOL, content=tuple(parts))
        if parts:
            self._asks_next = True
            self.fitting.add([results])
        if parts and self.messages is not None:
            self.messages.append(results)

    async def _stop_all(self) -> None:
        model, self._model = self._model, None
        if model is not None:
            model.cancel()
            await asyncio.gather(model, return_exceptions=True)
        await self._tools.stop()
