"""One connection to an MCP server: the official client's session, kept open by a task of its own.

The server is a sandboxed process that is spoken with in lines, or is reached by guarded HTTP.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import errno
import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import anyio
import mcp
import msgspec
from mcp import Client
from mcp.client import Transport
from mcp.client.session import IncomingMessage
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    EmptyResult,
    ImageContent,
    Implementation,
    JSONRPCRequest,
    PaginatedRequestParams,
    ResourceLink,
    ResourceListChangedNotification,
    ResourceUpdatedNotification,
    SubscribeRequest,
    SubscribeRequestParams,
    TextContent,
    TextResourceContents,
    ToolListChangedNotification,
    jsonrpc_message_adapter,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from msgspec import Struct
from pydantic import ValidationError

from weft.kernel.contents import loads
from weft.kernel.errors import InvalidInput, StoreFailed, WeftError
from weft.ledger.model import ImagePart
from weft.runtime.egress.connections import Connections, DecodingError, SeenAnswer, TransportError
from weft.runtime.egress.credentials import ConnectionRules, KeyTraces, Secret, Variable, checked_secret
from weft.runtime.egress.execution_context import ExecutionContext
from weft.runtime.sandbox.command_runner import CommandRunner, start_failure
from weft.runtime.sandbox.processes import GIB, MIB, Ending, Limits, LineProcess, ProcessOutcome
from weft.runtime.tool.tool_contract import ToolFailure, ToolOutput
from weft.runtime.tools.mcp_server_settings import (
    FETCH_SECONDS,
    INSTALLERS,
    MOST_TOOLS,
    CommandServer,
    HttpServer,
    McpServer,
    ToolDefinition,
    cache_name,
    checked_definitions,
    definition_of,
    package_use,
)

# --- How an MCP server is reached: a sandboxed process that is spoken with in lines, or guarded HTTP.

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
        self._seen = SeenAnswer()
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
        rules = ConnectionRules(allow_private=settings.allow_private, read_seconds=_READ_SECONDS)
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
                outcome = await process.wait_for_end()
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


# --- One connection to an MCP server: the official client's session, kept open by a task of its own.

MOST_NOTICES = 256
"""So many notices of resources are taken until the server is asked something again."""
_Result = TypeVar("_Result")


class _WithoutLibrary(logging.Filter):
    """Drops what the client library logs: it is a server's text, and no terminal is to be shown it. One of its loggers
    has a name that others may use, too."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.pathname.startswith(os.path.dirname(mcp.__file__))


logging.getLogger("client").addFilter(_WithoutLibrary())
logging.getLogger("mcp").addHandler(logging.NullHandler())
logging.getLogger("mcp").propagate = False


class ResourceNotice(Struct, frozen=True, kw_only=True):
    """A server said that a resource changed, or, without `uri`, that its list of resources did. `run` is the turn that
    it works for, where that is one alone."""

    server: str
    uri: str | None = None
    run: str | None = None


OnNotice = Callable[[ResourceNotice], Awaitable[None]]


class McpConnection:
    """A server that is spoken with. `open` before anything else, `close` at the end; any task may call."""

    def __init__(self, server: McpServer, link: ServerLink, on_notice: OnNotice | None = None) -> None:
        self.server, self._link, self._on_notice = server, link, on_notice
        self._client: Client | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self.open_calls = 0
        self._is_retired = False
        self._notices_left = MOST_NOTICES
        self._runs: list[str] = []
        """The turns whose calls are under way."""
        self._last_run: str | None = None
        self._definitions: tuple[ToolDefinition, ...] | None = None

    @property
    def is_usable(self) -> bool:
        return self._client is not None and not self._is_retired and self._link.fault is None

    async def open(self) -> None:
        """Raises ToolFailure where the server does not start, or does not speak the protocol, in its time."""
        self._task = asyncio.create_task(self._keep_open(), name=f"weft-mcp-{self.server.name}")
        try:
            async with asyncio.timeout(self._link.start_seconds):
                await asyncio.shield(self._ready)
        except TimeoutError:
            await self.close()
            raise ToolFailure("not_started", f"{self._named} did not start in {self._link.start_seconds:g} s") from None
        except BaseException:  # it failed, or nobody waits for it any longer: nothing of it stays
            await self.close()
            raise

    async def _keep_open(self) -> None:
        client = Client(
            self._link.transport(),
            message_handler=self._take_message,
            client_info=Implementation(name="weft", version=version("weft")),
            cache=None,
        )
        try:
            async with client:
                self._client = client
                await self._subscribe(client)
                if not self._ready.done():
                    self._ready.set_result(None)
                await self._closing.wait()
        except Exception as error:  # whatever a stranger's server makes the library raise ends this connection alone
            if not self._ready.done():
                self._ready.set_exception(self._start_failure(error))
                self._ready.exception()  # nobody may be waiting any longer
            else:
                self._link.fault = self._link.fault or f"the connection broke: {_error_line(error)}"
        finally:
            self._client = None
            if self._listening is not None:
                self._listening.cancel()
            if not self._ready.done():
                self._ready.cancel()

    def _start_failure(self, error: Exception) -> Exception:
        """Errors of the configuration are raised as they are; the library wraps what happened beside it in groups."""
        causes = list(_leaves(error))
        own = next((cause for cause in causes if isinstance(cause, WeftError | ToolFailure)), None)
        if own is not None:
            return own
        reason = self._link.fault or "; ".join(dict.fromkeys(map(_error_line, causes)))
        advice = msgspec.UNSET if self._link.advice is None else {"advice": self._link.advice}
        return ToolFailure("not_started", self.hidden(f"{self._named} could not be started: {reason}"), advice)

    async def _subscribe(self, client: Client) -> None:
        """Ask for changes. Older servers send those of lists unasked."""
        if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
            self._listening = asyncio.create_task(self._listen(client), name=f"weft-mcp-{self.server.name}-changes")
            return
        resources = client.server_capabilities.resources
        if resources is not None and resources.subscribe:
            for uri in self.server.subscriptions:
                await client.session.send_request(SubscribeRequest(params=SubscribeRequestParams(uri=uri)), EmptyResult)

    async def _listen(self, client: Client) -> None:
        """What is listened for comes to `_take_message`, too."""
        try:
            async with client.listen(
                tools_list_changed=True,
                resources_list_changed=True,
                resource_subscriptions=self.server.subscriptions,
            ) as subscription:
                async for _ in subscription:
                    continue
        except Exception:  # it does not tell of changes, or no longer: definitions are compared before each call
            return

    async def _take_message(self, message: IncomingMessage) -> None:
        match message:
            case ToolListChangedNotification():
                self._definitions = None
            case ResourceListChangedNotification():
                await self._notice(ResourceNotice(server=self.server.name, run=self._run))
            case ResourceUpdatedNotification():
                uri = self.hidden(message.params.uri)
                await self._notice(ResourceNotice(server=self.server.name, uri=uri, run=self._run))
            case _:
                return

    @property
    def _run(self) -> str | None:
        """For which turn it works: that of the calls under way, else of the last call. None for several at once."""
        runs = set(self._runs)
        if len(runs) > 1:
            return None
        return runs.pop() if runs else self._last_run

    async def _notice(self, notice: ResourceNotice) -> None:
        self._notices_left -= 1
        if self._notices_left < 0:
            self._link.fault = f"it told of more than {MOST_NOTICES} changed resources unasked"
            self._closing.set()
        elif self._on_notice is not None:
            await self._on_notice(notice)

    async def definitions(self, *, again: bool = False) -> tuple[ToolDefinition, ...]:
        """The tools that the server defines; asked for `again`, or where it said that they changed."""
        if again or self._definitions is None:
            self._definitions = await self._request(self._listed(), self.server.start_seconds)
        return self._definitions

    async def _listed(self) -> tuple[ToolDefinition, ...]:
        definitions: list[ToolDefinition] = []
        cursor: str | None = None
        cursors: set[str] = set()
        while True:
            page = await self._session.list_tools(params=PaginatedRequestParams(cursor=cursor))
            definitions.extend(map(definition_of, page.tools))
            cursor = page.next_cursor
            if cursor is None or len(definitions) > MOST_TOOLS:
                return checked_definitions(self.server.name, definitions)
            if cursor in cursors or len(cursors) >= MOST_TOOLS:
                raise ToolFailure("server_error", f"{self._named} lists its tools without end")
            cursors.add(cursor)

    async def call(self, tool: str, arguments: dict[str, Any], run: str | None = None) -> CallToolResult:
        """Raises ToolFailure however else the call ends. A process that did not answer in time is not used again. `run`
        is the turn that calls."""
        if run is None:
            return await self._request(self._session.call_tool(tool, arguments), self.server.call_seconds)
        self._runs.append(run)
        self._last_run = run
        try:
            return await self._request(self._session.call_tool(tool, arguments), self.server.call_seconds)
        finally:
            self._runs.remove(run)

    async def _request(self, asking: Awaitable[_Result], seconds: float) -> _Result:
        self._notices_left = MOST_NOTICES
        with self._counted():
            try:
                async with asyncio.timeout(seconds):
                    return await asking
            except TimeoutError:
                self.abandon()
                raise ToolFailure("timed_out", f"{self._named} did not answer in {seconds:g} s") from None
            except asyncio.CancelledError:
                self.abandon()
                raise
            except MCPError as error:
                raise self._refused(error) from None
            except ValidationError as error:
                raise ToolFailure("invalid_result", f"{self._named} answered what the protocol does not know: "
                                  f"{error.error_count()} faults") from None  # fmt: skip
            except RuntimeError as error:
                raise ToolFailure("invalid_result", self.hidden(f"{self._named}: {_error_line(error)}")) from None
            except (DecodingError, TransportError) as error:
                raise ToolFailure("server_ended", self.hidden(f"{self._named}: {_error_line(error)}")) from None

    def _refused(self, error: MCPError) -> ToolFailure:
        is_closed = error.code == CONNECTION_CLOSED and str(error) == "Connection closed"
        if is_closed or self._link.fault is not None:
            self.retire()
            return ToolFailure(
                "server_ended", self.hidden(f"{self._named} ended: {self._link.fault or _error_line(error)}")
            )
        details = {"code": error.code, "data": self.hidden(error.error.data)}
        return ToolFailure("server_error", self.hidden(f"{self._named}: {_error_line(error)}"), details)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.open_calls += 1
        try:
            yield
        finally:
            self.open_calls -= 1
            if self._is_retired and not self.open_calls:
                self._closing.set()

    @property
    def _session(self) -> Any:
        if self._client is None:
            raise ToolFailure("server_ended", self.hidden(f"{self._named} ended: {self._link.fault or 'closed'}"))
        return self._client.session

    def retire(self) -> None:
        """Take no further calls, and close when those that are open have ended: nothing goes on that nobody awaits."""
        self._is_retired = True
        if not self.open_calls:
            self._closing.set()

    def abandon(self) -> None:
        """Retire, and let a process have no time to end by itself: it works on what nobody awaits."""
        self._link.is_abandoned = True
        self.retire()

    async def wait_for_end(self) -> None:
        """Wait until nothing of the connection is left."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def close(self) -> None:
        self._is_retired = True
        self._closing.set()
        if self._task is None:
            return
        if not self._ready.done():
            self._task.cancel()
        await self.wait_for_end()

    @property
    def _named(self) -> str:
        return f"the MCP server {self.server.name}"

    def hidden(self, value: Any) -> Any:
        """A value from the server without traces of the keys that it was given."""
        return KeyTraces(self._link.secrets).hidden_in_value(value)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _error_line(error: BaseException) -> str:
    """An error in a line: what a server wrote is cut."""
    return " ".join(str(error).split())[:1000] or type(error).__name__


# --- What a server answered to a call, as the result of a tool: JSON, and images beside it.

_is_image_type = re.compile(r"image/[A-Za-z0-9.+-]{1,64}").fullmatch
_LONGEST_MESSAGE = 4000


def output_of(answer: CallToolResult) -> ToolOutput:
    """Text alone is the result itself. Other parts stand in a list, images as a mark of what is given beside it.

    Raises ToolFailure where the server says that the tool failed.
    """
    images: list[ImagePart] = []
    blocks = [_block(block, images) for block in answer.content]
    result = _combined(blocks, answer.structured_content)
    if answer.is_error:
        texts = [block["text"] for block in blocks if isinstance(block.get("text"), str)]
        message = "\n".join(texts)[:_LONGEST_MESSAGE] or "the tool failed and does not say why"
        raise ToolFailure("tool_error", message, result)
    return ToolOutput(result=result, images=tuple(images))


def _combined(blocks: list[dict[str, Any]], structured: Any) -> Any:
    """Servers say structured content once more in words, for clients that read nothing else: then it stands alone.
    What is no object they wrap into `{"result": …}`."""
    is_text = len(blocks) == 1 and blocks[0]["type"] == "text"
    if structured is None:
        return blocks[0]["text"] if is_text else blocks
    if not blocks or (is_text and _says(blocks[0]["text"], structured)):
        return structured
    is_wrapped = isinstance(structured, dict) and list(structured) == ["result"]
    if is_wrapped and is_text and _says(blocks[0]["text"], structured["result"]):
        return structured["result"]
    return {"structured": structured, "content": blocks}


def _says(text: str, value: Any) -> bool:
    """Whether a text is this value, or its JSON."""
    if text == value:
        return True
    try:
        return bool(loads(text.encode()) == value)
    except (WeftError, UnicodeEncodeError):
        return False


def _block(block: Any, images: list[ImagePart]) -> dict[str, Any]:
    match block:
        case TextContent():
            return {"type": "text", "text": block.text}
        case ImageContent():
            return _image(block.mime_type, block.data, images)
        case AudioContent():
            return {"type": "audio", "media_type": block.mime_type, "data": block.data}
        case ResourceLink():
            return _given(
                type="link", uri=str(block.uri), name=block.name, description=block.description,
                media_type=block.mime_type,
            )  # fmt: skip
        case EmbeddedResource():
            return _resource(block.resource, images)
        case _:
            return {"type": "unknown", "kind": str(getattr(block, "type", ""))[:64]}


def _resource(resource: TextResourceContents | BlobResourceContents, images: list[ImagePart]) -> dict[str, Any]:
    if isinstance(resource, TextResourceContents):
        return _given(type="resource", uri=str(resource.uri), media_type=resource.mime_type, text=resource.text)
    if resource.mime_type is not None and _is_image_type(resource.mime_type):
        return {**_image(resource.mime_type, resource.blob, images), "uri": str(resource.uri)}
    return _given(type="resource", uri=str(resource.uri), media_type=resource.mime_type, data=resource.blob)


def _image(media_type: str, data: str, images: list[ImagePart]) -> dict[str, Any]:
    """An image is given beside the result; what is none by its type or its writing is said to be so."""
    try:
        size = len(base64.b64decode(data, validate=True))
    except (binascii.Error, ValueError):
        size = None
    if size is None or not _is_image_type(media_type):
        return {"type": "image", "media_type": media_type[:64], "is_valid": False}
    images.append(ImagePart(f"data:{media_type};base64,{data}"))
    return {"type": "image", "media_type": media_type, "number": len(images), "bytes": size}


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
