"""How an MCP server is reached: a sandboxed process that is spoken with in lines, or guarded HTTP.

Both are given to the client library as a pair of streams. The library starts no process and opens no connection.
A process that writes what is no message, or more than it was asked for, is not spoken with any longer.
"""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from mcp.client import Transport
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest, jsonrpc_message_adapter
from pydantic import ValidationError

from weft.kernel.errors import InvalidInput, StoreFailed
from weft.runtime.context import ExecutionContext
from weft.runtime.egress.connection_rules import Rules
from weft.runtime.egress.connections import Connections, Seen
from weft.runtime.egress.credentials import Secret, Variable, checked_secret
from weft.runtime.mcp.package_sources import FETCH_SECONDS, INSTALLERS, cache_name, package_use
from weft.runtime.mcp.server_settings import CommandServer, HttpServer, McpServer
from weft.runtime.sandbox.command_runner import CommandRunner, start_failure
from weft.runtime.sandbox.line_process import LineProcess
from weft.runtime.sandbox.processes import GIB, MIB, Ending, Limits, ProcessOutcome

SERVER_LIMITS = Limits(output=16 * MIB, memory=GIB)
SHOW_FOLDER = "show it the folder that the program is installed in, by --readable"
MOST_MESSAGES = 10_000
"""So many messages may come until the server is asked something again."""
MOST_ANSWER_BYTES = 64 * MIB
"""Of one HTTP answer; a stream of notifications is one, too, and is opened again after that."""
MOST_EVENT_BYTES = 16 * MIB
_READ_SECONDS = 600.0
_GRACE_SECONDS = 1.0
_PASSED_ON = ("PATH", "HOME", "USER", "LANG")
"""What a server outside of the sandbox is given of the environment, beside what is configured."""

Streams = tuple[anyio.abc.ObjectReceiveStream[SessionMessage | Exception], anyio.abc.ObjectSendStream[SessionMessage]]


class ServerLink:
    """One way to one server, opened once. `fault` says why it ended where that was the server's doing."""

    def __init__(
        self,
        server: McpServer,
        acting: ExecutionContext,
        variable: Variable,
        runner: CommandRunner,
        network: Connections,
        *,
        may_fetch: bool = False,
    ) -> None:
        self._server, self._acting, self._variable, self._network = server, acting, variable, network
        self._runner = runner
        self._packages = package_use(server, runner.person.caches, may_fetch=may_fetch)
        self._fault: str | None = None
        self._seen = Seen()
        self.is_abandoned = False
        self.advice: str | None = None
        """What a person can do where the server could not be started."""
        self.secrets: tuple[Secret, ...] = ()

    @property
    def fault(self) -> str | None:
        return self._fault or self._seen.fault

    @fault.setter
    def fault(self, reason: str) -> None:
        self._fault = reason

    @property
    def start_seconds(self) -> float:
        """How long it may take until the server answers; longer where it fetches its packages first."""
        is_fetching = self._packages is not None and self._packages.is_fetching
        return max(self._server.start_seconds, FETCH_SECONDS if is_fetching else 0.0)

    def transport(self) -> Transport:
        """For the client library."""
        return self._open()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Any]:
        settings = self._server.transport
        if isinstance(settings, HttpServer):
            async with await self._http(settings) as streams:
                yield streams
            return
        async with self._started(settings) as process:
            try:
                async with self._process_streams(process, settings) as streams:
                    yield streams
            finally:
                await process.stop(0.0 if self.fault or self.is_abandoned else _GRACE_SECONDS)

    async def _http(self, settings: HttpServer) -> Transport:
        keys: dict[str, Secret] = {}
        if settings.credential is not None:
            key = await self._acting.credential(settings.credential, settings.url)
            self.secrets = (key,)
            has_scheme = settings.header.lower() == "authorization"
            keys[settings.header.lower()] = Secret(f"Bearer {key.reveal()}") if has_scheme else key
        rules = Rules(allow_private=settings.allow_private, read_seconds=_READ_SECONDS)
        client, self._seen = self._network.client(settings.url, keys, rules, most_bytes=MOST_ANSWER_BYTES)
        return streamable_http_client(settings.url, http_client=client, max_sse_event_size=MOST_EVENT_BYTES)

    @asynccontextmanager
    async def _started(self, settings: CommandServer) -> AsyncIterator[LineProcess]:
        environment, profile, packages = await self._environment(settings), settings.sandbox, self._packages
        if packages is not None:
            environment, profile = packages.variables | environment, packages.profile
        folder = None if settings.folder is None else Path(settings.folder)
        if folder is not None and not folder.is_dir():
            raise InvalidInput(f"the folder {folder} of server {self._server.name} is missing", "make it first")
        if profile.is_unconfined:
            passed_on = {name: value for name in _PASSED_ON if (value := self._variable(name)) is not None}
            environment = passed_on | environment
        async with self._runner.started(
            profile,
            [settings.command, *settings.args],
            workspace=folder,
            environment=environment,
            readable=[Path(place) for place in settings.readable],
            cache_name=None if profile.is_read_only and packages is None else cache_name(self._server),
            limits=SERVER_LIMITS,
        ) as process:
            yield process

    async def _environment(self, settings: CommandServer) -> dict[str, str]:
        """The variables that are configured. One that is not set in the user's environment is left out."""
        environment: dict[str, str] = {}
        secrets: list[Secret] = []
        for name, source in settings.variables.items():
            if source.credential is not None:
                secrets.append(await self._acting.credential_for_program(source.credential))
                environment[name] = secrets[-1].reveal()
            elif source.env is not None and (value := self._variable(source.env)) is not None:
                environment[name] = value
                if value.isascii() and value.isprintable() and value.strip():
                    secrets.append(checked_secret(name, value))  # nobody knows whether it is one
        self.secrets = tuple(secrets)
        return environment

    async def _why_ended(self, settings: CommandServer, outcome: ProcessOutcome) -> str:
        argv = [settings.command, *settings.args]
        folder = None if settings.folder is None else Path(settings.folder)
        failure = start_failure(argv, outcome)
        explained = await self._runner.explained(argv, outcome, folder, [Path(place) for place in settings.readable])
        if explained is not outcome:
            self.advice = SHOW_FOLDER
        elif failure == os.strerror(errno.ENOENT):
            what, self.advice = missing_program(settings.command)
            return what
        elif self._packages is not None and not self._packages.is_fetching:
            self.advice = (
                "where its packages are incomplete, remove the server and add it again, which fetches them anew"
            )
        return ended_because(explained)

    @asynccontextmanager
    async def _process_streams(self, process: LineProcess, settings: CommandServer) -> AsyncIterator[Any]:
        to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)
        budget = _MessageBudget()

        async def read() -> None:
            async with to_session:
                while (line := await process.line()) is not None:
                    if not line.strip():
                        continue
                    try:
                        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                    except ValidationError:
                        self.fault = "it wrote a line that is no message of the protocol"
                        return
                    if not budget.take():
                        self.fault = f"it wrote more than {MOST_MESSAGES} messages unasked"
                        return
                    await to_session.send(SessionMessage(message))
                outcome = await process.ended()
                self.fault = self.fault or await self._why_ended(settings, outcome)

        async def write() -> None:
            async for sent in from_session:
                is_request = isinstance(sent.message, JSONRPCRequest)
                if is_request:
                    budget.renew()
                line = sent.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
                try:
                    process.write(line, is_request=is_request)
                except StoreFailed as error:
                    self.fault = self.fault or str(error)
                    await to_session.aclose()
                    return

        async with incoming, outgoing, from_session, anyio.create_task_group() as tasks:
            tasks.start_soon(_until_closed, read)
            tasks.start_soon(_until_closed, write)
            yield incoming, outgoing
            tasks.cancel_scope.cancel()


class _MessageBudget:
    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self._left = MOST_MESSAGES

    def take(self) -> bool:
        self._left -= 1
        return self._left >= 0


async def _until_closed(work: Callable[[], Awaitable[None]]) -> None:
    """A stream that the session has closed ends the work."""
    try:
        await work()
    except (anyio.ClosedResourceError, anyio.BrokenResourceError):
        return


def missing_program(command: str) -> tuple[str, str]:
    """What is missing where a command was not found, and what to do. The command is the person's own, so it may be
    looked for outside of the sandbox."""
    if "/" in command:
        if os.path.exists(command):
            return f"{command} is hidden from it, or what its first line names is", SHOW_FOLDER
        return f"there is no {command}", "give the path of a program that is there"
    package = INSTALLERS.get(command)
    install = f"install {package}" if package is not None else "install it"
    return (
        f"there is no program {command} where its sandbox looks: in the system's folders and those of version managers",
        f"{install}, or give the whole path of the program, and show the folder that it is installed in by --readable",
    )


def ended_because(outcome: ProcessOutcome) -> str:
    """How a server's process ended, with the last line that it said of it."""
    lines = outcome.stderr.decode(errors="replace").strip().splitlines()
    last_line = f": {lines[-1][:500]}" if lines else ""
    match outcome.ending:
        case Ending.TOO_MUCH_OUTPUT:
            return f"it wrote more than {SERVER_LIMITS.output} bytes unasked"
        case Ending.EXITED:
            return f"it ended with code {outcome.code}{last_line}"
        case ending:
            return f"it was ended: {ending.value.replace('_', ' ')}{last_line}"
