"""The connection to a container engine that speaks Docker's API, over a socket of this machine.

A running container is attached to, given commands and ended; whatever Weft made in an engine is
found by its labels.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from itertools import chain
from typing import Any, Self
from urllib.parse import SplitResult, quote, urlsplit

import msgspec
from msgspec import Struct

from weft.kernel.enums import HandleCapability, ResourceKind
from weft.kernel.errors import (
    EngineObjectMissing,
    EngineRefused,
    EngineUnreachable,
    InvalidInput,
    LimitExceeded,
    Unsupported,
)
from weft.kernel.foreign_input import GIB, MIB

# --- What a container prints, as the engine hands it out: frames of standard output and standard error in one stream.

STDOUT, STDERR = 1, 2
_HEADER = 8


class ContainerOutput(Struct, frozen=True, kw_only=True):
    stdout: bytes
    stderr: bytes
    is_truncated: bool
    """There was more than was wanted; what came first is here."""


def frames(chunks: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Which stream, and what came on it. A frame that is larger than a chunk comes in parts."""
    held = b""
    kind, missing = 0, 0
    for chunk in chunks:
        held += chunk
        while held:
            if not missing:
                if len(held) < _HEADER:
                    break
                kind, missing = held[0], int.from_bytes(held[4:_HEADER], "big")
                if kind > STDERR or held[1:4] != bytes(3):
                    raise EngineRefused("hand out what a container printed", 200, "its stream is malformed")
                held = held[_HEADER:]
                continue
            part, held = held[:missing], held[missing:]
            missing -= len(part)
            yield kind, part


def collected(pieces: Iterable[tuple[int, bytes]], most_bytes: int) -> ContainerOutput:
    """All that came, of each stream at most so many bytes; reads on to the end."""
    streams = {STDOUT: bytearray(), STDERR: bytearray()}
    is_truncated = False
    for kind, data in pieces:
        stream = streams[STDERR if kind == STDERR else STDOUT]
        room = most_bytes - len(stream)
        is_truncated |= len(data) > room
        stream += data[: max(room, 0)]
    return ContainerOutput(stdout=bytes(streams[STDOUT]), stderr=bytes(streams[STDERR]), is_truncated=is_truncated)


# --- The connection to a container engine that speaks Docker's API, over a socket of this machine.

DEFAULT_ADDRESS = "unix:///var/run/docker.sock"
PODMAN_API = "/v4.0.0/libpod"
"""What Podman offers beside Docker's API."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_CHUNK = 64 * 1024
_ANSWER_BYTES = 16 * MIB
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}\Z")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@-]{0,511}\Z")
_ADDRESS_HINT = "forward the engine's socket to this machine, as with `ssh -L`, and name it as unix:///PATH"


class EngineLimits(Struct, frozen=True, kw_only=True):
    call_seconds: float = 30
    transfer_seconds: float = 1800
    """For an archive or an image as a whole."""
    transfer_bytes: int = 64 * GIB


class EngineFacts(Struct, frozen=True, kw_only=True):
    product: str
    """`docker`, `podman`, or the name that the engine gives itself."""
    version: str
    api_version: str
    platform: str
    archives_have_owners: bool
    """Whether files that it hands out as an archive tell whose they are. Podman gives all of them to one user."""
    offers_checkpoints: bool
    """Whether it has a call for them; whether it works is seen by `DockerContainers.can_checkpoint`."""


class EngineSubject(Struct, frozen=True):
    """What a call is about, for its errors: a volume, a container, an image, and its name."""

    what: str
    name: str


class EngineStream:
    """The bytes of an answer while they come. `is_cut`: its time was over before its end."""

    def __init__(self, response: Any, failure: Callable[[BaseException], Exception]) -> None:
        self._response, self._unreachable_error = response, failure
        self.is_cut = False

    def chunks(self) -> Iterator[bytes]:
        while True:
            try:
                chunk = self._response.raw.read1(_CHUNK)
            except Exception as error:  # urllib3 and the socket have each their own kinds
                if self.is_cut:
                    return
                raise self._unreachable_error(error) from error
            if not chunk:
                return
            yield chunk

    def cut(self) -> None:
        self.is_cut = True
        try:
            self._response.raw.shutdown()
        except (RuntimeError, ValueError, OSError):  # it has come to its end meanwhile
            return


class ContainerEngine:
    """One engine, by its address: `unix:///PATH`, or `tcp://` of this machine. Connects at the first call."""

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        limits: EngineLimits | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address, self.limits = address, limits or EngineLimits()
        self._monotonic = monotonic
        self._session, self._root = _session_of(address, self.limits)
        self._facts: EngineFacts | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._session.close()

    def ping(self) -> None:
        """Whether it answers at all; raises EngineUnreachable."""
        self._request("GET", f"{self._root}/_ping", asked="answer", about=None, seconds=None).close()

    def facts(self) -> EngineFacts:
        """What it is and can; asked once."""
        if self._facts is None:
            with self._request(
                "GET", f"{self._root}/version", asked="say what it is", about=None, seconds=None
            ) as answer:
                self._facts = _facts_of(self._decode_answer(answer, "say what it is"))
        return self._facts

    def call(
        self,
        method: str,
        path: str,
        *,
        asked: str,
        about: EngineSubject | None = None,
        query: Mapping[str, str] | None = None,
        body: object = None,
        data: Iterable[bytes] | None = None,
        seconds: float | None = None,
    ) -> Any:
        """The JSON that the engine answers, or None. Errors tell what it was `asked` for. `data` is streamed."""
        if data is not None:
            data = self._within_transfer_time(data, asked)
        with self._request(
            method, self._url(path), asked=asked, about=about, seconds=seconds, params=query, json=body, data=data
        ) as answer:
            return self._decode_answer(answer, asked)

    def _decode_answer(self, answer: Any, asked: str) -> Any:
        try:
            return _decode_answer(answer, asked)
        except OSError as error:  # every failure of the transport is one
            raise self._unreachable_error(error, asked) from error

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        *,
        asked: str,
        about: EngineSubject | None = None,
        query: Mapping[str, str] | None = None,
        body: object = None,
        seconds: float,
    ) -> Iterator[EngineStream]:
        """An answer that is read while it comes, at most so long."""
        waits = seconds + self.limits.call_seconds  # the timer ends it before
        answer = self._request(
            method, self._url(path), asked=asked, about=about, seconds=waits, params=query, json=body
        )
        stream = EngineStream(answer, lambda error: self._unreachable_error(error, asked))
        timer = threading.Timer(seconds, stream.cut)
        timer.daemon = True
        timer.start()
        try:
            yield stream
        finally:
            timer.cancel()
            answer.close()

    def transfer(
        self,
        path: str,
        *,
        asked: str,
        about: EngineSubject,
        query: Mapping[str, str] | None = None,
        method: str = "GET",
    ) -> Generator[bytes]:
        """A long answer in parts: all of it, or an error."""
        size = 0
        limits = self.limits
        with self.stream(
            method, path, asked=asked, about=about, query=query, seconds=limits.transfer_seconds
        ) as stream:
            for chunk in stream.chunks():
                size += len(chunk)
                if size > limits.transfer_bytes:
                    raise LimitExceeded(f"to {asked}: bytes", size, limits.transfer_bytes, "allow more")
                yield chunk
            if stream.is_cut:
                raise self._too_slow(asked, limits.transfer_seconds)

    def _url(self, path: str) -> str:
        return (
            f"{self._root}{path}" if path.startswith(PODMAN_API) else f"{self._root}/v{self.facts().api_version}{path}"
        )

    def _request(
        self, method: str, url: str, *, asked: str, about: EngineSubject | None, seconds: float | None, **given: Any
    ) -> Any:
        waits = self.limits.call_seconds if seconds is None else seconds
        try:
            answer = self._session.request(
                method, url, timeout=(self.limits.call_seconds, waits), stream=True, allow_redirects=False, **given
            )
        except OSError as error:  # every failure of the transport is one
            raise self._unreachable_error(error, asked) from error
        if answer.status_code >= 300:
            with answer:
                raise _refusal_error(answer, asked, about)
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            with answer:
                raise EngineRefused(asked, answer.status_code, "its answer is compressed, which was not asked for")
        return answer

    def _within_transfer_time(self, data: Iterable[bytes], asked: str) -> Iterator[bytes]:
        begun = self._monotonic()
        for chunk in data:
            if self._monotonic() - begun > self.limits.transfer_seconds:
                raise self._too_slow(asked, self.limits.transfer_seconds)
            yield chunk

    def _too_slow(self, asked: str, seconds: float) -> EngineUnreachable:
        return EngineUnreachable(self.address, f"to {asked} took more than {seconds:g} seconds")

    def _unreachable_error(self, error: BaseException, asked: str) -> EngineUnreachable:
        return EngineUnreachable(self.address, _failure_reason(error, asked))


def volume_path(name: str) -> str:
    return f"/volumes/{checked_name(name, 'volume')}"


def container_path(name: str) -> str:
    return f"/containers/{checked_name(name, 'container')}"


def image_path(name: str) -> str:
    if not _IMAGE.match(name) or ".." in name:
        raise InvalidInput(f"{name!r} is no name or id of an image")
    return f"/images/{quote(name, safe='/:@')}"


def checked_name(name: str, what: str) -> str:
    if not _NAME.match(name):
        raise InvalidInput(f"{name!r} is no name or id of a {what}")
    return name


def _session_of(address: str, limits: EngineLimits) -> tuple[Any, str]:
    """A session, and the beginning of all addresses in it."""
    parts = urlsplit(address)
    is_socket = parts.scheme == "unix" and parts.path.startswith("/") and not parts.netloc
    if not is_socket and not _is_here(parts):
        raise InvalidInput(f"{address!r} is no address of a container engine on this machine", _ADDRESS_HINT)
    try:
        from weft.runtime.resources.engine_transport import engine_session
    except ImportError as error:
        raise Unsupported(
            f"a container engine needs the package {error.name}", "install it with `pip install 'weft[docker]'`"
        ) from error
    session = engine_session(parts.path if is_socket else None, limits.call_seconds)
    return session, "http+docker://localhost" if is_socket else f"http://{parts.netloc}"


def _is_here(parts: SplitResult) -> bool:
    """A port of this machine: anywhere else, whoever listens on the way would have the engine."""
    try:
        port = parts.port
    except ValueError:
        return False
    is_bare = not (parts.path.strip("/") or parts.query or parts.username or parts.password)
    return parts.scheme in ("tcp", "http") and parts.hostname in _LOOPBACK and bool(port) and is_bare


def _facts_of(answer: Any) -> EngineFacts:
    if not isinstance(answer, dict):
        raise EngineRefused("say what it is", 200, "its answer is of another kind")
    components = [str(part.get("Name", "")) for part in answer.get("Components") or () if isinstance(part, dict)]
    is_podman = "Podman Engine" in components
    product = "podman" if is_podman else "docker" if "Engine" in components else (components or ["unknown"])[0]
    api_version = str(answer.get("ApiVersion", ""))
    if not re.fullmatch(r"[0-9]{1,3}\.[0-9]{1,3}", api_version):
        raise EngineRefused("say what it is", 200, "its answer names no version of Docker's API")
    return EngineFacts(
        product=product[:100],
        version=str(answer.get("Version", ""))[:100],
        api_version=api_version,
        platform=f"{answer.get('Os', '')}/{answer.get('Arch', '')}"[:100],
        archives_have_owners=not is_podman,
        offers_checkpoints=is_podman or answer.get("Experimental") is True,
    )


def _decode_answer(answer: Any, asked: str) -> Any:
    """One JSON value; of an answer that tells its progress line by line, the last line."""
    parts: list[bytes] = []
    size = 0
    for chunk in answer.iter_content(_CHUNK):
        parts.append(chunk)
        size += len(chunk)
        if size > _ANSWER_BYTES:
            raise LimitExceeded("the bytes of an answer of the container engine", size, _ANSWER_BYTES)
    data = b"".join(parts).strip()
    if not data:
        return None
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        pass
    try:
        value = msgspec.json.decode(data.splitlines()[-1])
    except msgspec.DecodeError as error:
        raise EngineRefused(asked, answer.status_code, f"its answer is no JSON ({error})") from error
    if isinstance(value, dict) and (reason := value.get("error")):
        raise EngineRefused(asked, answer.status_code, _one_line(str(reason)))
    return value


def _refusal_error(answer: Any, asked: str, about: EngineSubject | None) -> Exception:
    text = next(answer.iter_content(_CHUNK), b"").decode("utf-8", "replace")
    try:
        decoded = msgspec.json.decode(text)
        reason = str(decoded["message"]) if isinstance(decoded, dict) else text
    except (msgspec.DecodeError, KeyError):
        reason = text
    if answer.status_code == 404 and about is not None:
        return EngineObjectMissing(about.what, about.name)
    return EngineRefused(asked, answer.status_code, _one_line(reason) or f"it answered {answer.status_code}")


def _one_line(text: str) -> str:
    words = " ".join("".join(sign if sign.isprintable() else " " for sign in text[:2000]).split())
    return words if len(words) <= 500 else f"{words[:499]}…"


def _failure_reason(error: BaseException, asked: str) -> str:
    cause: BaseException | None = error
    for _ in range(10):
        if isinstance(cause, FileNotFoundError):
            return "there is no such socket"
        if isinstance(cause, PermissionError):
            return "you may not use its socket"
        if isinstance(cause, ConnectionRefusedError):
            return "nobody listens there"
        if isinstance(cause, TimeoutError):
            return f"it did not {asked} in time"
        cause = next((part for part in _causes_of(cause) if isinstance(part, BaseException)), None)
        if cause is None:
            break
    return f"the connection failed while it was to {asked} ({_one_line(str(error))})"


def _causes_of(error: BaseException | None) -> tuple[object, ...]:
    return () if error is None else (*error.args, error.__cause__, error.__context__)


# --- The labels by which whatever Weft made in an engine is found again, and the list of it.

RESOURCE_LABEL, OPERATION_LABEL, ROLE_LABEL = "weft.resource", "weft.operation", "weft.role"
SNAPSHOT_IMAGE = "weft.local/snapshot"
"""Images that Weft made, or keeps from being swept away, have a tag of this name."""
_OF_IMAGE = "-of-image"
_OBJECT_NAME = re.compile(r"weft-[0-9a-f]{32}\Z")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@/-]{0,199}\Z")


class MadeRole(StrEnum):
    """What an object of the engine was made for."""

    RESULT = "result"
    """What the operation is there for: a restored volume or container, a committed image."""
    MARKER = "marker"
    """A container that is never started: as long as it is there, the result is unfinished."""
    COPIER = "copier"
    """A container through which an archive is read or written."""


class MadeBy(Struct, frozen=True):
    """For which resource something is made, and by which operation."""

    resource: str
    operation: str

    def __post_init__(self) -> None:
        for value in (self.resource, self.operation):
            if not _WORD.match(value):
                raise InvalidInput(f"{value!r} cannot be a label: letters, digits and _.:@/- alone, at most 200")

    def labels(self, role: MadeRole = MadeRole.RESULT) -> dict[str, str]:
        return {RESOURCE_LABEL: self.resource, OPERATION_LABEL: self.operation, ROLE_LABEL: role.value}

    @property
    def image_labels(self) -> dict[str, str]:
        """Under other names than those of containers, which have the labels of their image too."""
        return {f"{RESOURCE_LABEL}{_OF_IMAGE}": self.resource, f"{OPERATION_LABEL}{_OF_IMAGE}": self.operation}

    @property
    def image_tag(self) -> str:
        return f"{SNAPSHOT_IMAGE}:{self.object_name}"

    @property
    def object_name(self) -> str:
        """A name for what it makes, the same at each try."""
        return _object_name(self.resource, self.operation)


class MadeObject(Struct, frozen=True, kw_only=True):
    """Something in the engine that carries Weft's labels."""

    kind: ResourceKind
    id: str
    name: str
    role: str
    resource: str
    operation: str


def list_made_by(
    engine: ContainerEngine, *, resource: str | None = None, operation: str | None = None
) -> tuple[MadeObject, ...]:
    """What an operation, or any for a resource, has left in the engine: containers first, which hold the others."""
    for value in (resource, operation):
        if value is not None:
            MadeBy(value, value)
    listed = (
        _made_containers(engine, resource, operation),
        _made_volumes(engine),
        _made_images(engine, resource, operation),
    )
    return tuple(
        made
        for made in chain.from_iterable(listed)
        if resource in (None, made.resource) and operation in (None, made.operation)
    )


def remove_made(engine: ContainerEngine, made: MadeObject) -> bool:
    """Removes it, a container also while it runs, an image by Weft's name for it. Whether it was there."""
    paths = {
        ResourceKind.DOCKER_CONTAINER: container_path,
        ResourceKind.DOCKER_VOLUME: volume_path,
        ResourceKind.DOCKER_IMAGE: image_path,
    }
    name = made.name if made.kind is ResourceKind.DOCKER_IMAGE else made.id
    query = {"force": "true", "v": "true"} if made.kind is ResourceKind.DOCKER_CONTAINER else {}
    return removed(engine, paths[made.kind](name), made.kind, name, query)


def removed(engine: ContainerEngine, path: str, kind: ResourceKind, name: str, query: dict[str, str]) -> bool:
    what = kind.value.removeprefix("docker_")
    try:
        engine.call("DELETE", path, asked=f"remove the {what} {name}", about=EngineSubject(what, name), query=query)
    except EngineObjectMissing:
        return False
    except EngineRefused as error:
        if kind is ResourceKind.DOCKER_CONTAINER and error.status == 409 and "already in progress" in error.reason:
            return True
        raise
    return True


def _made_object(kind: ResourceKind, id: str, name: str, labels: dict[str, str] | None) -> MadeObject:
    known = labels or {}
    return MadeObject(
        kind=kind,
        id=id,
        name=name,
        role=known.get(ROLE_LABEL, ""),
        resource=known.get(RESOURCE_LABEL, ""),
        operation=known.get(OPERATION_LABEL, ""),
    )


def _made_containers(engine: ContainerEngine, resource: str | None, operation: str | None) -> Iterator[MadeObject]:
    """Results by their name: a container that was copied has the labels of the first one."""
    for item in engine.call("GET", "/containers/json", asked="list containers", query={"all": "true"}) or ():
        name = (item.get("Names") or [""])[0].lstrip("/")
        made = _made_object(ResourceKind.DOCKER_CONTAINER, item["Id"], name, item.get("Labels"))
        if made.role not in (MadeRole.MARKER, MadeRole.COPIER):
            if not _OBJECT_NAME.match(name):
                continue
            made = _by_name(made, name, resource, operation)
        yield made


def _by_name(made: MadeObject, object_name: str, resource: str | None, operation: str | None) -> MadeObject:
    """Whose result it is by its name, if that can be told."""
    for owner in ((made.resource, made.operation), (resource, operation)):
        if all(owner) and _object_name(*map(str, owner)) == object_name:
            return msgspec.structs.replace(made, role=MadeRole.RESULT, resource=str(owner[0]), operation=str(owner[1]))
    return msgspec.structs.replace(made, role=MadeRole.RESULT, resource="", operation="")


def _made_volumes(engine: ContainerEngine) -> Iterator[MadeObject]:
    """By one label: of several, some engines take the volumes that have any of them."""
    filters = msgspec.json.encode({"label": [OPERATION_LABEL]}).decode()
    listed = engine.call("GET", "/volumes", asked="list volumes", query={"filters": filters}) or {}
    for item in listed.get("Volumes") or ():
        yield _made_object(ResourceKind.DOCKER_VOLUME, item["Name"], item["Name"], item.get("Labels"))


def _made_images(engine: ContainerEngine, resource: str | None, operation: str | None) -> Iterator[MadeObject]:
    """By their tag: labels of an image also stand on the images and containers that others make of it."""
    for item in engine.call("GET", "/images/json", asked="list images") or ():
        labels = item.get("Labels") or {}
        own_labels = {label: str(labels.get(f"{label}{_OF_IMAGE}", "")) for label in (RESOURCE_LABEL, OPERATION_LABEL)}
        for tag in item.get("RepoTags") or ():
            if tag.startswith(f"{SNAPSHOT_IMAGE}:"):
                made = _made_object(ResourceKind.DOCKER_IMAGE, item["Id"], tag, own_labels)
                yield _by_name(made, tag.removeprefix(f"{SNAPSHOT_IMAGE}:"), resource, operation)


def _object_name(resource: str, operation: str) -> str:
    digest = hashlib.sha256(msgspec.json.encode([resource, operation])).hexdigest()
    return f"weft-{digest[:32]}"


# --- A running container as something to act on: attach to it, run a command in it, end it, read what it printed.

MOST_BYTES = 1 * MIB
_EXIT_LOOKS, _LOOK_SECONDS = 100, 0.02
_SIGNALS = frozenset("HUP INT QUIT KILL USR1 USR2 TERM CONT STOP".split())


class ExecResult(Struct, frozen=True, kw_only=True):
    """What became of a command in a container; `rc` is None while nobody knows."""

    rc: int | None
    stdout: str
    stderr: str
    duration_ms: int
    is_truncated: bool = False
    has_timed_out: bool = False
    """It was not waited for any longer; it may run on in the container."""


class AttachedOutput(Struct, frozen=True, kw_only=True):
    stdout: str
    stderr: str
    is_truncated: bool
    has_ended: bool
    """The container ended while it was listened to."""


class ContainerHandle:
    """By the id or the name of a container."""

    provider = "docker"

    def __init__(
        self, engine: ContainerEngine, container: str, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine, self._path = engine, container_path(container)
        self._about = EngineSubject("container", container)
        self._monotonic = monotonic

    def capabilities(self) -> tuple[HandleCapability, ...]:
        """What can be done now: all of it while the container runs, afterwards its logs are there."""
        if self._inspect_container()["State"].get("Running"):
            return (HandleCapability.ATTACH, HandleCapability.EXEC, HandleCapability.KILL, HandleCapability.LOGS)
        return (HandleCapability.LOGS,)

    def exec(
        self,
        command: Sequence[str],
        *,
        seconds: float = 60,
        most_bytes: int = MOST_BYTES,
        folder: str | None = None,
        variables: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> ExecResult:
        """Runs a command in it and waits for its end, at most so long. Of each stream `most_bytes` are kept."""
        if not command:
            raise InvalidInput("a command has at least its own name")
        body: dict[str, object] = {
            "Cmd": list(command),
            "AttachStdout": True,
            "AttachStderr": True,
            "Privileged": False,
        }
        body |= {"WorkingDir": folder} if folder else {}
        body |= {"User": user} if user else {}
        body |= {"Env": [f"{name}={value}" for name, value in variables.items()]} if variables else {}
        asked = "run a command in the container"
        made = self._engine.call("POST", f"{self._path}/exec", asked=asked, about=self._about, body=body)
        path = f"/exec/{checked_name(str(made['Id']), 'command')}"
        begun = self._monotonic()
        with self._engine.stream(
            "POST", f"{path}/start", asked=asked, body={"Detach": False, "Tty": False}, seconds=seconds
        ) as stream:
            output = collected(frames(stream.chunks()), most_bytes)
        duration_ms = round((self._monotonic() - begun) * 1000)
        rc = None if stream.is_cut else self._exit_code(path)
        return ExecResult(
            rc=rc,
            stdout=_decoded_text(output.stdout),
            stderr=_decoded_text(output.stderr),
            duration_ms=duration_ms,
            is_truncated=output.is_truncated,
            has_timed_out=stream.is_cut,
        )

    def logs(self, *, lines: int = 1000, most_bytes: int = MOST_BYTES, seconds: float = 30) -> ContainerOutput:
        """The last lines that it printed."""
        query = {"stdout": "true", "stderr": "true", "tail": str(max(lines, 0))}
        has_terminal = self._has_terminal()
        with self._engine.stream(
            "GET", f"{self._path}/logs", asked="read its logs", about=self._about, query=query, seconds=seconds
        ) as stream:
            return collected(_output_pieces(stream, has_terminal), most_bytes)

    def attach(self, *, seconds: float = 10, most_bytes: int = MOST_BYTES) -> AttachedOutput:
        """What it prints from now on, for so long or until it ends."""
        query = {"stream": "true", "stdout": "true", "stderr": "true"}
        has_terminal = self._has_terminal()
        with self._engine.stream(
            "POST", f"{self._path}/attach", asked="attach to it", about=self._about, query=query, seconds=seconds
        ) as stream:
            output = collected(_output_pieces(stream, has_terminal), most_bytes)
        return AttachedOutput(
            stdout=_decoded_text(output.stdout),
            stderr=_decoded_text(output.stderr),
            is_truncated=output.is_truncated,
            has_ended=not stream.is_cut,
        )

    def kill(self, signal: str = "KILL") -> bool:
        """Sends a signal to its first process. Whether it was running."""
        if signal.removeprefix("SIG") not in _SIGNALS:
            raise InvalidInput(f"{signal!r} is no signal that is sent to a container")
        try:
            self._engine.call("POST", f"{self._path}/kill", asked="end it", about=self._about, query={"signal": signal})
        except EngineRefused as error:
            if error.status != 409 and self._inspect_container()["State"].get("Running"):
                raise
            return False
        return True

    def _inspect_container(self) -> Any:
        return self._engine.call("GET", f"{self._path}/json", asked="describe it", about=self._about)

    def _has_terminal(self) -> bool:
        return bool(self._inspect_container()["Config"].get("Tty"))

    def _exit_code(self, path: str) -> int | None:
        """An engine may close the streams of a command a moment before it notes its end."""
        pause = threading.Event()
        for _ in range(_EXIT_LOOKS):
            try:
                answer = self._engine.call("GET", f"{path}/json", asked="say how it ended", about=self._about)
            except EngineObjectMissing:
                return None
            if not answer.get("Running"):
                code = answer.get("ExitCode")
                return None if code is None else int(code)
            pause.wait(_LOOK_SECONDS)
        return None


def _output_pieces(stream: EngineStream, has_terminal: bool) -> Iterator[tuple[int, bytes]]:
    """What a terminal prints comes as it is, all else in frames."""
    if has_terminal:
        return ((STDOUT, chunk) for chunk in stream.chunks())
    return frames(stream.chunks())


def _decoded_text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
