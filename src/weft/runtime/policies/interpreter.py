"""Warm interpreters of policies: one sandbox per source, in which every decision has a process of its own.

A thread per interpreter starts the sandbox, sends calls and reads what came of them, one after the other. Each call
goes with a nonce that the policy never sees; a frame with another nonce ends the interpreter. One that ended, hangs or
took more than it may is killed, and the next call starts another.
"""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from msgspec import Struct

from weft.kernel.clock import system_random
from weft.kernel.errors import WeftError
from weft.ledger.api import digest_of_source
from weft.runtime.policies import harness
from weft.runtime.policies.contract import (
    DECISION_SECONDS,
    INPUT_BYTES,
    PolicyAnswer,
    PolicyCall,
    ScriptEnding,
    ScriptOutcome,
    call_document,
    failed_answer,
    read_answer,
)
from weft.runtime.sandbox.bubblewrap import Sandbox
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.processes import MIB, Limits
from weft.runtime.sandbox.protected_places import ProtectedPlaces
from weft.runtime.sandbox.sandbox_plan import PROGRAM_FOLDER
from weft.runtime.sandbox.sandboxed_server import SandboxedServer, ServerLost
from weft.runtime.sandbox.visible_files import interpreter_files

POLICY_LIMITS = Limits(memory=256 * MIB, processes=16)
START_SECONDS = 10.0
GRACE_SECONDS = 1.0
"""So much longer is waited for the harness, which ends a policy that takes too long by itself."""
WARM_INTERPRETERS = 8
"""How many are held ready at once; the one unused for longest is stopped first."""
_HARNESS, _POLICY = "harness.py", harness.POLICY_PATH.removeprefix(f"{PROGRAM_FOLDER}/")
_ENDINGS = {
    harness.EXITED: ScriptEnding.EXITED,
    harness.TIMED_OUT: ScriptEnding.TIMED_OUT,
    harness.TOO_MUCH_OUTPUT: ScriptEnding.TOO_MUCH_OUTPUT,
    harness.LEFT_PROCESSES: ScriptEnding.LEFT_PROCESSES,
    harness.UNREAD_INPUT: ScriptEnding.UNREAD_INPUT,
}


class _Request(Struct, frozen=True):
    document: bytes
    seconds: float
    outcome: Future[ScriptOutcome]


_Requests = queue.SimpleQueue[_Request | None]


class PolicyInterpreter:
    """Runs one policy, warm. It is stopped by `stop`, and where nobody refers to it any longer."""

    def __init__(
        self, sandbox: Sandbox, source: str, protected: ProtectedPlaces, limits: Limits = POLICY_LIMITS
    ) -> None:
        self._requests: _Requests = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=_serve,
            args=(self._requests, sandbox, source.encode(), protected, limits),
            name="weft-policy",
            daemon=True,
        )
        self._thread.start()
        self._end = weakref.finalize(self, self._requests.put, None)

    async def decide(self, call: PolicyCall, seconds: float = DECISION_SECONDS) -> PolicyAnswer:
        """What the policy decides about a call. Its failures are answers too, and refuse."""
        try:
            document = call_document(call)
        except WeftError as error:
            return failed_answer(f"it cannot be shown the call: {error}")
        if len(document) > INPUT_BYTES:
            return failed_answer(f"the call has more than {INPUT_BYTES} bytes")
        return read_answer(await self.run(document, seconds), seconds)

    async def run(self, document: bytes, seconds: float = DECISION_SECONDS) -> ScriptOutcome:
        """Run the policy once with this on its standard input."""
        request = _Request(document, seconds, Future())
        self._requests.put(request)
        return await asyncio.wrap_future(request.outcome)

    def stop(self) -> None:
        """End the sandbox, and wait for that. A decision under way is still answered."""
        self._end()
        self._thread.join()


class PolicyInterpreters:
    """The interpreters of one process, by the digest of their source. Policies never share one."""

    def __init__(self, runner: CommandRunner) -> None:
        self.runner = runner
        self._interpreters: OrderedDict[str, PolicyInterpreter] = OrderedDict()

    async def of(self, source: str) -> PolicyInterpreter:
        """The interpreter of this source. Raises Unsupported where there is no sandbox."""
        sandbox = await self.runner.sandbox()
        digest = digest_of_source(source)
        interpreter = self._interpreters.pop(digest, None) or PolicyInterpreter(sandbox, source, self.runner.protected)
        self._interpreters[digest] = interpreter
        while len(self._interpreters) > WARM_INTERPRETERS:
            self._interpreters.popitem(last=False)
        return interpreter

    def stop(self) -> None:
        while self._interpreters:
            self._interpreters.popitem()[1].stop()


def _serve(requests: _Requests, sandbox: Sandbox, source: bytes, protected: ProtectedPlaces, limits: Limits) -> None:
    """The thread of an interpreter. The sandbox is started with the first call, and again when it was lost."""
    server: SandboxedServer | None = None
    while (request := requests.get()) is not None:
        try:
            if server is None or server.has_ended:
                _stop(server)
                server = _start(sandbox, source, protected, limits)
            outcome = _exchange(server, request.document, request.seconds)
        except ServerLost as lost:
            _stop(server)
            outcome, server = ScriptOutcome(ending=ScriptEnding.LOST, why=str(lost)), None
        except BaseException as error:  # it is raised where the decision is awaited
            _stop(server)
            server = None
            _settle(request, error)
            continue
        _settle(request, outcome)
    _stop(server)


def _settle(request: _Request, outcome: ScriptOutcome | BaseException) -> None:
    if not request.outcome.set_running_or_notify_cancel():
        return  # nobody waits for it any longer
    if isinstance(outcome, ScriptOutcome):
        request.outcome.set_result(outcome)
    else:
        request.outcome.set_exception(outcome)


def _stop(server: SandboxedServer | None) -> None:
    if server is not None:
        server.stop()


def _start(sandbox: Sandbox, source: bytes, protected: ProtectedPlaces, limits: Limits) -> SandboxedServer:
    python = Path(sys.executable).resolve()
    readable, hidden = interpreter_files()
    command = [str(python), "-I", "-S", "-B", _HARNESS]
    server = SandboxedServer(
        sandbox,
        command,
        protected,
        files={_HARNESS: Path(harness.__file__).read_bytes(), _POLICY: source},
        readable=[*readable, python],
        hidden=hidden,
        limits=limits,
    )
    try:
        nonce, ending, *_ = harness.REPLY.unpack(server.receive(harness.REPLY.size, time.monotonic() + START_SECONDS))
        if (nonce, ending) != (harness.NO_NONCE, harness.READY):
            raise ServerLost("its interpreter did not start")
    except BaseException:  # nothing is left behind, whatever it was
        server.stop()
        raise
    return server


def _exchange(server: SandboxedServer, document: bytes, seconds: float) -> ScriptOutcome:
    """One decision. What does not carry the nonce of this call is no answer to it."""
    nonce = system_random(len(harness.NO_NONCE))
    deadline = time.monotonic() + seconds + GRACE_SECONDS
    server.send(harness.REQUEST.pack(nonce, int(seconds * 1000), len(document)) + document, deadline)
    return read_reply(nonce, lambda count: server.receive(count, deadline))


def read_reply(nonce: bytes, receive: Callable[[int], bytes]) -> ScriptOutcome:
    """What the harness says of the call with this nonce. Raises ServerLost where it says anything else."""
    echoed, ending, code, output_bytes, error_bytes = harness.REPLY.unpack(receive(harness.REPLY.size))
    if echoed != nonce or ending not in (*_ENDINGS, harness.CHANGED_SERVER):
        raise ServerLost("its interpreter answered another call")
    if ending == harness.CHANGED_SERVER:
        raise ServerLost("it changed the limits of its interpreter")
    if output_bytes > harness.OUTPUT_BYTES or error_bytes > harness.ERROR_BYTES:
        raise ServerLost("its interpreter answered with more than it may")
    stdout, stderr = receive(output_bytes), receive(error_bytes)
    return ScriptOutcome(ending=_ENDINGS[ending], code=code, stdout=stdout, stderr=stderr)
