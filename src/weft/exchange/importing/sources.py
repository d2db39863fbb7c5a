"""From the paths and addresses that people name to sources that an importer can read.

- Folders walked; archives and compressed files unpacked one member at a time, within a budget.
- Databases on a PostgreSQL server: the tables that an importer knows are copied, as they were at
one moment.
- What tells whether a source is what it was: digests of its bytes, its size, and what lies beside
it.
- Which files may hold sessions, by size and time alone. Nothing is opened for that.
"""

from __future__ import annotations

import io
import lzma
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlsplit
from zipfile import ZipFile, ZipInfo

import apsw
import zstandard
from msgspec import Struct

from weft.exchange.importers.foreign_files import read_sample, regular_descriptor
from weft.exchange.importers.foreign_values import PACKED_MEMBER_LIMITS, SOURCE_LIMITS
from weft.exchange.importers.port import HEAD_BYTES, GenericImporter, Importer, Source
from weft.kernel.errors import InvalidInput, LimitExceeded
from weft.kernel.foreign_input import MIB, ReadBudget
from weft.kernel.typed_names import Site
from weft.ledger.imports import ImportSource, RawFile

if TYPE_CHECKING:
    from hashlib import _Hash as Hash


# --- Archives and compressed files, unpacked one member at a time into a file, within a budget.

BROKEN = (
    zstandard.ZstdError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error,
    RuntimeError, NotImplementedError, ValueError,
)  # fmt: skip
"""What unpacking raises where an archive is damaged or of a kind that cannot be read."""
FED_BYTES = 1024
"""At a time: a few packed bytes can stand for very many, which come out at once."""
DIRECTORY_BYTES = 16 * MIB
"""Of the list of an archive's members, which is read as a whole."""
LOCAL_HEADER_BYTES = 30
"""At least, before the data of each member."""


class Archives:
    """The members of zip archives. The archive that was opened last stays open: its list of members is read once, not
    once for each of them."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._archive: ZipFile | None = None
        self._state: tuple[Path, int, int] | None = None

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        for open_file in (self._archive, self._file):
            if open_file is not None:
                open_file.close()
        self._file = self._archive = self._state = None

    def members(self, path: Path) -> list[ZipInfo]:
        """In order of name; of several with one name the last, as other programs take it. Raises LimitExceeded where
        they lie over each other or unpack to too much."""
        archive = self._opened(path)
        infos = archive.infolist()
        _check_places(infos, archive.start_dir)
        return [archive.NameToInfo[name] for name in sorted(archive.NameToInfo)]

    def unpack(self, path: Path, name: str, target: Path, budget: ReadBudget) -> None:
        archive = self._opened(path)
        info = archive.getinfo(name)
        budget.note_read(info.compress_size)
        with archive.open(info) as member:
            if not name.endswith(".zst"):
                _copy(iter(lambda: member.read(MIB), b""), target, budget)
                return
            inner = ReadBudget(PACKED_MEMBER_LIMITS)
            inner.note_read(info.compress_size)
            _copy(_within(inner, _frames(member)), target, budget)

    def _opened(self, path: Path) -> ZipFile:
        status = path.stat()
        state = (path, status.st_mtime_ns, status.st_size)
        if self._archive is None or self._state != state:
            self.close()
            self._file = _ShortReads(io.FileIO(regular_descriptor(path)))
            self._archive = ZipFile(self._file)
            self._state = state
        return self._archive


class _ShortReads(io.BufferedReader):
    """A file of which so much at a time is read as the list of an archive's members may take."""

    def read(self, size: int | None = -1, /) -> bytes:
        byte_count = os.fstat(self.fileno()).st_size - self.tell() if size is None or size < 0 else size
        if byte_count > DIRECTORY_BYTES:
            raise LimitExceeded("the list of its members in bytes", byte_count, DIRECTORY_BYTES, SOURCE_LIMITS.advice)
        return super().read(size)


def check_total(infos: Iterable[ZipInfo], packed: int) -> None:
    """All members that are to be read, as they say themselves; none gives more than it says."""
    budget = ReadBudget(SOURCE_LIMITS)
    budget.note_read(packed)
    for info in infos:
        budget.take_entries()
        budget.take_bytes(info.file_size)


def _check_places(infos: Iterable[ZipInfo], end: int) -> None:
    """Members that lie over each other let some kilobytes be read thousands of times."""
    places = sorted((info.header_offset, LOCAL_HEADER_BYTES + info.compress_size) for info in infos)
    starts = [start for start, _ in places[1:]]
    for (start, size), following in zip(places, [*starts, end], strict=True):
        if start + size > following:
            over = start + size - following
            raise LimitExceeded("bytes that two of its members share", over, 0, "do not trust where it comes from")


def unpack_zst(path: Path, target: Path, budget: ReadBudget) -> None:
    with open(regular_descriptor(path), "rb") as packed:
        _copy(_frames(packed), target, budget)


def _frames(packed: IO[bytes]) -> Iterator[bytes]:
    """What all frames hold."""
    frame = zstandard.ZstdDecompressor().decompressobj()
    while chunk := packed.read(FED_BYTES):
        while chunk:
            if frame.eof:
                frame = zstandard.ZstdDecompressor().decompressobj()
            yield frame.decompress(chunk)
            chunk = frame.unused_data
    if not frame.eof:
        raise EOFError("it ends too early")


def _within(budget: ReadBudget, chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        budget.take_bytes(len(chunk))
        yield chunk


def _copy(chunks: Iterable[bytes], target: Path, budget: ReadBudget) -> None:
    with target.open("wb") as file:
        for chunk in chunks:
            budget.take_bytes(len(chunk))
            budget.check_time()
            file.write(chunk)


# --- Databases on a PostgreSQL server as sources: the tables that an importer knows are copied, as they were at one
# moment, into a SQLite file with the same tables, and that is read like any other.

QUIET_SECONDS = 300
KEY = ("thread_id", "checkpoint_ns", "checkpoint_id")
TABLES = {
    "checkpoints": (*KEY, "parent_checkpoint_id", "type", "checkpoint", "metadata"),
    "checkpoint_blobs": ("thread_id", "checkpoint_ns", "channel", "version", "type", "blob"),
    "checkpoint_writes": (*KEY, "task_id", "task_path", "idx", "channel", "type", "blob"),
}
"""Of LangGraph's PostgresSaver. The first columns of each, up to its last key, put its rows in order."""
ORDERED = {"checkpoints": 3, "checkpoint_blobs": 4, "checkpoint_writes": 6}
MARK = (
    "SELECT (SELECT count(*) FROM checkpoints), (SELECT max(checkpoint_id) FROM checkpoints),"
    " (SELECT count(*) FROM checkpoint_writes), (SELECT max(checkpoint->>'ts') FROM checkpoints),"
    " pg_total_relation_size('checkpoints') + pg_total_relation_size('checkpoint_blobs')"
)


UNREADABLE = "an address that cannot be read"
"""What stands for an address of which nobody knows where its password ends."""


class Address(Struct, frozen=True):
    """Where a database is reached. It may hold a password, so it is never shown or stored as it is."""

    url: str

    @classmethod
    def is_one(cls, word: str) -> bool:
        return Site.of(word) is Site.POSTGRESQL

    @property
    def shown(self) -> str:
        """The server and the database; without who, and without the rest."""
        try:
            url_parts = urlsplit(self.url)
            host, port = url_parts.hostname or "localhost", f":{url_parts.port}" if url_parts.port else ""
        except ValueError:
            return UNREADABLE
        return (
            UNREADABLE
            if "@" in url_parts.path or "://" not in self.url
            else f"postgresql://{host}{port}{url_parts.path}"
        )

    def candidate(self) -> OnServer:
        """What there is to read; raises OSError where there is nothing, or no way to it."""
        with _connected(self) as connection:
            try:
                count, newest, writes, newest_time, size = connection.execute(MARK).fetchone()
            except _psycopg().Error as error:
                raise OSError(f"it holds no checkpoints of LangGraph: {_first_line(error)}") from error
        mark = int.from_bytes(sha256(f"{count} {newest} {writes}".encode()).digest()[:7], "big")
        return OnServer(self, self.shown, int(size), mark, _seconds(newest_time))


class OnServer(Struct, frozen=True):
    """A database that may hold somebody's sessions."""

    address: Address
    name: str
    size: int
    stamp: int
    """Not a time: another number whenever rows have come or gone."""
    changed: float
    is_packed: bool = True

    @property
    def path(self) -> Path:
        return Path(self.name)

    @property
    def changed_ms(self) -> int:
        return int(self.changed * 1000)

    def is_as(self, read: Any) -> bool:
        return (read.size, read.stamp) == (self.size, self.stamp)

    def is_quiet(self, now: float) -> bool:
        return now - self.changed > QUIET_SECONDS

    @contextmanager
    def open(self, now: float, budget: ReadBudget) -> Iterator[Source]:
        with TemporaryDirectory(prefix="weft-import-") as folder:
            path = Path(folder) / "checkpoints.db"
            try:
                with _connected(self.address) as connection:
                    _copy_of_database(connection, path, budget)
            except _psycopg().Error as error:
                raise OSError(f"it cannot be read: {_first_line(error)}") from error
            size, head = path.stat().st_size, read_sample(path, HEAD_BYTES)
            yield Source(
                path=path,
                name=self.name,
                size=size,
                head=head,
                quiet=self.is_quiet(now),
                now=now,
            )


def _psycopg() -> Any:
    try:
        return import_module("psycopg")
    except ImportError as error:
        raise OSError("reading from PostgreSQL needs psycopg: install weft[postgres]") from error


@contextmanager
def _connected(address: Address) -> Iterator[Any]:
    """One moment of the database, which nothing is written to."""
    driver = _psycopg()
    _ensure_readable(address)
    try:
        connection = driver.connect(address.url, connect_timeout=10)
    except driver.Error as error:
        raise OSError(f"it cannot be reached: {_first_line(error)}") from error
    try:
        connection.isolation_level = driver.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        yield connection
    finally:
        connection.close()


def _ensure_readable(address: Address) -> None:
    """What libpq says of an address that it cannot read may hold a part of its password."""
    from weft.store.postgres.connection import parse_address

    try:
        parse_address(address.url)
    except InvalidInput as error:
        raise OSError(f"{error}; {error.hint}") from None


def _copy_of_database(connection: Any, path: Path, budget: ReadBudget) -> None:
    target = apsw.Connection(str(path))
    try:
        with target:
            for table, columns in TABLES.items():
                target.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
                _fill(connection, target, table, columns, budget)
            target.execute("CREATE INDEX by_id ON checkpoints(thread_id, checkpoint_ns, checkpoint_id)")
            target.execute("CREATE INDEX by_version ON checkpoint_blobs(thread_id, checkpoint_ns, channel, version)")
    finally:
        target.close()


def _fill(connection: Any, target: apsw.Connection, table: str, columns: tuple[str, ...], budget: ReadBudget) -> None:
    known_columns = {name for (name,) in connection.execute(
        "SELECT column_name::text FROM information_schema.columns WHERE table_name = %s", (table,)
    )}  # fmt: skip
    expressions = [_column(name) if name in known_columns else "NULL" for name in columns]
    order = ", ".join(name for name in columns[: ORDERED[table]] if name in known_columns)
    marks = ", ".join("?" * len(columns))
    with connection.cursor(name=f"weft_{table}") as rows:
        rows.itersize = 200
        rows.execute(f"SELECT {', '.join(expressions)} FROM {table} ORDER BY {order}")
        target.executemany(f"INSERT INTO {table} VALUES ({marks})", _within_limits(budget, rows))


def _within_limits(budget: ReadBudget, rows: Iterable[Any]) -> Iterator[Any]:
    for row in rows:
        size = sum(len(value) for value in row if isinstance(value, str | bytes))
        budget.check_held(size, "a row in bytes")
        budget.note_read(size)
        budget.take_bytes(size)
        budget.check_time()
        yield row


def _column(name: str) -> str:
    return f"{name}::text" if name in ("checkpoint", "metadata") else name


def _seconds(moment: Any) -> float:
    try:
        return datetime.fromisoformat(moment).timestamp() if isinstance(moment, str) else 0.0
    except (ValueError, OverflowError):
        return 0.0


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0][:200]


# --- From the paths that people name to files that an importer can read: folders walked, archives unpacked one member
# at a time into a temporary file, compressed files likewise.

LAST_STAMP = 2**63 - 1
"""A column of a database holds no higher number."""
SUFFIXES = frozenset(
    {".jsonl", ".json", ".ndjson", ".db", ".sqlite", ".sqlite3", ".vscdb", ".traj", ".zst", ".zip", ".history"}
)
ENDINGS = (".aider.chat.history.md",)
"""Of names whose suffix is that of much else."""
DATABASES = frozenset({".db", ".sqlite", ".sqlite3", ".vscdb"})


class SourceCandidate(Struct, frozen=True):
    """A file, or a member of an archive, that may be somebody's session."""

    path: Path
    size: int
    stamp: int
    member: str | None = None
    beside: tuple[tuple[str, int, int], ...] = ()
    """Files that it stands for, with their sizes and times, which count as its own."""
    archives: Archives | None = None
    """Of a member: who unpacks it."""

    @property
    def name(self) -> str:
        """As it can be shown and stored, whatever bytes it is called by."""
        full = str(self.path) if self.member is None else f"{self.path}!{self.member}"
        return full.encode("utf-8", "backslashreplace").decode()

    @property
    def is_packed(self) -> bool:
        return self.member is not None or self.path.suffix == ".zst"

    @property
    def changed_ms(self) -> int:
        return self.stamp // 1_000_000

    def with_parts(self, files: Iterable[Path]) -> SourceCandidate:
        """The same one, standing for these files."""
        beside = tuple(glance for file in sorted(files) if (glance := _glance(file)) is not None)
        size, stamp = sum(size for _, size, _ in beside), max((stamp for *_, stamp in beside), default=0)
        return SourceCandidate(self.path, self.size + size, max(self.stamp, stamp), self.member, beside, self.archives)

    def is_as(self, read: ImportSource) -> bool:
        """Does it look as it did when it was read?"""
        return (read.size, read.stamp) == (self.size, self.stamp)

    def is_quiet(self, now: float) -> bool:
        """Has nobody written to it for a while?"""
        return self.member is not None or now - self.stamp / 1e9 > QUIET_SECONDS

    @contextmanager
    def open(self, now: float, budget: ReadBudget) -> Iterator[Source]:
        """As a file that can be sought in. Raises LimitExceeded where it unpacks to more than the budget has."""
        budget.note_read(self.path.stat().st_size)
        if not self.is_packed:
            yield self._source(self.path, now, is_cut=False)
            return
        with TemporaryDirectory(prefix="weft-import-") as folder:
            name = Path(self.member or self.path.stem).name or "member"
            target = Path(folder) / name.removesuffix(".zst")
            is_cut = self._unpack(target, budget)
            yield self._source(target, now, is_cut)

    def _source(self, path: Path, now: float, is_cut: bool) -> Source:
        return Source(
            path=path,
            name=self.name,
            size=path.stat().st_size,
            head=read_sample(path, HEAD_BYTES),
            quiet=self.is_quiet(now),
            now=now,
            is_cut=is_cut,
        )

    def _unpack(self, target: Path, budget: ReadBudget) -> bool:
        """Does it end too early? What came before that is there then."""
        try:
            if self.archives is None or self.member is None:
                unpack_zst(self.path, target, budget)
            else:
                self.archives.unpack(self.path, self.member, target, budget)
            return False
        except EOFError:
            return True
        except (*BROKEN, KeyError) as error:
            raise OSError(f"it cannot be unpacked: {error}") from error


def stamp_of(status: os.stat_result) -> int:
    """When a file was last changed, in nanoseconds; the years before 1678 and after 2262 count as those."""
    return max(-LAST_STAMP, min(status.st_mtime_ns, LAST_STAMP))


def _glance(path: Path) -> tuple[str, int, int] | None:
    try:
        status = path.stat()
    except OSError:  # gone since it was listed
        return None
    return os.fsdecode(path), status.st_size, stamp_of(status)


def is_likely(path: Path) -> bool:
    """Is it called as session files are?"""
    is_named = path.suffix in SUFFIXES or path.name.endswith(ENDINGS)
    return is_named or _is_transcript(path)


def _is_transcript(path: Path) -> bool:
    """Is it one of the texts that a tool writes sessions into? Others are not opened: most texts are no session."""
    is_export = path.name.startswith("cursor_") and path.suffix == ".md" and "/" in str(path)
    return is_export or ("/agent-transcripts/" in str(path) and str(path).endswith(".txt"))


Failed = Callable[[Path | Address, OSError], None]
PassedOver = Callable[[Path], None]


def _silent(path: Path) -> None:
    """Nobody counts what is passed over."""


def candidates(
    path: Path | Address, failed: Failed, passed_over: PassedOver = _silent
) -> Iterator[SourceCandidate | OnServer]:
    """Every file at or below a path that may hold sessions, in order of name. Links are not followed out of it. Files
    with other names, and archives of such files, are passed over."""
    if isinstance(path, Address):
        yield from _on_server(path, failed)
        return
    archives = lru_cache(maxsize=1)(Archives)  # made when the first archive is met
    if path.is_dir():
        root = os.path.realpath(path)
        for folder, folders, names in os.walk(path, onerror=lambda error: failed(path, error)):
            folders.sort()
            for name in sorted(names):
                file = Path(folder) / name
                if not is_likely(file):
                    passed_over(file)
                elif file.is_symlink() and not Path(os.path.realpath(file)).is_relative_to(root):
                    failed(file, OSError("it is a link to another place; name that place to import it"))
                else:
                    yield from _file(file, failed, passed_over, archives)
    else:
        yield from _file(path, failed, passed_over, archives)


def _on_server(address: Address, failed: Failed) -> Iterator[OnServer]:
    try:
        yield address.candidate()
    except OSError as error:
        failed(address, error)


def _file(
    path: Path, failed: Failed, passed_over: PassedOver, archives: Callable[[], Archives]
) -> Iterator[SourceCandidate]:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is no regular file")
        if path.suffix == ".zip":
            members = _members(path, status, archives())
            if not members:
                passed_over(path)
            yield from members
            return
        log = path.with_name(f"{path.name}-wal")  # a database that is in use grows there first
        beside = log.stat() if path.suffix in DATABASES and is_log(log) else None
        size, stamp = (beside.st_size, stamp_of(beside)) if beside else (0, 0)
        yield SourceCandidate(path, status.st_size + size, max(stamp_of(status), stamp))
    except LimitExceeded as error:
        failed(path, OSError(f"{error}; {error.hint}"))
    except (OSError, *BROKEN) as error:
        failed(path, error if isinstance(error, OSError) else OSError(f"it is no zip archive: {error}"))


def is_log(path: Path) -> bool:
    """Is it the log of a database beside it? A link would lead to something else."""
    return path.is_file() and not path.is_symlink()


def _members(path: Path, status: os.stat_result, archives: Archives) -> list[SourceCandidate]:
    infos = [
        info
        for info in archives.members(path)
        if not info.is_dir() and is_likely(Path(info.filename)) and not info.filename.endswith(".zip")
    ]
    check_total(infos, status.st_size)
    return [SourceCandidate(path, info.file_size, stamp_of(status), info.filename, archives=archives) for info in infos]


def claiming(importers: Iterable[Importer], source: Source) -> list[Importer]:
    """The importers that take a file: those of tools that recognise it; a generic one where there is none."""
    tool_importers: list[Importer] = []
    generic: list[Importer] = []
    for importer in importers:
        is_generic = isinstance(importer, GenericImporter) and importer.is_generic
        (generic if is_generic else tool_importers).append(importer)
    claims = [importer for importer in tool_importers if importer.recognises(source)]
    return claims or [importer for importer in generic if importer.recognises(source)]


# --- What tells whether a source is what it was: digests of its bytes, its size, and what lies beside it.


def still_to_keep(source: Source, before: ImportSource | None, beginning: bytes | None) -> RawFile:
    """What of the file is not kept yet: all of it, unless it has only grown."""
    if before is None:
        return RawFile(source.path, 0, source.size)
    grown = before.digest == beginning
    start = before.size if before.kept is None else before.kept
    return RawFile(source.path, start if grown else 0, source.size, grows=grown)


def _beside(candidate: SourceCandidate | OnServer) -> tuple[tuple[str, int, int], ...]:
    return () if isinstance(candidate, OnServer) else candidate.beside


def _log(source: Source, candidate: SourceCandidate | OnServer) -> Path | None:
    """What a database in use has beside it."""
    if isinstance(candidate, OnServer):
        return None
    log = candidate.path.with_name(f"{candidate.path.name}-wal")
    return log if candidate.size > source.size and is_log(log) else None


def read_size(source: Source, candidate: SourceCandidate | OnServer) -> int:
    """So many bytes as the fingerprint is of: a file that is written to has grown since it was found."""
    is_more = candidate.is_packed or _beside(candidate) or _log(source, candidate)
    return candidate.size if is_more else source.size


def fingerprint(source: Source, candidate: SourceCandidate | OnServer, file_digest: bytes) -> bytes:
    """Of the file, and of a database's log beside it; of files that it stands for their sizes and times."""
    if beside := _beside(candidate):
        return sha256(file_digest + repr(beside).encode("utf-8", "surrogateescape")).digest()
    return bytes_digest(source, candidate, file_digest)


def bytes_digest(source: Source, candidate: SourceCandidate | OnServer, file_digest: bytes) -> bytes:
    """Of the file, and of a database's log beside it."""
    log = _log(source, candidate)
    return file_digest if log is None else sha256(file_digest + digests(log, log.stat().st_size, 0)[0]).digest()


def file_state(source: Source, candidate: SourceCandidate | OnServer) -> tuple[int, ...] | None:
    """What changes with a file that is written to or replaced, as far as a file system tells. None where it has grown
    since it was opened, and of what is no single file of its own: unpacked, or a database with a log beside it."""
    status = source.path.stat()
    if candidate.is_packed or _log(source, candidate) is not None or status.st_size != source.size:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def digests(path: Path, size: int, start: int) -> tuple[bytes, bytes | None]:
    """Of so many bytes of a file, and of those before `start`, if there are as many: it is read once."""
    hasher, beginning = sha256(), None
    with path.open("rb") as file:
        if start <= size:
            _hash(file, start, hasher)
            beginning, size = hasher.copy().digest(), size - start
        _hash(file, size, hasher)
    return hasher.digest(), beginning


def _hash(file: BinaryIO, size: int, hasher: Hash) -> None:
    while size > 0 and (chunk := file.read(min(size, 1 << 20))):
        hasher.update(chunk)
        size -= len(chunk)


# --- What lies where: every file that may hold sessions, by its size and time alone.

LOG = "-wal"
_MORE = frozenset({".txt", ".md"})
"""Suffixes of which only some names are likely. The rest is told by the suffix alone: this is asked of every file."""

Look = tuple[int, int]
"""Size and modification time (ns) of a file; of a database together with the log beside it."""


def look(path: str) -> Look | None:
    """A file as it is now; None where there is none, or a folder."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    if stat.S_ISDIR(status.st_mode):
        return None
    size, stamp = status.st_size, stamp_of(status)
    if is_database(path):
        try:
            log = os.stat(path + LOG)
        except OSError:
            return size, stamp
        return size + log.st_size, max(stamp, stamp_of(log))
    return size, stamp


def is_database(path: str) -> bool:
    return os.path.splitext(path)[1] in DATABASES


def source_of(path: str) -> str | None:
    """The file that a change at this path is a change of; None where it is of no interest."""
    path = path.removesuffix(LOG)
    return path if is_likely(Path(path)) else None


def sweep(root: str) -> Iterator[tuple[str, Look]]:
    """Every likely file at or below a path. Folders that cannot be read are passed over; links are not followed out."""
    if not os.path.isdir(root):
        if (current_look := look(root)) is not None:
            yield root, current_look
        return
    top = os.path.realpath(root)
    waiting = [root]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif _is_wanted(entry, top) and (current_look := _glance_at(entry)) is not None:
                        yield entry.path, current_look
        except OSError:  # gone meanwhile, or not ours to read: an import that is told to read it says so
            continue


def _is_wanted(entry: os.DirEntry[str], top: str) -> bool:
    suffix = os.path.splitext(entry.name)[1]
    if suffix not in SUFFIXES and not (suffix in _MORE and is_likely(Path(entry.path))):
        return False
    return not entry.is_symlink() or Path(os.path.realpath(entry.path)).is_relative_to(top)


def _glance_at(entry: os.DirEntry[str]) -> Look | None:
    if is_database(entry.path):
        return look(entry.path)
    try:
        status = entry.stat()
    except OSError:
        return None
    return status.st_size, stamp_of(status)


class FoundPlace(Struct, frozen=True, kw_only=True):
    """A place where a tool keeps its sessions, and how much lies there."""

    origin: str
    what: str
    path: str
    exists: bool
    files: int = 0
    bytes: int = 0
    newest_ms: int | None = None


def discover(importers: Iterable[Importer], home: Path, environment: dict[str, str]) -> list[FoundPlace]:
    """Where the tools keep their sessions, whether or not there is something."""
    places = [(importer.origin, place) for importer in importers for place in importer.places(home, environment)]
    return [_found_place(origin, place.what, str(place.path)) for origin, place in dict.fromkeys(places)]


def _found_place(origin: str, label: str, path: str) -> FoundPlace:
    if not os.path.exists(path):
        return FoundPlace(origin=origin, what=label, path=path, exists=False)
    looks = [current_look for _, current_look in sweep(path)]
    newest = max((stamp for _, stamp in looks), default=None)
    return FoundPlace(
        origin=origin,
        what=label,
        path=path,
        exists=True,
        files=len(looks),
        bytes=sum(size for size, _ in looks),
        newest_ms=None if newest is None else newest // 1_000_000,
    )
