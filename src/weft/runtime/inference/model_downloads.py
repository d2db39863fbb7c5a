"""Brings a known model to this machine, from its maker's server or from a file.

What has come is kept beside the place (`.part`) and the next run goes on from there. The file gets its name only once
size and SHA-256 are the pinned ones; what is wrong is removed. If the process dies, a part is left or the whole file.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urljoin

from weft.kernel.errors import (
    ConnectionForbidden,
    InvalidInput,
    NotApplicable,
    OutsideError,
    ProviderFailed,
    ProviderUnreachable,
    ReplyCut,
    ReplyMalformed,
    RequestRefused,
    StoreError,
)
from weft.runtime.egress.connection_rules import Rules, host_of, is_near_by_name
from weft.runtime.egress.credentials import origin_of
from weft.runtime.inference.model_files import ModelFile, ModelFolder, sha256_of
from weft.store.private_files import PRIVATE_FILE, make_folder, put_in_place

if TYPE_CHECKING:
    from weft.runtime.egress.connections import Connections

OnBytes = Callable[[int, int], None]
"""Told how many bytes have come, and of how many."""
MAX_REDIRECTS = 5
RULES = Rules(read_seconds=60.0)
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
    with _opened(source) as given:
        size = os.fstat(given.fileno()).st_size
        if size != file.size_bytes:
            raise InvalidInput(
                f"{source} has {size:,} bytes, and {file.name} has {file.size_bytes:,}", f"fetch it from {file.url}"
            )
        with _part_of(file, folder) as part:
            part.truncate(0)
            _ensure_room(file, folder, part)
            while piece := given.read(_COPY_BYTES):
                part.write(piece)
                on_bytes(_size(part), file.size_bytes)
            if (path := _finished(file, folder, part)) is None:
                raise InvalidInput(f"{source} is not {file.name}: {_WRONG}", f"fetch it from {file.url}")
            return path


def is_whole(file: ModelFile, folder: ModelFolder) -> bool:
    """Whether the model is here, with the bytes that it should have."""
    return folder.has(file) and sha256_of(folder.place_of(file)) == file.sha256


@contextmanager
def _opened(source: Path) -> Iterator[BinaryIO]:
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidInput(f"{source}: {error.strerror}", "name the file that was fetched elsewhere") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InvalidInput(f"{source} is not a file", "name the file that was fetched elsewhere")
    with open(descriptor, "rb") as given:
        yield given


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
