"""The programs of an open ledger for blocking code: each is a handle, with the verbs of all
kinds and `invoke`, which waits for asynchronous work on an event loop in a thread of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from threading import Lock, Thread, current_thread
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import UNSET, UnsetType

from weft.kernel.authority import Authority
from weft.kernel.errors import InvalidInput, StoreError
from weft.ledger.api.ledger import Ledger
from weft.ledger.views.rows import Lease
from weft.programs.program_records import Difference, Program, ProgramChange, Resolver
from weft.programs.programs import Programs

if TYPE_CHECKING:
    from weft.aio.open_ledger import AsyncOpenLedger
    from weft.runtime.egress.execution_context import ExecutionContext
    from weft.runtime.inference.model_requests import Parameters
    from weft.runtime.invoke.invocation import Invocation, InvocationResult, Show
    from weft.runtime.replies import OnToken


# --- An event loop in a thread of its own, so that blocking code can wait for asynchronous work.

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for any number of threads at once, until it is closed."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait for the coroutine that `work` makes. A caller that is interrupted cancels it and waits for its end."""
        if current_thread() is self._thread:
            raise InvalidInput(
                "a blocking call was made inside of an invocation", "make it from another thread, or use weft.aio"
            )
        outcome: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []
        try:
            self._loop.call_soon_threadsafe(self._begin, work, tasks, outcome)
            return outcome.result()
        except BaseException:  # also an interrupted caller leaves no work behind
            if not outcome.done():
                self._loop.call_soon_threadsafe(_stop, tasks, outcome)
                wait([outcome])
            raise

    def _begin(
        self, work: Callable[[], Coroutine[Any, Any, T]], tasks: list[asyncio.Task[T]], outcome: Future[T]
    ) -> None:
        task = self._loop.create_task(work())
        tasks.append(task)
        task.add_done_callback(lambda ended: _hand_over(ended, outcome))

    def close(self) -> None:
        """End the loop and its thread; what still runs is cancelled."""
        if not self._thread.is_alive():
            return
        self.run(self._cancel_rest)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_rest(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()


def _stop(tasks: list[asyncio.Task[T]], outcome: Future[T]) -> None:
    """Called after `_begin`, or where the caller was interrupted before that, instead of it."""
    if not tasks:
        outcome.set_exception(asyncio.CancelledError())
    for task in tasks:
        task.cancel()


def _hand_over(task: asyncio.Task[T], outcome: Future[T]) -> None:
    if task.cancelled():
        outcome.set_exception(asyncio.CancelledError())
        return
    error = task.exception()
    if error is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())


# --- The programs of an open ledger for blocking code: each is a handle, with the verbs of all kinds and `invoke`.


class Invoker:
    """The asynchronous side of one open ledger, with a thread of its own. Started when it is first used."""

    def __init__(self, ledger: Ledger, variable: Resolver | None) -> None:
        self._ledger, self._variable = ledger, variable
        self._lock, self._closed = Lock(), False
        self._started: tuple[LoopThread, AsyncOpenLedger] | None = None

    def run(self, work: Callable[[AsyncOpenLedger], Coroutine[Any, Any, T]]) -> T:
        """Wait for what is done with the ledger's asynchronous side."""
        loop, ledger = self._start()
        return loop.run(lambda: work(ledger))

    def _start(self) -> tuple[LoopThread, AsyncOpenLedger]:
        from weft.aio.crossing import Pool
        from weft.aio.open_ledger import AsyncOpenLedger, SharedInference

        with self._lock:
            if self._closed:
                raise StoreError("the ledger is closed", "open it again")
            if self._started is None:
                inference = SharedInference(self._variable)
                self._started = LoopThread("weft-invoke"), AsyncOpenLedger(self._ledger, Pool(), inference)
            return self._started

    def close(self) -> None:
        """Close what reaches outside, and end the thread. The ledger stays open."""
        with self._lock:
            self._closed, started, self._started = True, self._started, None
        if started is None:
            return
        loop, ledger = started
        try:
            loop.run(ledger.inference.close)
            loop.run(lambda: ledger._pool.close(lambda: None))
        finally:
            loop.close()


class LedgerPrograms(Programs):
    """The programs of an open ledger. `programs[name]` is one of them, whatever its kind. Thread-safe."""

    def __init__(self, ledger: Ledger, invoker: Invoker, hold: Lease | None = None) -> None:
        super().__init__(ledger, hold)
        self._invoker = invoker

    def __getitem__(self, name: str) -> ProgramHandle:
        return ProgramHandle(self, name)

    def acting_as(self, who: Authority | str, hold: Lease | None = None) -> LedgerPrograms:
        """The same programs, changed and invoked in the name of somebody else."""
        return LedgerPrograms(self.ledger.acting_as(who), self._invoker, hold)

    def invoke(
        self,
        name: str,
        invocation: Invocation,
        *,
        on_token: OnToken | None = None,
        show: Show | None = None,
        context: ExecutionContext | None = None,
    ) -> InvocationResult:
        """Invoke a program by its name or address: in this context, else in that which the caller runs in, else in
        that of whoever opened the ledger; and for everybody in whose name the ledger acts."""
        from weft.aio.open_ledger import current_execution_context

        acting = context or current_execution_context()  # of this thread, not of the loop's
        return self._invoker.run(
            lambda ledger: ledger.programs.acting_as(self.ledger.authority, self._hold).invoke(
                name, invocation, on_token=on_token, show=show, context=acting
            )
        )


class ProgramHandle:
    """One program, by its name or address. It is looked up anew by every verb."""

    def __init__(self, programs: LedgerPrograms, name: str) -> None:
        self._programs, self.name = programs, name

    def invoke(
        self,
        message: Any = None,
        *,
        input: Any | UnsetType = UNSET,
        model: str | None = None,
        situation: str | None = None,
        parameters: Parameters | None = None,
        task: str | None = None,
        workspace: str | None = None,
        asks: bool = False,
        about: str | None = None,
        key: str | None = None,
        on_token: OnToken | None = None,
        show: Show | None = None,
        context: ExecutionContext | None = None,
    ) -> InvocationResult:
        """Put it to work; each kind takes what it needs. `on_token` is called with a model's answer as it comes, `show`
        with the name of a person and what they are told on a terminal. Without a `context` it is invoked in that which
        the caller runs in, else in that of whoever opened the ledger."""
        from weft.runtime.inference.model_requests import NO_PARAMETERS
        from weft.runtime.invoke.invocation import Invocation

        invocation = Invocation(
            message=message,
            input=input,
            model=model,
            situation=situation,
            parameters=NO_PARAMETERS if parameters is None else parameters,
            task=task,
            workspace=workspace,
            asks=asks,
            about=about,
            key=key,
        )
        return self._programs.invoke(self.name, invocation, on_token=on_token, show=show, context=context)

    def get(self) -> Program:
        """The program as it is now."""
        return self._programs.get(self.name)

    @property
    def config(self) -> Any:
        """Its configuration as it is now."""
        return self.get().config

    def configure(
        self,
        config: dict[str, Any],
        *,
        expected: int | None = None,
        reason: str | None = None,
        key: str | None = None,
    ) -> Program:
        """Another configuration, whole."""
        return self._programs.configure(self.name, config, expected=expected, reason=reason, key=key)

    def change(
        self,
        changes: dict[str, Any],
        *,
        expected: int | None = None,
        reason: str | None = None,
        key: str | None = None,
    ) -> Program:
        """Some fields of its configuration; None takes one away."""
        return self._programs.change(self.name, changes, expected=expected, reason=reason, key=key)

    def publish(self, *, reason: str | None = None, key: str | None = None) -> Program:
        return self._programs.publish(self.name, reason=reason, key=key)

    def deprecate(self, *, reason: str | None = None, key: str | None = None) -> Program:
        return self._programs.deprecate(self.name, reason=reason, key=key)

    def delete(self, *, expected: int | None = None, reason: str | None = None, key: str | None = None) -> Program:
        """Hidden and deprecated; its name is free, its history stays."""
        return self._programs.delete(self.name, expected=expected, reason=reason, key=key)

    def revert(
        self,
        version: int,
        *,
        expected: int | None = None,
        reason: str | None = None,
        key: str | None = None,
    ) -> Program:
        """The configuration of an earlier version again."""
        return self._programs.revert(self.name, version, expected=expected, reason=reason, key=key)

    def history(self) -> list[ProgramChange]:
        """Everything that happened to it, newest first."""
        return self._programs.history(self.name)

    def diff(self, before: int | None = None, after: int | None = None) -> list[Difference]:
        """Where two versions of its configuration differ: by default the last two."""
        return self._programs.diff(self.name, before, after)
