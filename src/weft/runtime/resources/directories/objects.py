"""Objects into and out of the store, through git.

What is new is gathered as one pack and handed to git, which checks it, names it by its own hashes, and makes it durable
before it says so: a few objects as files of their own; many as a pack, without those that the store has. A process that
dies before that leaves nothing that anybody sees. What is read is hashed again here.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import BinaryIO

from weft.kernel.errors import Damaged, LimitExceeded, NotFound
from weft.runtime.resources.directories.trees import object_id
from weft.runtime.sandbox.git_program import Git, ended_well

BLOB, TREE = b"blob", b"tree"
_KINDS = {b"commit": 1, TREE: 2, BLOB: 3}
_PACK_HEAD_BYTES = 12
_BATCH_BYTES = 16 * 1024 * 1024
_BATCH_OBJECTS = 5000
_MOST_LOOSE_OBJECTS = 100
_CHUNK_BYTES = 1024 * 1024
_AHEAD = 256
"""So many objects are asked for before the first of them is read."""
_DAMAGED = "copy the store from a backup; other snapshots may be whole"
MOST_OBJECT_BYTES = 1024 * 1024 * 1024


class ObjectWriter:
    """Takes objects and stores those that the store does not have, once `finish` is called."""

    def __init__(self, git: Git, scratch: Path) -> None:
        self._git, self._scratch = git, scratch
        self._pending: dict[bytes, tuple[bytes, bytes]] = {}
        self._pending_bytes = 0
        self._sent: set[bytes] = set()
        self._spool: BinaryIO | None = None

    def __enter__(self) -> ObjectWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._spool:
            self._spool.close()

    def add(self, kind: bytes, data: bytes) -> bytes:
        """The id that it has in the store."""
        name = object_id(kind, data)
        if name not in self._pending and name not in self._sent:
            self._pending[name] = kind, data
            self._pending_bytes += len(data)
            if self._pending_bytes > _BATCH_BYTES or len(self._pending) > _BATCH_OBJECTS:
                self._flush()
        return name

    def finish(self) -> None:
        """Returns once everything that was added is in the store, also after a loss of power."""
        self._flush()
        if not self._sent or self._spool is None:
            return
        is_small = len(self._sent) <= _MOST_LOOSE_OBJECTS
        words = ("unpack-objects", "-q") if is_small else ("index-pack", "--stdin")
        with self._git.start(*words) as process:
            for chunk in self._pack():
                process.write(chunk)
            ended_well(process, words[0])
        self._sent.clear()
        self._spool.close()
        self._spool = None

    def _flush(self) -> None:
        if not self._pending:
            return
        if self._spool is None:
            self._spool = TemporaryFile(dir=self._scratch)  # noqa: SIM115 - closed by __exit__
            self._spool.write(bytes(_PACK_HEAD_BYTES))
        is_small = not self._sent and len(self._pending) <= _MOST_LOOSE_OBJECTS
        missing = list(self._pending) if is_small else self._missing(list(self._pending))
        for name in missing:
            kind, data = self._pending[name]
            self._spool.write(_object_head(_KINDS[kind], len(data)))
            self._spool.write(_compressed(data))
        self._sent.update(missing)
        self._pending.clear()
        self._pending_bytes = 0

    def _missing(self, names: list[bytes]) -> list[bytes]:
        with self._git.start("cat-file", "--batch-check", "--buffer") as process:
            process.write(b"".join(name.hex().encode() + b"\n" for name in names))
            answer = ended_well(process, "cat-file")[1]
        lines = answer.split(b"\n")
        return [name for name, line in zip(names, lines, strict=False) if line.endswith(b" missing")]

    def _pack(self) -> Iterator[bytes]:
        assert self._spool
        self._spool.flush()
        self._spool.seek(0)
        self._spool.write(b"PACK" + (2).to_bytes(4, "big") + len(self._sent).to_bytes(4, "big"))
        self._spool.seek(0)
        digest = hashlib.sha256()
        while chunk := self._spool.read(_CHUNK_BYTES):
            digest.update(chunk)
            yield chunk
        yield digest.digest()


def _object_head(kind: int, size: int) -> bytes:
    head = bytearray()
    byte, size = kind << 4 | size & 15, size >> 4
    while size:
        head.append(byte | 128)
        byte, size = size & 127, size >> 7
    head.append(byte)
    return bytes(head)


def _compressed(data: bytes) -> bytes:
    """A small window for small objects: making a large one would take longer than filling it."""
    return zlib.compress(data, 1, wbits=15 if len(data) > 8192 else 13)


class ObjectReader:
    """Reads objects by their ids, any number of them with one git process. What is not what it was is Damaged."""

    def __init__(self, git: Git) -> None:
        self._process = git.start("cat-file", "--batch")

    def __enter__(self) -> ObjectReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.__exit__(kind, error, trace)

    def read(self, kind: bytes, name: bytes, most: int = MOST_OBJECT_BYTES) -> bytes:
        self._ask(name)
        return self._answer(kind, name, most)

    def read_all(self, kind: bytes, names: Iterable[bytes], most: int = MOST_OBJECT_BYTES) -> Iterator[bytes]:
        """Each of them in turn; several are asked for before the first is taken."""
        asked: deque[bytes] = deque()
        for name in names:
            self._ask(name)
            asked.append(name)
            if len(asked) > _AHEAD:
                yield self._answer(kind, asked.popleft(), most)
        while asked:
            yield self._answer(kind, asked.popleft(), most)

    def _ask(self, name: bytes) -> None:
        self._process.write(name.hex().encode() + b"\n")

    def _answer(self, kind: bytes, name: bytes, most: int) -> bytes:
        head = self._process.read_until(b"\n", 4096).split(b" ")
        if head[-1] == b"missing":
            raise NotFound("stored object", name.hex(), "the snapshot was removed, or its store is not whole")
        size = int(head[2])
        if head[1] != kind:
            raise Damaged(f"object {name.hex()} is a {head[1].decode()}, not a {kind.decode()}", _DAMAGED)
        if size > most:
            raise LimitExceeded(f"the bytes of object {name.hex()}", size, most)
        data = self._process.read(size + 1)[:-1]
        if object_id(kind, data) != name:
            raise Damaged(f"object {name.hex()} holds other bytes than were stored", _DAMAGED)
        return data
