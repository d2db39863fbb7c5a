"""Messages over HTTP: sent to a session, an agent, a turn or the thread that they belong to, and their answers.

A message is written to an inbox before anything is answered: any broker of the ledger goes on with it, whatever
becomes of this server. Whoever sends it waits for nothing, for the answer, or is sent what comes of it as it comes.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import re
from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from functools import partial
from hmac import compare_digest
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import Meta, Struct

from weft.kernel.authority import MACHINE_RIGHT, Layer, Rights
from weft.kernel.enums import FileKind, MessageRole
from weft.kernel.errors import InvalidInput, NotFound, WeftError
from weft.ledger.api import (
    Admission,
    InboxMessage,
    Ledger,
    MessageAdded,
    MessageSettled,
    OtherEvent,
    Runs,
    StreamItem,
    StreamPosition,
    TurnEnded,
    TurnParked,
    store_of,
    vouch_content,
)
from weft.ledger.imports import import_secret
from weft.ledger.model import FileNote, ImagePart, NewMessage, Part, StoredContent, TextPart
from weft.runtime.answer_streams import follow
from weft.runtime.assembly.configuration_layers import MessageOverrides, parse_overrides
from weft.runtime.replies import load_reply
from weft.surfaces.cli.work.broker_call import MAX_FILE_BYTES, attached_part, priced, receipt_fields, reply_fields
from weft.surfaces.server.application import Served, json_response
from weft.surfaces.server.event_streams import (
    LAST_ID_HEADER,
    EventStreams,
    ledger_of,
    sent_event,
    sent_item,
    wants_stream,
)
from weft.surfaces.server.guards import ensure_json, read_body
from weft.surfaces.server.problems import Refusal, problem_of
from weft.surfaces.server.route_table import BASE, RETRY_HEADER, Endpoint, EndpointDetails, page_schema
from weft.surfaces.wire.forms import form
from weft.verbs.answers import InterruptedTurn, SentMessage

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from weft.surfaces.server.callers import Caller

SEND_RIGHT = "turn:record"
MOST_WAIT_SECONDS = 600.0
"""A turn takes minutes where it uses tools. Whoever waits longer asks for the message, or follows the session."""
TOOLSET_RIGHT = "machine:toolset"
DEFAULT_SESSION = "main"


class SentText(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a message says, where it goes, and how it is answered. It has one target; without any it goes to the
    session main. What is configured is chosen otherwise or narrowed for this message alone."""

    text: Annotated[str, Meta(min_length=1)]
    session: Annotated[str | None, Meta(description="To this session, made if there is none")] = None
    agent: Annotated[str | None, Meta(description="To this agent: where it works, else its main session")] = None
    thread: Annotated[str | None, Meta(description="After this turn, in a fork if need be")] = None
    smart: Annotated[
        bool, Meta(description="To the thread that the text belongs to; where none is sure enough, to `session`")
    ] = False
    queue: Literal["followup", "collect", "interrupt", "steer"] = "followup"
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    attachments: Annotated[list[str], Meta(description="Ids of attachments that were uploaded", max_length=64)] = []
    workspace: Annotated[str | None, Meta(description="A folder of the server's machine; only its owner names one")] = (
        None
    )
    model: str | None = None
    situation: str | None = None
    thinking: str | None = None
    toolset: str | None = None
    parameters: Annotated[dict[str, Any], Meta(description="Parameters of the model, as its program names them")] = {}
    allow: Annotated[list[str], Meta(description="Patterns of tools: no others are used")] = []
    deny: Annotated[list[str], Meta(description="Patterns of tools that are not used")] = []
    sandbox: Annotated[str | None, Meta(description="A sandbox profile, which narrows what is configured")] = None
    credentials: Annotated[list[str], Meta(description="Ids of credentials: no others are used")] = []
    key: Annotated[str | None, Meta(description="As the header Idempotency-Key")] = None


# --- What is asked, checked before anything is written.


async def asked_message(request: Request) -> SentText:
    """Raises Refusal with 400, 413, 415 or 422."""
    body = await read_body(request)
    ensure_json(request, body)
    try:
        asked = msgspec.json.decode(body, type=SentText)
    except msgspec.ValidationError as error:
        raise Refusal(422, "invalid_input", str(error)) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refusal(400, "invalid_json", f"the body is no JSON: {error}"[:200]) from None
    if (asked.thread and (asked.session or asked.smart)) or (asked.smart and asked.agent):
        raise Refusal(422, "invalid_input", "a message has one target", "name session, agent or thread, or set smart")
    if not asked.text.strip():
        raise Refusal(422, "invalid_input", "the message is empty", "give a text")
    header = request.headers.get(RETRY_HEADER)
    if header is not None and asked.key not in (None, header):
        raise Refusal(422, "invalid_input", "Idempotency-Key and key differ")
    return asked if header is None else msgspec.structs.replace(asked, key=header)


_WAIT = re.compile(r"(?:^|[,;\s])wait=(\d{1,6})(?=$|[,;\s])", re.IGNORECASE)


def wait_seconds(request: Request) -> float:
    """How long the sender prefers to wait (RFC 7240); 0 where they do not."""
    waits = [_WAIT.search(value) for value in request.headers.getlist("prefer")]
    seconds = next((float(wait[1]) for wait in waits if wait is not None), 0.0)
    return min(seconds, MOST_WAIT_SECONDS)


def ensure_may_send(caller: Caller, asked: SentText) -> None:
    """Refuse what no turn of theirs could do, or names what only the owner of the machine names."""
    authority = caller.authority
    if not _may_ask_models(authority.rights):
        raise authority.refusal("model:*", "have a model asked")
    if asked.workspace is not None and not caller.may_use_machine:
        raise authority.refusal(MACHINE_RIGHT, "name a folder of this machine", "its owner can")
    if asked.toolset is not None and not (authority.is_local and authority.allows(TOOLSET_RIGHT, asked.toolset)):
        raise authority.refusal(TOOLSET_RIGHT, "give a message a toolset", "the ledger's owner can")


def _may_ask_models(rights: Rights) -> bool:
    """Whether there can be a model that every layer allows. Which one is asked is known when the turn is planned."""
    return all(_names_models(layer) and not _denies_models(layer) for layer in rights.layers)


def _names_models(layer: Layer) -> bool:
    return any(
        pattern.startswith(("model:", "*")) or "model:".startswith(pattern.rstrip("*?")) for pattern in layer.allow
    )


def _denies_models(layer: Layer) -> bool:
    return any(pattern in ("*", "model:*") for pattern in layer.deny)


def overrides_of(asked: SentText, caller: Caller) -> MessageOverrides:
    """How the message is answered otherwise than is configured. Raises InvalidInput."""
    overrides = parse_overrides(
        model=asked.model,
        situation=asked.situation,
        thinking=asked.thinking,
        toolset=asked.toolset,
        settings=[f"{name}={msgspec.json.encode(value).decode()}" for name, value in asked.parameters.items()],
        allow=asked.allow,
        deny=asked.deny,
        sandbox=asked.sandbox,
        credentials=asked.credentials,
    )
    if caller.credentials is None:
        return overrides
    named = caller.credentials if overrides.credentials is None else caller.credentials & {*overrides.credentials}
    return msgspec.structs.replace(overrides, credentials=tuple(sorted(named)))


# --- Admission. Called in a thread of the ledger.


class SentReceipt(Struct, frozen=True, kw_only=True):
    """A message that is written, how its place was found, and what has become of it until now."""

    admission: Admission
    route: Any
    state: str

    def record(self) -> SentMessage:
        return SentMessage(**receipt_fields(self.admission, self.state, self.route))


def admit(ledger: Ledger, caller: Caller, asked: SentText) -> SentReceipt:
    """Write the message to the inbox that its target leads to, in the name of whoever sends it."""
    from weft.programs.programs import Programs
    from weft.runtime.tool.toolsets import find_toolset
    from weft.surfaces.cli.trust import ensure_own_session

    ledger.trust.ensure("send a message to a model")
    ensure_may_send(caller, asked)
    overrides = overrides_of(asked, caller)
    if overrides.toolset is not None:
        find_toolset(Programs(ledger), overrides.toolset)
    session, thread, route = asked.session, asked.thread, None
    if asked.smart:
        from weft.surfaces.program_handles import chosen_route

        choice = chosen_route(ledger, asked.text, session)
        session, route = choice.session or (choice.fallback if choice.turn is None else None), {"smart": form(choice)}
        thread = None if session else choice.turn
    elif session is None and thread is None and asked.agent is None:
        ensure_own_session(ledger, DEFAULT_SESSION, "name it to continue it: session 'main'")
        session = DEFAULT_SESSION
    admission = ledger.inbox.admit(
        _message(ledger, caller, asked, session, thread),
        session=session,
        turn=thread,
        agent=asked.agent,
        mode=asked.queue,
        priority=asked.priority,
        overrides=overrides.record(),
        route=route,
        key=asked.key,
    )
    state, _ = Runs(ledger).message_state(admission.message)
    return SentReceipt(admission=admission, route=route, state=state)


def _message(ledger: Ledger, caller: Caller, asked: SentText, session: str | None, thread: str | None) -> NewMessage:
    folder = _folder(ledger, caller, asked, session, thread)
    context = None if folder is None else {"workspace": folder}
    if not asked.attachments:
        return NewMessage(role=MessageRole.USER, content=asked.text, context=context)
    attached = [read_attachment(ledger, id) for id in asked.attachments]
    return NewMessage(
        role=MessageRole.USER,
        content=(TextPart(asked.text), *(one.part() for one in attached)),
        files=tuple(FileNote(kind=FileKind.ATTACHED, path=one.name) for one in attached),
        context=context,
    )


def _folder(ledger: Ledger, caller: Caller, asked: SentText, session: str | None, thread: str | None) -> str | None:
    """The folder that the owner of the machine names, else the one that the session's last turn worked in. The folder
    that the server was started in is nobody's."""
    from weft.surfaces.cli.trust import copied_workspace, last_workspace, workspace_of

    if asked.workspace is not None:
        return workspace_of(asked.workspace)
    if not caller.may_use_machine or (session is not None and Runs(ledger).configured_folder(session) is not None):
        return None
    kept = copied_workspace(ledger, session) or last_workspace(ledger, session, thread)
    return kept if kept is not None and os.path.isdir(kept) else None


# --- Attachments: contents that are stored before the message, and read again with it.

MOST_ATTACHMENT_BYTES = MAX_FILE_BYTES
ATTACHMENT_SECONDS = 120.0
"""A slow line takes 16 MiB in less."""
MOST_NAME_LETTERS = 255
MAC_BYTES = 16
_PURPOSE = b"weft attachment\0"


class Attachment(Struct, frozen=True, array_like=True):
    """A content that somebody put as a part of a message to come."""

    ref: str
    size: int
    name: str
    is_image: bool

    def part(self) -> TextPart | ImagePart:
        content = StoredContent(self.ref, self.size)
        return ImagePart(content) if self.is_image else TextPart(content)


def put_attachment(ledger: Ledger, name: str, data: bytes) -> str:
    """Store a file as `weft send --attach` does; the id by which a message refers to it. Raises InvalidInput for one
    that is neither an image nor text."""
    part = attached_part(name, data)
    text = str(part.url if isinstance(part, ImagePart) else part.text)
    stored = ledger.put_content(text.encode())
    put = Attachment(stored.ref, stored.size, name, isinstance(part, ImagePart))
    payload = msgspec.json.encode(put)
    return urlsafe_b64encode(_seal(ledger, payload) + payload).decode().rstrip("=")


def read_attachment(ledger: Ledger, id: str) -> Attachment:
    """What an id stands for, for those alone who put it, at whichever server of the ledger. Raises InvalidInput."""
    try:
        sealed = urlsafe_b64decode(id + "=" * (-len(id) % 4))
        seal, payload = sealed[:MAC_BYTES], sealed[MAC_BYTES:]
        is_theirs = compare_digest(seal, _seal(ledger, payload))
        attachment = msgspec.json.decode(payload, type=Attachment) if is_theirs else None
    except ValueError:  # also of msgspec
        attachment = None
    if attachment is None:
        raise InvalidInput("there is no attachment of that id that you put", f"upload it: POST {BASE}/attachments")
    vouch_content(ledger, attachment.ref)
    return attachment


def _seal(ledger: Ledger, payload: bytes) -> bytes:
    """Under the ledger's own secret, so that every server of it knows its ids, and over whoever acts: nobody refers by
    an id to what somebody else put."""
    chain = msgspec.json.encode(ledger.authority.chain)
    text = _PURPOSE + len(chain).to_bytes(4, "big") + chain + payload
    return hmac.digest(import_secret(store_of(ledger)), text, "sha256")[:MAC_BYTES]


class AttachedFile(Struct, frozen=True, kw_only=True):
    """A file of a message: `number` counts them from 1."""

    number: int
    name: str
    media_type: str
    size: int


def attached_files(ledger: Ledger, message: str) -> list[tuple[AttachedFile, bytes]]:
    """The files that a message carries, for whoever may read it, waiting or answered."""
    found = ledger.inbox.get(message)
    names = [file.path for file in found.files if file.kind == FileKind.ATTACHED]
    files: list[tuple[AttachedFile, bytes]] = []
    for number, (name, part) in enumerate(zip(names, found.content[1:], strict=False), 1):
        media_type, data = _contents_of(name, part)
        files.append((AttachedFile(number=number, name=name, media_type=media_type, size=len(data)), data))
    return files


def _contents_of(name: str, part: Part) -> tuple[str, bytes]:
    """What was put, back from what models are sent of it. Of an erased one the mark that says so."""
    if isinstance(part, ImagePart):
        head, _, text = str(part.url).partition(";base64,")
        if text:
            return head.removeprefix("data:"), b64decode(text)
        return "text/plain; charset=utf-8", head.encode()
    text = str(part.text) if isinstance(part, TextPart) else ""
    return "text/plain; charset=utf-8", text.removeprefix(f"File {name}:\n").encode("utf-8", "surrogatepass")


# --- The answer: waited for, or told as it comes.


class AnswerReader:
    """What comes of one message, for whoever sent it, wherever it is answered."""

    def __init__(self, served: Served, caller: Caller, sent: SentReceipt, after: str | None) -> None:
        self._served, self.sent = served, sent
        self._mirror = ledger_of(served, caller)
        receipt = sent.admission.receipt
        self._after = after or (None if receipt is None else StreamPosition(receipt.n))
        self._told: set[str] = set()
        """The requests to people that were told."""

    def ensure_readable(self) -> None:
        """Raises NotFound where whoever sent it may not read where it went."""
        self._mirror.sync.session(self.sent.admission.session_id)

    async def items(self) -> AsyncGenerator[StreamItem, None]:
        """The items of its turn, until it is over, or the message is settled without one."""
        message, turn = self.sent.admission.message, None
        if self._after is not None:  # whoever goes on in the middle knows its beginning
            turn = await self._served.crossing.run(partial(Runs(self._mirror.sync).answering_turn, message))
        async with aclosing(follow(self._mirror, self.sent.admission.session_id, after=self._after)) as items:
            async for item in items:
                if isinstance(item, MessageAdded) and item.message == message:
                    turn = item.turn
                if isinstance(item, MessageSettled) and item.message == message:
                    yield item
                    return
                if turn is None or getattr(item, "turn", None) != turn:
                    continue
                yield item
                if isinstance(item, TurnEnded):
                    return

    def answer(self) -> SentMessage:
        """The message with its answer. Raises what its turn failed with. Called in a thread of the ledger."""
        ledger, admission = self._mirror.sync, self.sent.admission
        reply = priced(load_reply(ledger, ledger.inbox.get(admission.message)))
        return SentMessage(**receipt_fields(admission, "answered", self.sent.route), **reply_fields(reply))

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The receipt, what comes of the turn with the requests to people, and at the end the answer or the error."""
        run = self._served.crossing.run
        yield sent_event("message", form(self.sent.record()))
        async with aclosing(self.items()) as items:
            async for item in items:
                yield sent_item(item, str(item.position))
                if isinstance(item, TurnParked | OtherEvent):
                    for approval in await run(self._new_requests):
                        yield sent_event("approval", form(approval))
        try:
            answer = await run(self.answer)
        except WeftError as error:
            yield b"event: error\ndata: " + bytes(problem_of(error).body) + b"\n\n"
            return
        yield sent_event("answer", form(answer))

    def _new_requests(self) -> list[Any]:
        requests = Runs(self._mirror.sync).open_requests(self.sent.admission.session_id)
        new = [request for request in requests if request.id not in self._told]
        self._told.update(request.id for request in new)
        return new


async def awaited(served: Served, request: Request, reader: AnswerReader, seconds: float) -> bool:
    """Whether the message is settled within so many seconds. It ends early where the server does, or the client is
    gone: the message stays, and its answer can be asked for."""

    async def settled() -> bool:
        async with aclosing(reader.items()) as items:
            async for _ in items:
                pass
        return True

    async def gone() -> bool:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        return False

    async def ending() -> bool:
        await served.ending.wait()
        return False

    tasks = [asyncio.ensure_future(work()) for work in (settled, gone, ending)]
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0] in done and tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# --- Endpoints.


class MessageEndpoints:
    """Messages sent, looked at, taken back and sent again; and the files that go with them."""

    def __init__(self, served: Served, streams: EventStreams) -> None:
        self._served, self._streams, self._run = served, streams, served.crossing.run

    def listed(self) -> list[Endpoint]:
        def endpoint(method: str, path: str, right: str, handler: Any, **details: Any) -> Endpoint:
            told = EndpointDetails(tag="messages", **details)
            return Endpoint(method=method, path=BASE + path, right=right, handler=handler, details=told)

        sent: dict[str, Any] = {"answer": SentMessage, "statuses": (200, 202), "is_stream": True}
        sent["headers"] = {
            RETRY_HEADER: "A retry with the same key has no further effect.",
            "prefer": "`wait=SECONDS`: the answer, where it comes in time.",
            LAST_ID_HEADER: "Of events: go on behind this one.",
        }
        retried = self._resent(lambda ledger, names, key: ledger.inbox.retry(names["rev"], key=key))
        again = self._resent(lambda ledger, names, key: ledger.inbox.send_again(names["message"], key=key))
        attachments = "/messages/{message}/attachments"
        return [
            endpoint(
                "POST", "/messages", SEND_RIGHT, self._send,
                name="send", summary="Send a message.", body=SentText, **sent,
            ),
            endpoint(
                "POST", "/attachments", "content:put", self._attach,
                name="attach", summary="Upload a text file or an image that a message will carry.",
                query=AttachedName, is_upload=True, answer=_UPLOADED, statuses=(201,),
            ),
            endpoint(
                "GET", attachments, "session:read", self._acting(_attached),
                name="attachments", summary="List the files that a message carries.", answer=_FILES,
            ),
            endpoint(
                "GET", attachments + "/{number}", "session:read", self._fetch,
                name="attachment", summary="Fetch a file that a message carries.", is_file=True,
            ),
            endpoint(
                "GET", "/inbox", "session:read", self._acting(partial(_listed, self._served.ledger)),
                name="inbox", summary="List messages of inboxes.", query=InboxQuestion, answer=_MESSAGES,
            ),
            endpoint(
                "GET", "/inbox/{message}", "session:read", self._acting(_shown),
                name="inbox_message", summary="Show a message, and what became of it.", answer=InboxMessage,
            ),
            endpoint(
                "DELETE", "/inbox/{message}", SEND_RIGHT, self._acting(_cancelled),
                name="inbox_cancel", summary="Take back a message that waits.", answer=InboxMessage,
            ),
            endpoint(
                "POST", "/inbox/{message}/retries", SEND_RIGHT, again,
                name="inbox_send_again", summary="Send a dead message again.", **sent,
            ),
            endpoint(
                "POST", "/turns/{rev}/retries", SEND_RIGHT, retried,
                name="turn_retry", summary="Try a failed turn again.", **sent,
            ),
            endpoint(
                "POST", "/sessions/{session}/interrupt", SEND_RIGHT, self._acting(_interrupted),
                name="interrupt", summary="Interrupt the turn that runs in a session.", answer=InterruptedTurn,
            ),
        ]  # fmt: skip

    def _ledger(self, caller: Caller | None) -> Ledger:
        assert caller is not None
        return self._served.ledger.acting_as(caller.authority)

    async def _send(self, request: Request, caller: Caller | None, _: dict[str, str]) -> Response:
        assert caller is not None
        asked = await asked_message(request)
        sent = await self._run(partial(admit, self._ledger(caller), caller, asked))
        return await self._answered(request, caller, sent)

    async def _answered(self, request: Request, caller: Caller, sent: SentReceipt) -> Response:
        """As the sender prefers it: at once, once it is answered, or as it comes."""
        run = self._run
        reader = AnswerReader(self._served, caller, sent, request.headers.get(LAST_ID_HEADER))
        is_readable = await run(partial(_may_read, reader.ensure_readable))
        if is_readable and wants_stream(request):
            return self._streams.response(caller, reader.events(), partial(_may_read, reader.ensure_readable))
        seconds = wait_seconds(request)
        if is_readable and seconds and await awaited(self._served, request, reader, seconds):
            if not await self._served.callers.still_counts(caller):
                raise Refusal(401, "token_refused", "the credential counts no longer")
            return json_response(request, form(await run(reader.answer)), 200)
        response = json_response(request, form(sent.record()), 202)
        response.headers["location"] = f"{BASE}/inbox/{sent.admission.message}"
        return response

    async def _attach(self, request: Request, caller: Caller | None, _: dict[str, str]) -> Response:
        query = request.query_params.multi_items()
        if len(query) != 1 or query[0][0] != "name" or not 0 < len(query[0][1]) <= MOST_NAME_LETTERS:
            raise Refusal(422, "invalid_input", "an attachment has one name", "give ?name=FILE")
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != BINARY:  # one that a form of a page elsewhere cannot send
            raise Refusal(415, "media_type_refused", f"the body is {BINARY}", "set the Content-Type")
        data, name = await read_body(request, MOST_ATTACHMENT_BYTES, ATTACHMENT_SECONDS), query[0][1]
        id = await self._run(partial(put_attachment, self._ledger(caller), name, data))
        return json_response(request, {"id": id, "name": name, "size": len(data)}, 201)

    async def _fetch(self, request: Request, caller: Caller | None, names: dict[str, str]) -> Response:
        files = await self._run(partial(attached_files, self._ledger(caller), names["message"]))
        for file, data in files:
            if str(file.number) == names["number"]:
                return _file_response(file, data)
        raise NotFound("attachment", names["number"])

    def _acting(self, work: Callable[[Ledger, Request, dict[str, str]], Any]) -> Any:
        async def handle(request: Request, caller: Caller | None, names: dict[str, str]) -> Response:
            ledger = self._ledger(caller)
            return json_response(request, await self._run(lambda: work(ledger, request, names)))

        return handle

    def _resent(self, admit_again: Callable[[Ledger, dict[str, str], str | None], Admission]) -> Any:
        async def handle(request: Request, caller: Caller | None, names: dict[str, str]) -> Response:
            assert caller is not None
            _ensure_may_resend(caller)
            ledger, key = self._ledger(caller), request.headers.get(RETRY_HEADER)
            sent = await self._run(lambda: _readmitted(ledger, lambda: admit_again(ledger, names, key)))
            return await self._answered(request, caller, sent)

        return handle


def _ensure_may_resend(caller: Caller) -> None:
    """A message that is sent again keeps the folder, the tools and the keys that its sender named: a token that may
    name none of them sends it anew instead."""
    if caller.credentials is not None or (caller.authority.is_local and not caller.may_use_machine):
        raise caller.authority.refusal(MACHINE_RIGHT, "send again what was sent with other rights", "send it anew")


def _readmitted(ledger: Ledger, admit_again: Callable[[], Admission]) -> SentReceipt:
    ledger.trust.ensure("send a message to a model")
    admission = admit_again()
    state, _ = Runs(ledger).message_state(admission.message)
    return SentReceipt(admission=admission, route=None, state=state)


def message_endpoints(served: Served, streams: EventStreams) -> list[Endpoint]:
    return MessageEndpoints(served, streams).listed()


def _may_read(ensure_readable: Callable[[], None]) -> bool:
    with suppress(NotFound):
        ensure_readable()
        return True
    return False


BINARY = "application/octet-stream"
_UPLOADED = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "name": {"type": "string"}, "size": {"type": "integer"}},
    "required": ["id", "name", "size"],
}
_FILE = {
    "type": "object",
    "properties": {
        "number": {"type": "integer"},
        "name": {"type": "string"},
        "media_type": {"type": "string"},
        "size": {"type": "integer"},
    },
    "required": ["number", "name", "media_type", "size"],
}
_FILES = page_schema(_FILE, {"type": "null"})
_MESSAGES = page_schema({"type": "object", "required": ["id", "session", "state"]}, {"type": ["integer", "null"]})


class AttachedName(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an uploaded file is called."""

    name: Annotated[str, Meta(min_length=1, max_length=MOST_NAME_LETTERS)]


def _attached(ledger: Ledger, _: Request, names: dict[str, str]) -> Any:
    files = attached_files(ledger, names["message"])
    return {"items": [msgspec.to_builtins(file) for file, _ in files], "next": None}


def _file_response(file: AttachedFile, data: bytes) -> Response:
    """As a file to be kept: no browser shows it as a page of ours."""
    from starlette.responses import Response

    headers = {"content-disposition": f"attachment; filename*=UTF-8''{quote(file.name, safe='', errors='replace')}"}
    return Response(data, 200, headers, media_type=file.media_type)


def _shown(ledger: Ledger, _: Request, names: dict[str, str]) -> Any:
    return form(ledger.inbox.get(names["message"]))


def _cancelled(ledger: Ledger, _: Request, names: dict[str, str]) -> Any:
    message = ledger.inbox.get(names["message"]).id  # who cannot read it hears of none
    ledger.inbox.cancel(message, reason="cancelled by request")
    return form(ledger.inbox.get(message))


def _interrupted(ledger: Ledger, _: Request, names: dict[str, str]) -> Any:
    label = ledger.session(names["session"]).label
    return form(InterruptedTurn(session=label, turn=ledger.inbox.interrupt(label)))


class InboxQuestion(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which messages are listed: the oldest first, behind an arrival number."""

    session: str | None = None
    state: tuple[str, ...] = ("queued", "taken")
    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    after: Annotated[int, Meta(ge=0)] = 0


def _listed(whole: Ledger, ledger: Ledger, request: Request, _: dict[str, str]) -> Any:
    """A page of messages that can be read. It is as long as one of all messages, so that it leads on."""
    given: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name == "state":
            given.setdefault(name, []).append(value)
        elif name in given:
            raise InvalidInput(f"{name} is given twice", "give it once")
        else:
            given[name] = value
    try:
        asked = msgspec.convert(given, InboxQuestion, strict=False)
    except msgspec.ValidationError as error:
        raise Refusal(422, "invalid_input", str(error)) from None
    wanted: dict[str, Any] = {
        "session": asked.session,
        "states": asked.state,
        "limit": asked.limit,
        "after": asked.after,
    }
    readable = ledger.inbox.list(**wanted)
    looked_at = whole.inbox.list(**wanted)
    following = looked_at[-1].n if len(looked_at) == asked.limit else None
    return {"items": form(readable), "next": following}
