"""The objects of a git repository, kept so that they can be given back after any command: `git gc` throws away what
nothing refers to any longer, and a command can remove or overwrite every file of them.

Kept is what references, logs and the index lead to, as packs of git's own that lie in the store of files as they are.
What was kept before is not packed again: a file beside the store remembers which objects those are. Which ones
there are is found out by going through all of the history from every tip, so what the repository says of itself where
git believes it unasked (a commit-graph, bitmaps, alternates) counts for nothing. The names of the objects in a pack are
those that their bytes have, not those that the repository gives them.

They are given back as further packs, and only where something of what was there has gone or is other bytes by now.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec import Struct

from weft.kernel.clock import Clock, RandomBytes
from weft.kernel.errors import Damaged, LimitExceeded, Unsupported
from weft.runtime.folder_snapshots.folder_scan import open_real_folder
from weft.runtime.folder_snapshots.snapshot_objects import BLOB, GIB, MIB, ObjectReader, ObjectWriter, locked
from weft.runtime.opened_folders import READ_FLAGS, READ_FOLDER_FLAGS, open_beneath
from weft.runtime.sandbox.git_repositories import GitFolder
from weft.runtime.sandbox.own_git import Git, ended_well, opened_repository
from weft.store.private_files import make_folder, new_file

MOST_OBJECT_BYTES = 2 * GIB
"""A repository with more is not kept."""
_MOST_PACK_BYTES = 256 * MIB
"""Only where a single object is so large: packs are cut long before."""
_PACK_SIZE = "32m"
_MOST_PACKS = 20
"""With more of them all objects are packed anew."""
_MOST_FILES = 100_000
OBJECTS_CACHE = "-objects"
"""How the names of folders end in which is remembered what was kept of a repository."""
_KEPT = "kept"
_OBJECTS, _PACK, _INFO, _ALTERNATES = "objects", "pack", "info", "alternates"
_FAN_OUT = re.compile(r"[0-9a-f]{2}")
_LOOSE = re.compile(r"[0-9a-f]{38}(?:[0-9a-f]{24})?")
_HEARSAY = re.compile(r"multi-pack-index.*|.*\.bitmap|.*\.rev|.*\.mtimes|commit-graph")
_CHUNK_BYTES = MIB
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PATH_ONLY = getattr(os, "O_PATH", os.O_RDONLY)
_INDEX_HEAD = b"\377tOc\0\0\0\2"


class ObjectFile(Struct, frozen=True, array_like=True):
    """A file among the objects of a repository, as it was."""

    size: int
    inode: int
    changed_ns: int
    digest: str
    """Of a pack or its index what they end with, which is the hash of all before it; empty for others."""


class ObjectListing(Struct, frozen=True):
    """What lay in the folder of the objects."""

    files: Mapping[str, ObjectFile]
    alternates: bytes | None


class _Known(Struct, frozen=True):
    """What was kept of one repository already. It is one file: names of objects without the packs that have them, or
    of another time than these, would say of an object that it is kept where it is not."""

    place: tuple[int, int]
    tips: frozenset[str] = frozenset()
    packs: tuple[str, ...] = ()
    names: bytes = b""
    """Of all objects in these packs, sorted, one behind the other."""


class KeptObjects(Struct, frozen=True):
    """What was kept: the ids of packs, and of the listing."""

    packs: tuple[bytes, ...]
    listing: bytes


class GitObjects:
    """The objects of one repository. `scratch` is a folder for files that nobody needs afterwards, `cache` the one in
    which is remembered what was kept."""

    def __init__(self, program: str, folder: GitFolder, scratch: Path, cache: Path, clock: Clock) -> None:
        self._program, self._folder, self._scratch, self._cache = program, folder, scratch, cache
        self._clock = clock
        self._name_bytes = 32 if folder.object_format == "sha256" else 20

    def keep(self, store: Git, writer: ObjectWriter, tips: Iterable[str]) -> KeptObjects:
        """Keep what these ids lead to, as far as it is there. Raises LimitExceeded where that is too much, Unsupported
        where the repository is not as git makes one."""
        with self._opened_objects() as objects:
            listing = _list_objects(objects)
        size = sum(file.size for file in listing.files.values())
        if size > MOST_OBJECT_BYTES:
            raise LimitExceeded(f"the bytes of the git repository {self._folder.objects}", size, MOST_OBJECT_BYTES)
        packs = self._keep_packs(store, writer, frozenset(tips))
        return KeptObjects(packs, writer.add(BLOB, msgspec.json.encode(listing)))

    def _keep_packs(self, store: Git, writer: ObjectWriter, tips: frozenset[str]) -> tuple[bytes, ...]:
        repository = Path(self._folder.objects)
        make_folder(self._cache)
        with (
            # workspaces that share a repository have locks of their own: neither is to undo what the other remembers
            locked(self._cache / "lock", self._clock),
            opened_repository(self._program, repository, object_format=self._folder.object_format) as git,
        ):
            present = _present_objects(git, tips)
            known = self._load_known(store)
            if not present <= known.tips:
                reachable = _reachable_objects(git, present)
                if len(known.packs) > _MOST_PACKS:
                    known = _Known(known.place)
                names = set(_names_of(known.names, self._name_bytes))
                packs = [writer.add(BLOB, pack) for pack in self._pack_objects(git, reachable - names, names)]
                writer.finish()  # what is remembered as kept is
                ids = (*known.packs, *(pack.hex() for pack in packs))
                known = _Known(known.place, present, ids, b"".join(sorted(names)))
                self._save_known(known)
        return tuple(bytes.fromhex(pack) for pack in known.packs)

    def _pack_objects(self, git: Git, wanted: set[bytes], names: set[bytes]) -> Iterator[bytes]:
        """New packs with these objects, whose names are added to those that are known."""
        if not wanted:
            return
        with TemporaryDirectory(dir=self._scratch) as place, self._empty_repository() as empty:
            words = ("pack-objects", "--local", f"--max-pack-size={_PACK_SIZE}", "-q", f"{place}/new")
            git.run(*words, stdin=b"".join(name.hex().encode() + b"\n" for name in sorted(wanted)))
            for pack in sorted(Path(place).glob("new-*.pack")):
                size = pack.stat().st_size
                if size > _MOST_PACK_BYTES:
                    raise LimitExceeded("the bytes of one object of the git repository", size, _MOST_PACK_BYTES)
                index = self._index_pack(empty, pack)
                names.update(_names_in(index, self._name_bytes))
                yield pack.read_bytes()

    def _index_pack(self, empty: Git, pack: Path) -> bytes:
        """The index of a pack, made from its bytes alone."""
        index = pack.with_suffix(".new-idx")
        empty.run("index-pack", "-o", str(index), str(pack))
        return index.read_bytes()

    @contextmanager
    def _empty_repository(self) -> Iterator[Git]:
        """Git without any objects: it compares a pack with those that there are, and stops at damaged ones."""
        with TemporaryDirectory(dir=self._scratch) as place:
            for name in ("objects", "refs"):
                Path(place, name).mkdir()
            with opened_repository(self._program, Path(place), object_format=self._folder.object_format) as git:
                yield git

    def give_back(self, reader: ObjectReader, packs: Iterable[bytes], listing: bytes, random: RandomBytes) -> None:
        """Have the repository have all these objects again."""
        then = msgspec.json.decode(reader.read(BLOB, listing), type=ObjectListing)
        with self._made_objects(random) as objects:
            listed = [(name, file) for name, file in then.files.items() if _holds_objects(name)]
            changed = [name for name, file in listed if not _is_same(objects, name, file)]
            if changed:
                self._add_packs(objects, reader, packs, random)
                _remove_damaged(objects, changed)
            _remove_hearsay(objects, then)

    def _add_packs(self, objects: int, reader: ObjectReader, packs: Iterable[bytes], random: RandomBytes) -> None:
        """Under names that no other pack has: one of the same name may have been made to hold other bytes."""
        folder = os.open(_PACK, READ_FOLDER_FLAGS, dir_fd=objects)
        try:
            with TemporaryDirectory(dir=self._scratch) as place, self._empty_repository() as empty:
                for id in packs:
                    pack = Path(place, "given-back.pack")
                    pack.write_bytes(reader.read(BLOB, id, _MOST_PACK_BYTES))
                    index, name = self._index_pack(empty, pack), random(20).hex()
                    # git takes a pack for one once its index is there
                    _write_new_file(folder, f"pack-{name}.pack", pack.read_bytes())
                    _write_new_file(folder, f"pack-{name}.idx", index)
                    pack.with_suffix(".new-idx").unlink()
        finally:
            os.close(folder)

    @contextmanager
    def _opened_objects(self) -> Iterator[int]:
        """The folder of the objects, which is where git has it, and no link."""
        with ExitStack() as stack:
            try:
                root = open_real_folder(Path(self._folder.objects))
                stack.callback(os.close, root)
                objects = open_beneath(root, [_OBJECTS], READ_FOLDER_FLAGS)
                stack.callback(os.close, objects)
                os.close(open_beneath(objects, [_PACK], READ_FOLDER_FLAGS))
            except OSError as error:
                raise Unsupported(f"{self._folder.objects} is no repository that git made: {error.strerror}") from None
            yield objects

    @contextmanager
    def _made_objects(self, random: RandomBytes) -> Iterator[int]:
        """The same, made anew where it is gone, or where something else has taken its place: that gets another name."""
        with ExitStack() as stack:
            folder = open_real_folder(Path(self._folder.objects))
            stack.callback(os.close, folder)
            objects = _made_folder(folder, _OBJECTS, random)
            stack.callback(os.close, objects)
            for name in (_PACK, _INFO):
                os.close(_made_folder(objects, name, random))
            yield objects

    def _load_known(self, store: Git) -> _Known:
        """What was kept before, where it is still there."""
        status = os.stat(self._folder.objects)
        place = (status.st_dev, status.st_ino)
        known = _remembered_objects(self._cache)
        if known is None or known.place != place or not _are_all_there(store, known.packs):
            return _Known(place)
        return known

    def _save_known(self, known: _Known) -> None:
        with new_file(self._cache / _KEPT) as file:
            file.write(msgspec.msgpack.encode(known))


def _remembered_objects(cache: Path) -> _Known | None:
    """None where nothing is, or nothing that this program wrote."""
    try:
        return msgspec.msgpack.decode((cache / _KEPT).read_bytes(), type=_Known)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def is_all_kept(store: Git, cache: Path) -> bool:
    """Whether the store has all that a folder says it has."""
    known = _remembered_objects(cache)
    return known is not None and _are_all_there(store, known.packs)


def _are_all_there(store: Git, packs: Sequence[str]) -> bool:
    return len(_present_objects(store, packs)) == len(set(packs))


def _names_of(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


def _present_objects(git: Git, ids: Iterable[str]) -> frozenset[str]:
    """Those of some ids under which there is an object."""
    wanted = sorted(ids)
    with git.start("cat-file", "--batch-check=%(objectname)", "--buffer") as process:
        process.write(b"".join(id.encode() + b"\n" for id in wanted))
        lines = ended_well(process, "cat-file")[1].decode().split("\n")
    return frozenset(id for id, line in zip(wanted, lines, strict=False) if line == id)


def _reachable_objects(git: Git, tips: Iterable[str]) -> set[bytes]:
    words = ("rev-list", "--objects", "--no-object-names", "--missing=allow-any", "--stdin")
    lines = git.run(*words, stdin=b"".join(tip.encode() + b"\n" for tip in sorted(tips))).decode().split("\n")
    return {bytes.fromhex(line) for line in lines if line}


def _names_in(index: bytes, size: int) -> Iterator[bytes]:
    """The names of the objects in a pack, by its index."""
    if not index.startswith(_INDEX_HEAD):
        raise Damaged("git wrote an index of another form", "install a newer git")
    count = struct.unpack_from(">I", index, len(_INDEX_HEAD) + 255 * 4)[0]
    start = len(_INDEX_HEAD) + 256 * 4
    return (index[place : place + size] for place in range(start, start + count * size, size))


def _list_objects(objects: int) -> ObjectListing:
    files: dict[str, ObjectFile] = {}
    for folder in sorted(os.listdir(objects)):
        if folder not in (_PACK, _INFO) and not _FAN_OUT.fullmatch(folder):
            continue
        try:
            opened = os.open(folder, READ_FOLDER_FLAGS, dir_fd=objects)
        except OSError as error:
            raise Unsupported(f"git's folder {_OBJECTS}/{folder} cannot be read: {error.strerror}") from None
        try:
            for name in sorted(os.listdir(opened)):
                file = _file_at(opened, name)
                if file is not None:
                    files[f"{folder}/{name}"] = file
        finally:
            os.close(opened)
        if len(files) > _MOST_FILES:
            raise LimitExceeded("the files of git's objects", len(files), _MOST_FILES, "run `git gc`")
    return ObjectListing(files, _read_alternates(objects))


def _file_at(folder: int, name: str) -> ObjectFile | None:
    """None for what is gone or no file. Raises Unsupported for a pipe: git would wait at it for ever."""
    with suppress(FileNotFoundError):
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISFIFO(status.st_mode):
            raise Unsupported(f"{name!r} among the objects of a git repository is a pipe", "remove it")
        if stat.S_ISREG(status.st_mode):
            digest = _file_ending(folder, name) if name.endswith((".pack", ".idx")) else ""
            return ObjectFile(status.st_size, status.st_ino, status.st_ctime_ns, digest)
    return None


def _file_ending(folder: int, name: str) -> str:
    with open(os.open(name, READ_FLAGS, dir_fd=folder), "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - 32))
        return file.read(32).hex()


def _holds_objects(name: str) -> bool:
    folder, _, file = name.partition("/")
    if folder == _PACK:
        return file.endswith((".pack", ".idx"))
    return folder != _INFO and _LOOSE.fullmatch(file) is not None


def _is_same(objects: int, name: str, then: ObjectFile) -> bool:
    """Whether a file is there with the bytes that it had. Nothing changes a file without its time of change."""
    folder, _, file = name.partition("/")
    try:
        opened = os.open(folder, READ_FOLDER_FLAGS, dir_fd=objects)
    except OSError:
        return False
    try:
        now = _file_at(opened, file)
        if now is None or now.size != then.size:
            return False
        return now == then or _has_named_bytes(opened, folder, file, then)
    except OSError:
        return False
    finally:
        os.close(opened)


def _has_named_bytes(opened: int, folder: str, name: str, then: ObjectFile) -> bool:
    """Git touches a file when somebody stores the same again: its bytes say whether it is the same."""
    with open(os.open(name, READ_FLAGS, dir_fd=opened), "rb") as file:
        if then.digest:
            return _ends_with_its_hash(file.fileno(), then)
        with suppress(zlib.error):
            data = zlib.decompress(file.read())
            hashed = hashlib.sha1(data, usedforsecurity=False) if len(name) == 38 else hashlib.sha256(data)
            return hashed.hexdigest() == folder + name
        return False


def _remove_damaged(objects: int, names: Iterable[str]) -> None:
    """Objects in files of their own that are other bytes than they were: git would stop at them."""
    for name in names:
        folder, _, file = name.partition("/")
        if folder != _PACK:
            with suppress(OSError):  # gone, or no file any more
                opened = os.open(folder, READ_FOLDER_FLAGS, dir_fd=objects)
                try:
                    os.unlink(file, dir_fd=opened)
                finally:
                    os.close(opened)


def _ends_with_its_hash(descriptor: int, then: ObjectFile) -> bool:
    """Whether a pack or an index ends with the hash that it ended with, and that is the hash of all before it."""
    for size, kind in ((20, "sha1"), (32, "sha256")):
        hashed, left = hashlib.new(kind, usedforsecurity=False), then.size - size
        os.lseek(descriptor, 0, os.SEEK_SET)
        while left > 0 and (piece := os.read(descriptor, min(left, _CHUNK_BYTES))):
            hashed.update(piece)
            left -= len(piece)
        if left == 0 and then.digest.endswith(hashed.hexdigest()) and os.read(descriptor, size) == hashed.digest():
            return True
    return False


def _read_alternates(objects: int) -> bytes | None:
    try:
        descriptor = open_beneath(objects, [_INFO, _ALTERNATES], READ_FLAGS)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        return file.read(_CHUNK_BYTES)


def _remove_hearsay(objects: int, then: ObjectListing) -> None:
    """What git believes of its objects without looking, where it is not what it was: git does without, and makes it
    again. Other folders of objects are those that were named."""
    for folder in (_PACK, _INFO):
        opened = os.open(folder, READ_FOLDER_FLAGS, dir_fd=objects)
        try:
            for name in sorted(os.listdir(opened)):
                known = then.files.get(f"{folder}/{name}")
                if _HEARSAY.fullmatch(name) and (known is None or _file_at(opened, name) != known):
                    os.unlink(name, dir_fd=opened)
        finally:
            os.close(opened)
    with suppress(OSError):  # there is none, or something else that git does not read either
        chains = open_beneath(objects, [_INFO, "commit-graphs"], READ_FOLDER_FLAGS)
        try:
            os.unlink("commit-graph-chain", dir_fd=chains)
        finally:
            os.close(chains)
    if _read_alternates(objects) != then.alternates:
        info = os.open(_INFO, READ_FOLDER_FLAGS, dir_fd=objects)
        try:
            with suppress(FileNotFoundError):
                os.unlink(_ALTERNATES, dir_fd=info)
            if then.alternates is not None:
                _write_new_file(info, _ALTERNATES, then.alternates, 0o644)
        finally:
            os.close(info)


def _made_folder(above: int, name: str, random: RandomBytes) -> int:
    """A folder, opened, that its owner can change."""
    try:
        open_up_folder(above, name)
        return os.open(name, READ_FOLDER_FLAGS, dir_fd=above)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        os.rename(name, f"{name}.{random(8).hex()}", src_dir_fd=above, dst_dir_fd=above)
    os.mkdir(name, 0o755, dir_fd=above)
    return os.open(name, READ_FOLDER_FLAGS, dir_fd=above)


def open_up_folder(above: int, name: str) -> bool:
    """Have its owner read and change a folder; whether that changed anything. Raises OSError for what is none."""
    descriptor = os.open(name, _PATH_ONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        if mode & stat.S_IRWXU == stat.S_IRWXU:
            return False
        os.chmod(f"/proc/self/fd/{descriptor}", mode | stat.S_IRWXU)  # a descriptor of a path alone has no fchmod
        return True
    finally:
        os.close(descriptor)


def _write_new_file(folder: int, name: str, data: bytes, mode: int = 0o444) -> None:
    """A new file, on disk when this returns."""
    descriptor = os.open(name, _NEW_FILE, 0o600, dir_fd=folder)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
