"""The connection to a container engine that speaks Docker's API, over a socket of this machine.

Everything that goes wrong becomes an error of Weft: `EngineUnreachable`, `EngineObjectMissing`, `EngineRefused`, or
`Unsupported` where the library is not installed. Every call ends within its time; a stream is cut when its own is over.
Of the docker library its transport alone is used: its client would read files of the user's home.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self
from urllib.parse import SplitResult, quote, urlsplit

import msgspec
from msgspec import Struct

from weft.kernel.errors import (
    EngineObjectMissing,
    EngineRefused,
    EngineUnreachable,
    InvalidInput,
    LimitExceeded,
    Unsupported,
)
from weft.kernel.foreign_input import GIB, MIB

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


class About(Struct, frozen=True):
    """What a call is about, for its errors: a volume, a container, an image, and its name."""

    what: str
    name: str


class EngineStream:
    """The bytes of an answer while they come. `is_cut`: its time was over before its end."""

    def __init__(self, response: Any, failure: Callable[[BaseException], Exception]) -> None:
        self._response, self._failure = response, failure
        self.is_cut = False

    def chunks(self) -> Iterator[bytes]:
        while True:
            try:
                chunk = self._response.raw.read1(_CHUNK)
            except Exception as error:  # urllib3 and the socket have each their own kinds
                if self.is_cut:
                    return
                raise self._failure(error) from error
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
        self._answer("GET", f"{self._root}/_ping", asked="answer", about=None, seconds=None).close()

    def facts(self) -> EngineFacts:
        """What it is and can; asked once."""
        if self._facts is None:
            with self._answer(
                "GET", f"{self._root}/version", asked="say what it is", about=None, seconds=None
            ) as answer:
                self._facts = _facts_of(self._decoded(answer, "say what it is"))
        return self._facts

    def call(
        self,
        method: str,
        path: str,
        *,
        asked: str,
        about: About | None = None,
        query: Mapping[str, str] | None = None,
        body: object = None,
        data: Iterable[bytes] | None = None,
        seconds: float | None = None,
    ) -> Any:
        """The JSON that the engine answers, or None. Errors tell what it was `asked` for. `data` is streamed."""
        if data is not None:
            data = self._limited(data, asked)
        with self._answer(
            method, self._url(path), asked=asked, about=about, seconds=seconds, params=query, json=body, data=data
        ) as answer:
            return self._decoded(answer, asked)

    def _decoded(self, answer: Any, asked: str) -> Any:
        try:
            return _decoded(answer, asked)
        except OSError as error:  # every failure of the transport is one
            raise self._failure(error, asked) from error

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        *,
        asked: str,
        about: About | None = None,
        query: Mapping[str, str] | None = None,
        body: object = None,
        seconds: float,
    ) -> Iterator[EngineStream]:
        """An answer that is read while it comes, at most so long."""
        waits = seconds + self.limits.call_seconds  # the timer ends it before
        answer = self._answer(method, self._url(path), asked=asked, about=about, seconds=waits, params=query, json=body)
        stream = EngineStream(answer, lambda error: self._failure(error, asked))
        timer = threading.Timer(seconds, stream.cut)
        timer.daemon = True
        timer.start()
        try:
            yield stream
        finally:
            timer.cancel()
            answer.close()

    def transfer(
        self, path: str, *, asked: str, about: About, query: Mapping[str, str] | None = None, method: str = "GET"
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

    def _answer(
        self, method: str, url: str, *, asked: str, about: About | None, seconds: float | None, **given: Any
    ) -> Any:
        waits = self.limits.call_seconds if seconds is None else seconds
        try:
            answer = self._session.request(
                method, url, timeout=(self.limits.call_seconds, waits), stream=True, allow_redirects=False, **given
            )
        except OSError as error:  # every failure of the transport is one
            raise self._failure(error, asked) from error
        if answer.status_code >= 300:
            with answer:
                raise _refusal(answer, asked, about)
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            with answer:
                raise EngineRefused(asked, answer.status_code, "its answer is compressed, which was not asked for")
        return answer

    def _limited(self, data: Iterable[bytes], asked: str) -> Iterator[bytes]:
        begun = self._monotonic()
        for chunk in data:
            if self._monotonic() - begun > self.limits.transfer_seconds:
                raise self._too_slow(asked, self.limits.transfer_seconds)
            yield chunk

    def _too_slow(self, asked: str, seconds: float) -> EngineUnreachable:
        return EngineUnreachable(self.address, f"to {asked} took more than {seconds:g} seconds")

    def _failure(self, error: BaseException, asked: str) -> EngineUnreachable:
        return EngineUnreachable(self.address, _reason(error, asked))


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
        from weft.runtime.resources.docker.transport import engine_session
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


def _decoded(answer: Any, asked: str) -> Any:
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


def _refusal(answer: Any, asked: str, about: About | None) -> Exception:
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


def _reason(error: BaseException, asked: str) -> str:
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
        cause = next((part for part in _causes(cause) if isinstance(part, BaseException)), None)
        if cause is None:
            break
    return f"the connection failed while it was to {asked} ({_one_line(str(error))})"


def _causes(error: BaseException | None) -> tuple[object, ...]:
    return () if error is None else (*error.args, error.__cause__, error.__context__)
