"""Which ledgers a person made, cloned or allowed, and which folders: one small file of their own, outside of every
ledger.

A ledger in a file is known by its real path, the owner and the inode of the file, and its replica: another file at the
same path, or another ledger in the same file, is another ledger. One in PostgreSQL is known by server, database, schema
and replica. Beside that the ledger holds a token that was drawn when it was trusted, and that no copy of it has: a file
that a checkout writes anew, perhaps with the same inode and the same replica, has none. The trust file is 0600; one
that others could have written is not believed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from msgspec import DecodeError, Struct, ValidationError, field
from msgspec.json import decode, encode, format
from msgspec.structs import replace

from weft.kernel.advice import Action
from weft.kernel.clock import Clock, RandomBytes, SystemClock, system_random
from weft.kernel.errors import InvalidInput, NotTrusted
from weft.kernel.sites import Site
from weft.store.atomic_files import make_folder, new_file
from weft.store.port import Store, WriteTxn
from weft.store.replica_names import NOTE

MADE, CLONED, COPIED, RECOVERED, ALLOWED = "made", "cloned", "copied", "recovered", "allowed"
TOKEN = "trust:"
"""Local state: a row per person who trusts the ledger, with the token that was drawn for them."""
UNKNOWN = "you neither made nor allowed it"
REPLACED = "the file is another one than the one you trusted"
RENAMED = "it is another ledger (replica) than the one you trusted"
STRANGE = "it belongs to another user, and you did not allow it"


class LedgerIdentity(Struct, frozen=True, kw_only=True):
    """What tells one ledger from another: the place, `owner` and `inode` of a file, and the replica. Without a replica
    it is a file that nobody has opened yet."""

    place: str
    owner: int | None = None
    inode: int | None = None
    replica: str | None = None


class TrustedLedger(Struct, frozen=True, kw_only=True):
    """A ledger that this person trusts. `replicas` says which replica answered at an address when it was first spoken
    to from this ledger."""

    identity: LedgerIdentity
    how: str
    since: int
    token: str | None = None
    """In the ledger's own local state as well; None where it could not be written there."""
    replicas: dict[str, str] = field(default_factory=dict)


class TrustedFolder(Struct, frozen=True, kw_only=True):
    """A folder whose rules this person lets agents be told. Another folder at the same place is another one."""

    place: str
    owner: int
    inode: int
    since: int
    is_for_work: bool = False
    """Whether agents also change files there, and run commands in the sandbox, without asking. That holds for the
    folders in it, too."""


class ShownFile(Struct, frozen=True, kw_only=True):
    """A file that commonly holds secrets, in a folder that this person works in: commands in the sandbox may see it."""

    folder: TrustedFolder
    path: str
    """From the folder on."""


class _TrustFile(Struct, frozen=True, kw_only=True):
    version: int = 1
    ledgers: tuple[TrustedLedger, ...] = ()
    folders: tuple[TrustedFolder, ...] = ()
    declined: tuple[TrustedFolder, ...] = ()
    """Those that the person does not trust for work, by an answer or by revoking it: they are not asked again, and what
    lies in one is trusted no more by a folder that it lies in itself."""
    shown: tuple[ShownFile, ...] = ()


def identity_of(path: str, replica: str | None) -> LedgerIdentity:
    """Of an open ledger, or without its replica of a file. A file has to be there."""
    if Site.of(path) is not Site.FILE:
        parts = urlsplit(path)
        place = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        return LedgerIdentity(place=place, replica=replica)
    real = os.path.realpath(path)
    status = os.stat(real)
    return LedgerIdentity(place=real, owner=status.st_uid, inode=status.st_ino, replica=replica)


def _folder_at(path: str, since: int) -> TrustedFolder:
    place = os.path.realpath(path)
    status = os.stat(place)
    return TrustedFolder(place=place, owner=status.st_uid, inode=status.st_ino, since=since)


def _is_there(folder: TrustedFolder) -> bool:
    """Whether the folder at its place is still the same, with the same owner."""
    try:
        return _is_same_folder(folder, _folder_at(folder.place, 0))
    except OSError:
        return False


def _is_same_folder(one: TrustedFolder, other: TrustedFolder) -> bool:
    return (one.place, one.owner, one.inode) == (other.place, other.owner, other.inode)


def _with_folder(
    folders: Sequence[TrustedFolder], place: str, folder: TrustedFolder | None = None
) -> tuple[TrustedFolder, ...]:
    """The folders, sorted, with this one at its place, or with none there."""
    others = [known for known in folders if known.place != place]
    return tuple(sorted([*others, *([] if folder is None else [folder])], key=lambda known: known.place))


def _is_beneath(place: str, folder: str) -> bool:
    return place == folder or place.startswith(f"{folder.rstrip('/')}/")


def _path_beneath(folder: str, path: str) -> str:
    """A path from a folder on, without links on its way. Raises InvalidInput where it leads out."""
    place = os.path.realpath(folder)
    real = os.path.realpath(os.path.join(place, path))
    if not real.startswith(f"{place.rstrip('/')}/"):
        raise InvalidInput(f"{path} does not lie in {folder}", "name a file by its path in the folder")
    return os.path.relpath(real, place)


def _is_same_file(one: ShownFile, other: ShownFile) -> bool:
    return (one.folder.place, one.path) == (other.folder.place, other.path)


def _unnamed(identity: LedgerIdentity) -> LedgerIdentity:
    """The same file or schema, whatever replica it holds."""
    return replace(identity, replica=None)


def _granting_folder(trusted: _TrustFile, path: str) -> TrustedFolder | None:
    """What a folder is trusted for work by: of its own answer and those about the folders that it lies in the nearest
    one, if that is a yes."""
    place = os.path.realpath(path)
    try:
        owner = os.stat(place).st_uid
    except OSError:
        return None
    granted = [known for known in trusted.folders if known.is_for_work and known.owner == owner]
    answers = [known for known in (*trusted.declined, *granted) if _is_beneath(place, known.place) and _is_there(known)]
    nearest = max(answers, key=lambda known: len(known.place), default=None)
    return None if nearest is None or nearest in trusted.declined else nearest


class TrustStore:
    """The ledgers that one person trusts."""

    def __init__(self, path: str | Path, clock: Clock | None = None, random_bytes: RandomBytes = system_random) -> None:
        self.path, self._clock, self._random = Path(path), clock or SystemClock(), random_bytes

    def draw_token(self) -> str:
        return self._random(16).hex()

    def is_file_trusted(self, path: str) -> bool:
        """Whether the file at a path is one that was trusted; it is not opened, so its replica and token are not asked
        for. Nothing there is not trusted."""
        if not os.path.exists(path):
            return False
        identity = identity_of(path, None)
        known = self.find(identity.place)
        return known is not None and _unnamed(known.identity) == identity

    def ledgers(self) -> tuple[TrustedLedger, ...]:
        return self._load().ledgers

    def find(self, place: str) -> TrustedLedger | None:
        return next((known for known in self.ledgers() if known.identity.place == place), None)

    def allow(self, identity: LedgerIdentity, how: str = ALLOWED, token: str | None = None) -> None:
        """Trust this ledger from now on, in place of whatever was trusted at its place."""

        def change(ledgers: Sequence[TrustedLedger]) -> Iterator[TrustedLedger]:
            yield from (known for known in ledgers if known.identity.place != identity.place)
            same = (known.replicas for known in ledgers if _unnamed(known.identity) == _unnamed(identity))
            yield TrustedLedger(
                identity=identity,
                how=how,
                since=self._clock.now_ms(),
                token=token,
                replicas=next(same, dict[str, str]()),
            )

        self._change(change)

    def revoke(self, place: str) -> bool:
        """Trust the ledger at this place no longer. False: it was not trusted."""
        was_known = self.find(place) is not None
        self._change(lambda ledgers: (known for known in ledgers if known.identity.place != place))
        return was_known

    def pin(self, identity: LedgerIdentity, address: str, replica: str | None) -> None:
        """Note which replica answers at an address, or with None forget it."""

        def pinned(known: TrustedLedger) -> TrustedLedger:
            others = {name: value for name, value in known.replicas.items() if name != address}
            return replace(known, replicas=others if replica is None else {**others, address: replica})

        self._change(lambda ledgers: (pinned(known) if known.identity == identity else known for known in ledgers))

    def folders(self) -> tuple[TrustedFolder, ...]:
        return self._load().folders

    def is_folder_trusted(self, path: str) -> bool:
        """Whether the folder at a path is one that was trusted. What belongs to another user now is not."""
        place = os.path.realpath(path)
        return any(known.place == place and _is_there(known) for known in self.folders())

    def allow_folder(self, path: str, *, for_work: bool = False) -> TrustedFolder:
        """Trust this folder from now on, in place of whatever was trusted there. One that is trusted for work stays
        so."""
        if not os.path.isdir(path):
            raise InvalidInput(f"{path} is no folder", "name a folder that is there")
        folder = _folder_at(path, self._clock.now_ms())
        with self._locked():
            trusted = self._load()
            was_for_work = any(known.is_for_work and _is_same_folder(known, folder) for known in trusted.folders)
            folder = replace(folder, is_for_work=for_work or was_for_work)
            self._write(
                replace(
                    trusted,
                    folders=_with_folder(trusted.folders, folder.place, folder),
                    declined=_with_folder(trusted.declined, folder.place) if for_work else trusted.declined,
                )
            )
        return folder

    def is_trusted_for_work(self, path: str) -> bool:
        """Whether a folder is one that was trusted for work, or lies in one. A link in it leads elsewhere, and what
        belongs to another user now is not trusted. It is looked up anew each time: trust may have been revoked."""
        return _granting_folder(self._load(), path) is not None

    def revoke_work(self, path: str) -> TrustedFolder | None:
        """Trust the folder at this path for work no longer; its rules are told as before. Gives what it was trusted
        by: itself, or a folder that it lies in, which stays trusted, while this one is noted as declined. None: it was
        not."""
        place = os.path.realpath(path)
        with self._locked():
            trusted = self._load()
            own = next((one for one in trusted.folders if one.place == place and one.is_for_work), None)
            granting = own or _granting_folder(trusted, place)
            if own is not None:  # also where the folder is gone, or another one by now
                trusted = replace(
                    trusted, folders=_with_folder(trusted.folders, place, replace(own, is_for_work=False))
                )
            if granting is not None:
                self._write(self._without_grants_from_above(trusted, place))
        return granting

    def _without_grants_from_above(self, trusted: _TrustFile, place: str) -> _TrustFile:
        """With a no for a folder that others would still trust for work."""
        if _granting_folder(trusted, place) is None:
            return trusted
        return replace(trusted, declined=_with_folder(trusted.declined, place, _folder_at(place, self._clock.now_ms())))

    def decline_work(self, path: str) -> None:
        """Note that the person was asked whether they trust this folder for work, and said no."""
        folder = _folder_at(path, self._clock.now_ms())
        with self._locked():
            trusted = self._load()
            self._write(replace(trusted, declined=_with_folder(trusted.declined, folder.place, folder)))

    def is_work_declined(self, path: str) -> bool:
        """Whether the person said no when they were asked about this very folder."""
        place = os.path.realpath(path)
        return any(known.place == place and _is_there(known) for known in self._load().declined)

    def revoke_folder(self, path: str) -> bool:
        """Trust the folder at this path no longer. False: it was not trusted."""
        place = os.path.realpath(path)
        with self._locked():
            trusted = self._load()
            known = next((one for one in trusted.folders if one.place == place), None)
            if known is None:
                return False
            changed = replace(trusted, folders=_with_folder(trusted.folders, place))
            self._write(self._without_grants_from_above(changed, place) if known.is_for_work else changed)
        return True

    def shown(self) -> tuple[ShownFile, ...]:
        return self._load().shown

    def shown_files(self) -> tuple[str, ...]:
        """The real paths of the files that commands may see. In a folder that took the place of another nothing is."""
        return tuple(os.path.join(file.folder.place, file.path) for file in self.shown() if _is_there(file.folder))

    def show_file(self, folder: str, path: str) -> ShownFile:
        """Let commands see a file of a folder from now on, whatever is in it then. `path`: from the folder on."""
        shown = ShownFile(folder=_folder_at(folder, self._clock.now_ms()), path=_path_beneath(folder, path))
        if not os.path.isfile(os.path.join(shown.folder.place, shown.path)):
            raise InvalidInput(f"{path} is no file of {folder}", "name one that is there, by its path in the folder")
        self._change_shown(lambda known: not _is_same_file(known, shown), shown)
        return shown

    def hide_file(self, folder: str, path: str) -> bool:
        """Let commands see it no longer. False: they did not."""
        place = (os.path.realpath(folder), _path_beneath(folder, path))
        was_shown = any((known.folder.place, known.path) == place for known in self.shown())
        self._change_shown(lambda known: (known.folder.place, known.path) != place)
        return was_shown

    def _change_shown(self, is_kept: Callable[[ShownFile], bool], *more: ShownFile) -> None:
        with self._locked():
            trusted = self._load()
            shown = sorted([*filter(is_kept, trusted.shown), *more], key=lambda known: (known.folder.place, known.path))
            self._write(replace(trusted, shown=tuple(shown)))

    def trust_of(self, ledger: Store) -> StoredTrust:
        """What this person remembers of an open ledger."""
        return StoredTrust(self, ledger)

    def _load(self) -> _TrustFile:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return _TrustFile()
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise InvalidInput(f"{self.path} is a link, so it is not read", "put the file itself there") from error
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid not in (os.geteuid(), 0) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise InvalidInput(
                    f"{self.path} could have been written by others",
                    "look through it, then let nobody else write to it",
                )
            try:
                return decode(file.read(), type=_TrustFile)
            except (DecodeError, ValidationError) as error:
                raise InvalidInput(
                    f"{self.path} cannot be read: {error}", "mend it, or move it away and trust your ledgers again"
                ) from error

    def _change(self, change: Callable[[Sequence[TrustedLedger]], Iterator[TrustedLedger]]) -> None:
        with self._locked():
            trusted = self._load()
            ledgers = tuple(sorted(change(trusted.ledgers), key=lambda known: known.identity.place))
            self._write(replace(trusted, ledgers=ledgers))

    def _write(self, trusted: _TrustFile) -> None:
        with new_file(self.path) as file:
            file.write(format(encode(trusted), indent=2) + b"\n")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time changes the file."""
        make_folder(self.path.parent)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self.path.with_name(f"{self.path.name}.lock"), flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


class StoredTrust:
    """One open ledger in the eyes of the person whose trust store this is."""

    def __init__(self, store: TrustStore, ledger: Store) -> None:
        self._store, self._ledger, self._path = store, ledger, ledger.path
        self.identity = identity_of(ledger.path, ledger.replica)
        self.ask: Callable[[str], bool] | None = None
        """Asks the person whether they trust the ledger, where one is there; the text says what would be done."""

    @property
    def is_trusted(self) -> bool:
        return self._known is not None

    @property
    def how(self) -> str | None:
        """Why it is trusted: made, cloned, copied, recovered or allowed. None: it is not."""
        return self._known.how if self._known is not None else None

    @property
    def _known(self) -> TrustedLedger | None:
        """What is noted of this very ledger; one that was noted before anybody opened it is known by its file."""
        known = self._store.find(self.identity.place)
        if known is None or known.identity not in (self.identity, _unnamed(self.identity)):
            return None
        return known if self._holds(known.token) else None

    def _holds(self, token: str | None) -> bool:
        """Whether the ledger that is open has the token that was put into it."""
        if token is None:
            return True
        with self._ledger.read() as txn:
            return txn.sql.one("SELECT 1 FROM local WHERE key = ?", (TOKEN + token,)) is not None

    def note_replica(self, former: str | None) -> None:
        """The ledger was opened. One that goes by another name since this very opening, or that was noted before its
        first one, is noted with the name that it has."""
        known = self._store.find(self.identity.place)
        names = (None,) if former is None else (None, former)
        if known is None or not self._holds(known.token) or self._ledger.read_only:
            return
        if known.identity in [replace(self.identity, replica=name) for name in names]:
            self.allow(known.how)

    @property
    def doubt(self) -> str:
        """Why a ledger that is not trusted is not."""
        known = self._store.find(self.identity.place)
        if known is not None:
            return RENAMED if known.identity.replica != self.identity.replica else REPLACED
        return STRANGE if self.identity.owner not in (None, os.geteuid()) else UNKNOWN

    def ensure(self, action: str) -> None:
        if self.is_trusted:
            return
        if self.ask is None or not self.ask(action):
            raise NotTrusted(self._path, action, self.doubt, Action.TRUST_LEDGER.of(ledger=self._path))
        self.allow()

    def allow(self, how: str = ALLOWED) -> None:
        """Trust the ledger from now on. Its token is new; one that cannot be written to goes without."""
        if self._ledger.read_only:
            self._store.allow(self.identity, how)
            return
        known, token = self._store.find(self.identity.place), self._store.draw_token()

        def put(txn: WriteTxn) -> None:
            if known is not None and known.token is not None:
                txn.sql.run("DELETE FROM local WHERE key = ?", (TOKEN + known.token,))
            txn.sql.run(NOTE, (TOKEN + token, ""))

        self._ledger.write(put)
        self._store.allow(self.identity, how, token)

    def pinned_replica(self, address: str) -> str | None:
        return self._known.replicas.get(address) if self._known is not None else None

    def pin_replica(self, address: str, replica: str) -> None:
        self._store.pin(self.identity, address, replica)

    def unpin_replica(self, address: str) -> None:
        self._store.pin(self.identity, address, None)
