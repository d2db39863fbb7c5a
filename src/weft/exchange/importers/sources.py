"""From the paths that people name to files that an importer can read: folders walked, archives unpacked one member
at a time into a temporary file, compressed files likewise."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct

from weft.exchange.importers.archives import BROKEN, Archives, check_total, unpack_zst
from weft.exchange.importers.port import HEAD_BYTES, GenericImporter, Importer, Source
from weft.exchange.importers.records.jsonl import sample
from weft.exchange.importers.servers import Address, OnServer
from weft.kernel.errors import LimitExceeded
from weft.kernel.foreign_input import ReadBudget
from weft.ledger.imports import ImportSource

LAST_STAMP = 2**63 - 1
"""A column of a database holds no higher number."""
SUFFIXES = frozenset(
    {".jsonl", ".json", ".ndjson", ".db", ".sqlite", ".sqlite3", ".vscdb", ".traj", ".zst", ".zip", ".history"}
)
ENDINGS = (".aider.chat.history.md",)
"""Of names whose suffix is that of much else."""
DATABASES = frozenset({".db", ".sqlite", ".sqlite3", ".vscdb"})
QUIET_SECONDS = 300


class Candidate(Struct, frozen=True):
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

    def with_parts(self, parts: Iterable[Path]) -> Candidate:
        """The same one, standing for these files."""
        beside = tuple(each for part in sorted(parts) if (each := _glance(part)) is not None)
        size, stamp = sum(size for _, size, _ in beside), max((stamp for *_, stamp in beside), default=0)
        return Candidate(self.path, self.size + size, max(self.stamp, stamp), self.member, beside, self.archives)

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
            head=sample(path, HEAD_BYTES),
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


def stamp_of(found: os.stat_result) -> int:
    """When a file was last changed, in nanoseconds; the years before 1678 and after 2262 count as those."""
    return max(-LAST_STAMP, min(found.st_mtime_ns, LAST_STAMP))


def _glance(path: Path) -> tuple[str, int, int] | None:
    try:
        found = path.stat()
    except OSError:  # gone since it was listed
        return None
    return os.fsdecode(path), found.st_size, stamp_of(found)


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
) -> Iterator[Candidate | OnServer]:
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


def _file(path: Path, failed: Failed, passed_over: PassedOver, archives: Callable[[], Archives]) -> Iterator[Candidate]:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise OSError("it is no regular file")
        if path.suffix == ".zip":
            members = _members(path, found, archives())
            if not members:
                passed_over(path)
            yield from members
            return
        log = path.with_name(f"{path.name}-wal")  # a database that is in use grows there first
        beside = log.stat() if path.suffix in DATABASES and is_log(log) else None
        size, stamp = (beside.st_size, stamp_of(beside)) if beside else (0, 0)
        yield Candidate(path, found.st_size + size, max(stamp_of(found), stamp))
    except LimitExceeded as error:
        failed(path, OSError(f"{error}; {error.hint}"))
    except (OSError, *BROKEN) as error:
        failed(path, error if isinstance(error, OSError) else OSError(f"it is no zip archive: {error}"))


def is_log(path: Path) -> bool:
    """Is it the log of a database beside it? A link would lead to something else."""
    return path.is_file() and not path.is_symlink()


def _members(path: Path, found: os.stat_result, archives: Archives) -> list[Candidate]:
    infos = [
        info
        for info in archives.members(path)
        if not info.is_dir() and is_likely(Path(info.filename)) and not info.filename.endswith(".zip")
    ]
    check_total(infos, found.st_size)
    return [Candidate(path, info.file_size, stamp_of(found), info.filename, archives=archives) for info in infos]


def claiming(importers: Iterable[Importer], source: Source) -> list[Importer]:
    """The importers that take a file: those of tools that recognise it; a generic one where there is none."""
    own: list[Importer] = []
    generic: list[Importer] = []
    for importer in importers:
        is_generic = isinstance(importer, GenericImporter) and importer.is_generic
        (generic if is_generic else own).append(importer)
    claims = [importer for importer in own if importer.recognises(source)]
    return claims or [importer for importer in generic if importer.recognises(source)]
