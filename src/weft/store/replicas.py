"""Who writes a ledger and whose word counts: the names that a ledger goes by, the process that
holds a lease, which events count here, and which ledgers and folders a person made, cloned or
allowed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import orjson
from msgspec import DecodeError, Struct, ValidationError, field
from msgspec.json import decode, encode, format
from msgspec.structs import replace

from weft.kernel.clock import Clock, RandomBytes, SystemClock, system_random
from weft.kernel.errors import Action, InvalidInput, NotTrusted
from weft.kernel.events import event_id
from weft.kernel.typed_names import Site
from weft.store.fact_log import DECLINED, FORMER, REFUSED_EVENT, REFUSED_NAME, TAKEN, local_value
from weft.store.port import ReadTxn, Store, WriteTxn
from weft.store.private_files import make_folder, new_file
from weft.store.sql import Question, Sql

# --- Who holds a lease: this process, named so that another one on the same machine can tell whether it still lives.

_PROC = Path("/proc")
NOBODY = "nobody"
"""Who holds what was held in the origin of a copy."""


def process_owner(pid: int | None = None) -> str:
    """`machine/pid/start`, of this process if no other is named: unique until the machine restarts."""
    pid = pid or os.getpid()
    return f"{_machine_name()}/{pid}/{_start_time(pid) or ''}"


def owner_words(owner: str) -> str:
    """An owner as a person knows it; as it is where it names no process of a machine."""
    machine, pid, _ = owner.rsplit("/", 2) if owner.count("/") >= 2 else ("", "", "")
    host = machine.split(".", 2)[-1]
    return f"process {pid} of {host}" if host and pid.isdigit() else owner


def is_dead(owner: str) -> bool:
    """True only where it is certain; an owner elsewhere, or where the system does not tell, may be alive."""
    if owner == NOBODY:
        return True
    machine, pid, started = owner.rsplit("/", 2) if owner.count("/") >= 2 else ("", "", "")
    if not machine or machine != _machine_name() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    now = _start_time(int(pid))
    return now is not None and now != started


def process_of(owner: str) -> int | None:
    """The number of a process that lives here and is certainly this one."""
    machine, pid, started = owner.rsplit("/", 2) if owner.count("/") >= 2 else ("", "", "")
    is_here = bool(machine and started) and machine == _machine_name() and pid.isdigit()
    return int(pid) if is_here and _start_time(int(pid)) == started else None


def was_before_boot(owner: str) -> bool:
    """Whether an owner ran on a machine of this one's name, before it was last started. Machines may share a name: this
    tells why somebody is gone, and never that somebody is."""
    boot, _, rest = owner.partition(".")
    own_boot, _, own_rest = _machine_name().partition(".")
    host, own_host = rest.partition("/")[0].partition(".")[2], own_rest.partition(".")[2]
    return bool(own_host) and host == own_host and boot != own_boot


@lru_cache(maxsize=1)
def _machine_name() -> str:
    """This boot, this process namespace and the machine's name; empty where the system has no such names."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}.{(_PROC / 'self/ns/pid').stat().st_ino}.{os.uname().nodename.replace('/', '')}"
    except OSError:
        return ""


def _start_time(pid: int) -> str | None:
    """The kernel's start time of a process, empty for the mere remains of one; None where it does not tell."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "" if fields[0] in ("Z", "X") else fields[19]


# --- The names a ledger goes by.

COPIED_NOTE = "copied"
COPYING = "copying"
"""Local state: whose copy this is going to be, while it is not finished."""
ACCEPTED = "accepted:"
"""Local state: a row per name whose promises were given up here, with the last event that was known of them."""
COPY_END = "copy_end"
"""Local state: the last event that this ledger shares with the one that it is a copy of. What was asked up to there is
the origin's to answer."""
NOTE = "INSERT INTO local(key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"


def is_copy(sql: Sql) -> bool:
    return sql.fetch_row("SELECT 1 FROM local WHERE key = ?", (COPIED_NOTE,)) is not None


def is_unfinished(sql: Sql) -> bool:
    """Whether facts of another ledger are still being copied here, or the copying was cut short."""
    return sql.fetch_row("SELECT 1 FROM local WHERE key = ?", (COPYING,)) is not None


def take_new_name(sql: Sql, was: str, new: str, end: int) -> None:
    """Go on as `new` from event `end` on. Whoever held a session or an agent in the origin does not write here."""
    sql.run("UPDATE local SET value = ? WHERE key = 'replica'", (new,))
    sql.run(NOTE, (FORMER + was, str(end)))
    _forget_refusals(sql)
    if is_copy(sql):
        sql.run("DELETE FROM local WHERE key = ?", (COPIED_NOTE,))
        sql.run(NOTE, (COPY_END, str(end)))
        sql.run("UPDATE lease SET owner = ? WHERE purpose IS NOT NULL", (NOBODY,))


def _forget_refusals(sql: Sql) -> None:
    """What was refused under the former name may have a place under the new one: peers are read from the beginning."""
    if sql.fetch_row("SELECT 1 FROM local WHERE key LIKE ? LIMIT 1", (f"{REFUSED_EVENT}%",)) is not None:
        for begin in (REFUSED_EVENT, REFUSED_NAME):
            sql.run("DELETE FROM local WHERE key LIKE ?", (f"{begin}%",))
        sql.run("DELETE FROM peer")


def accept_loss(sql: Sql, promised: Mapping[str, int]) -> None:
    """What these names acknowledged, each up to such an event, is given up."""
    for replica, n in promised.items():
        sql.run(NOTE, (ACCEPTED + replica, str(n)))


def accepted_loss(sql: Sql, replica: str) -> int:
    """Up to which event the promises of a name were given up."""
    return _local_number(sql, ACCEPTED + replica)


def last_event_as(sql: Sql, replica: str) -> int:
    """The last event of this log that was acknowledged under a former name."""
    return _local_number(sql, FORMER + replica)


def last_copied_event(sql: Sql) -> int:
    """The last event that this ledger shares with the one that it is a copy of; 0 where it is none."""
    return _local_number(sql, COPY_END)


OWN_NAMES: Question = (
    "SELECT key, value FROM local WHERE key = 'replica' OR key LIKE ? ORDER BY key",
    (f"{FORMER}%",),
)
"""What `own_names` asks."""


def own_names(sql: Sql) -> dict[str, int | None]:
    """The name that this ledger goes by, then those that it gave up, each with the last event of this log that was
    acknowledged under it; None: it still goes by that name."""
    rows = sql.fetch_rows(*OWN_NAMES)
    names_in_use: dict[str, int | None] = {str(value): None for key, value in rows if key == "replica"}
    return names_in_use | {name: int(value) for key, value in rows if (name := str(key).removeprefix(FORMER)) != key}


class OwnEvents:
    """Which events this ledger wrote, under its name or a former one."""

    def __init__(self, sql: Sql) -> None:
        self._names = own_names(sql)

    def has(self, n: int, replica: str | None) -> bool:
        if replica not in self._names:
            return False
        last = self._names[replica]
        return last is None or n <= last

    def condition(self, table: str) -> tuple[str, tuple[str | int, ...]]:
        """The same as a condition on rows of a table, by its name in the query, that has the columns `n` and `replica`;
        with its values."""
        conditions: list[str] = []
        values: list[str | int] = []
        for name, last in self._names.items():
            if last is None:
                conditions.append(f"{table}.replica = ?")
                values.append(name)
            else:
                conditions.append(f"{table}.replica = ? AND {table}.n <= ?")
                values += [name, last]
        return f"({' OR '.join(conditions)})", tuple(values)


def _local_number(sql: Sql, key: str) -> int:
    row = sql.fetch_row("SELECT value FROM local WHERE key = ?", (key,))
    return int(row[0]) if row else 0


# --- Which events count here: those that this ledger wrote, and those of others that somebody here took over.


class AuthoredEvent(Struct, frozen=True):
    """An event, who wrote it, and what was decided about it here."""

    n: int
    id: str
    fields: dict[str, Any]
    is_own: bool
    is_taken: bool = False
    is_refused: bool = False

    @property
    def counts(self) -> bool:
        return self.is_own or self.is_taken

    @property
    def replica(self) -> str | None:
        """The replica that wrote it, as it says; None where it says nothing."""
        replica = self.fields.get("replica")
        return replica if isinstance(replica, str) else None


def authored_event(txn: ReadTxn, n: int) -> AuthoredEvent | None:
    """The event of this number; None where it is being written right now."""
    line = txn.facts.line(n)
    if line is None:
        return None
    fields = orjson.loads(line)
    id, own = event_id(line), is_written_here(txn.sql, n, fields.get("replica"))
    if own:
        return AuthoredEvent(n, id, fields, True)
    return AuthoredEvent(n, id, fields, False, _is_noted(txn.sql, TAKEN + id), _is_noted(txn.sql, DECLINED + id))


def counts(txn: ReadTxn, n: int) -> bool:
    """Whether the event of this number decides anything here. One that is being written right now does."""
    event = authored_event(txn, n)
    return event is None or event.counts


def is_written_here(sql: Sql, n: int, replica: object) -> bool:
    """Whether this ledger wrote event `n`, under its name or a former one."""
    if not isinstance(replica, str):
        return False
    return replica == local_value(sql, "replica") or last_event_as(sql, replica) >= n


def _is_noted(sql: Sql, key: str) -> bool:
    return sql.fetch_row("SELECT 1 FROM local WHERE key = ?", (key,)) is not None


def note_taken(sql: Sql, id: str, at_ms: int) -> None:
    """From now on this event counts here."""
    release(sql, id)
    sql.run(NOTE, (TAKEN + id, str(at_ms)))


def note_refused(sql: Sql, id: str, at_ms: int) -> None:
    """This event does not count, and is not asked about again."""
    release(sql, id)
    sql.run(NOTE, (DECLINED + id, str(at_ms)))


def release(sql: Sql, id: str) -> None:
    """What was decided about this event is forgotten: it waits again."""
    sql.run("DELETE FROM local WHERE key IN (?, ?)", (TAKEN + id, DECLINED + id))


def decided_events(sql: Sql) -> list[tuple[str, bool]]:
    """The ids of events that somebody here took over (True) or refused (False)."""
    rows = sql.fetch_rows(
        "SELECT key FROM local WHERE key LIKE ? OR key LIKE ? ORDER BY key", (f"{TAKEN}%", f"{DECLINED}%")
    )
    return [(key.partition(":")[2], key.startswith(TAKEN)) for (key,) in rows]


# --- Which ledgers a person made, cloned or allowed, and which folders: one small file of their own, outside of every
# ledger.

MADE, CLONED, COPIED, RECOVERED, ALLOWED = "made", "cloned", "copied", "recovered", "allowed"
TOKEN = "trust:"
"""Local state: a row per person who trusts the ledger, with the token that was drawn for them."""
UNKNOWN = (
    "you did not allow it, and did not make it here: a program made it without weft.user_trust(), or somebody else"
)
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
    copy_of: str | None = None
    """The folder that Weft copied it from, by whose trust it is trusted: revoked with it."""


class ShownFile(Struct, frozen=True, kw_only=True):
    """A file that commonly holds secrets, in a folder that this person works in: commands in the sandbox may see it."""

    folder: TrustedFolder
    path: str
    """From the folder on."""


class SeenRules(Struct, frozen=True, kw_only=True):
    """The rules of a folder as the person saw them when they trusted them. Other words that stand there are nobody's:
    an agent may have written them."""

    folder: TrustedFolder
    text: str | None = None
    """None: there were none."""
    refused: str | None = None
    """The digest of later ones that the person said no to, empty for none: they are not asked about these again."""

    @property
    def digest(self) -> str:
        return rules_digest(self.text)


def rules_digest(text: str | None) -> str:
    """Of the bytes of rules; empty where there are none."""
    return "" if text is None else sha256(text.encode()).hexdigest()


class _TrustFile(Struct, frozen=True, kw_only=True):
    version: int = 1
    ledgers: tuple[TrustedLedger, ...] = ()
    folders: tuple[TrustedFolder, ...] = ()
    declined: tuple[TrustedFolder, ...] = ()
    """Those that the person does not trust for work, by an answer or by revoking it: they are not asked again, and what
    lies in one is trusted no more by a folder that it lies in itself."""
    shown: tuple[ShownFile, ...] = ()
    rules: tuple[SeenRules, ...] = ()


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


def _is_same_folder(folder: TrustedFolder, other: TrustedFolder) -> bool:
    return (folder.place, folder.owner, folder.inode) == (other.place, other.owner, other.inode)


def _with_folder(
    folders: Sequence[TrustedFolder], place: str, folder: TrustedFolder | None = None
) -> tuple[TrustedFolder, ...]:
    """The folders, sorted, with this one at its place, or with none there."""
    others = [trusted for trusted in folders if trusted.place != place]
    return tuple(sorted([*others, *([] if folder is None else [folder])], key=lambda trusted: trusted.place))


def _is_copy_from(folder: TrustedFolder, place: str) -> bool:
    """Whether Weft copied it from the folder at a place, or from one in it."""
    return folder.copy_of is not None and _is_beneath(folder.copy_of, place)


def _without_work_in_copies(folders: Sequence[TrustedFolder], place: str) -> tuple[TrustedFolder, ...]:
    """The folders, where the copies of what is at a place are trusted for work no longer."""
    return tuple(replace(folder, is_for_work=False) if _is_copy_from(folder, place) else folder for folder in folders)


def _is_beneath(place: str, folder: str) -> bool:
    return place == folder or place.startswith(f"{folder.rstrip('/')}/")


def _path_beneath(folder: str, path: str) -> str:
    """A path from a folder on, without links on its way. Raises InvalidInput where it leads out."""
    place = os.path.realpath(folder)
    real = os.path.realpath(os.path.join(place, path))
    if not real.startswith(f"{place.rstrip('/')}/"):
        raise InvalidInput(f"{path} does not lie in {folder}", "name a file by its path in the folder")
    return os.path.relpath(real, place)


def _is_same_file(file: ShownFile, other: ShownFile) -> bool:
    return (file.folder.place, file.path) == (other.folder.place, other.path)


def _without_replica(identity: LedgerIdentity) -> LedgerIdentity:
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
    granted = [answer for answer in trusted.folders if answer.is_for_work and answer.owner == owner]
    answers = [
        answer for answer in (*trusted.declined, *granted) if _is_beneath(place, answer.place) and _is_there(answer)
    ]
    nearest = max(answers, key=lambda answer: len(answer.place), default=None)
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
        trusted = self.find(identity.place)
        return trusted is not None and _without_replica(trusted.identity) == identity

    def ledgers(self) -> tuple[TrustedLedger, ...]:
        return self._load_file().ledgers

    def find(self, place: str) -> TrustedLedger | None:
        return next((trusted for trusted in self.ledgers() if trusted.identity.place == place), None)

    def allow(self, identity: LedgerIdentity, how: str = ALLOWED, token: str | None = None) -> None:
        """Trust this ledger from now on, in place of whatever was trusted at its place."""

        def change(ledgers: Sequence[TrustedLedger]) -> Iterator[TrustedLedger]:
            yield from (trusted for trusted in ledgers if trusted.identity.place != identity.place)
            same = (
                trusted.replicas
                for trusted in ledgers
                if _without_replica(trusted.identity) == _without_replica(identity)
            )
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
        self._change(lambda ledgers: (trusted for trusted in ledgers if trusted.identity.place != place))
        return was_known

    def pin(self, identity: LedgerIdentity, address: str, replica: str | None) -> None:
        """Note which replica answers at an address, or with None forget it."""

        def pinned(trusted: TrustedLedger) -> TrustedLedger:
            others = {name: value for name, value in trusted.replicas.items() if name != address}
            return replace(trusted, replicas=others if replica is None else {**others, address: replica})

        self._change(
            lambda ledgers: (pinned(trusted) if trusted.identity == identity else trusted for trusted in ledgers)
        )

    def folders(self) -> tuple[TrustedFolder, ...]:
        return self._load_file().folders

    def is_folder_trusted(self, path: str) -> bool:
        """Whether the folder at a path is one that was trusted. What belongs to another user now is not."""
        place = os.path.realpath(path)
        return any(folder.place == place and _is_there(folder) for folder in self.folders())

    def allow_folder(self, path: str, *, for_work: bool = False) -> TrustedFolder:
        """Trust this folder from now on, in place of whatever was trusted there. One that is trusted for work stays
        so."""
        if not os.path.isdir(path):
            raise InvalidInput(f"{path} is no folder", "name a folder that is there")
        folder = _folder_at(path, self._clock.now_ms())
        with self._file_locked():
            trusted = self._load_file()
            was_for_work = any(earlier.is_for_work and _is_same_folder(earlier, folder) for earlier in trusted.folders)
            folder = replace(folder, is_for_work=for_work or was_for_work)
            self._write_file(
                replace(
                    trusted,
                    folders=_with_folder(trusted.folders, folder.place, folder),
                    declined=_with_folder(trusted.declined, folder.place) if for_work else trusted.declined,
                )
            )
        return folder

    def seen_rules(self, path: str) -> SeenRules | None:
        """What the person has seen of the rules of this very folder. None: they do not trust it."""
        place, trusted = os.path.realpath(path), self._load_file()
        folder = next((folder for folder in trusted.folders if folder.place == place and _is_there(folder)), None)
        if folder is None:
            return None
        seen = (seen for seen in trusted.rules if _is_same_folder(seen.folder, folder))
        return next(seen, SeenRules(folder=folder))

    def take_rules(self, path: str, text: str | None) -> None:
        """Note that the person saw these rules of a folder that they trust, and that agents are to be told them."""
        self._change_rules(path, lambda seen: replace(seen, text=text, refused=None))

    def refuse_rules(self, path: str, digest: str) -> None:
        """Note that the person said no to the rules of this digest: those that they saw before stay theirs."""
        self._change_rules(path, lambda seen: replace(seen, refused=digest))

    def _change_rules(self, path: str, change: Callable[[SeenRules], SeenRules]) -> None:
        with self._file_locked():
            seen = self.seen_rules(path)
            if seen is not None:
                trusted = self._load_file()
                others = (other for other in trusted.rules if other.folder.place != seen.folder.place)
                rules = sorted([*others, change(seen)], key=lambda known: known.folder.place)
                self._write_file(replace(trusted, rules=tuple(rules)))

    def trust_copy(self, original: str, copy: str) -> bool:
        """Trust a folder that Weft made from another one as that one is trusted: agents are told the rules that the
        person saw there, and work as they do there. A no to work in the original is one to work in the copy. False:
        the original is not trusted, and neither is the copy."""
        with self._file_locked():  # what is revoked meanwhile is not given to the copy
            seen, trusted = self.seen_rules(original), self._load_file()
            is_for_work = _granting_folder(trusted, original) is not None
            made = replace(_folder_at(copy, self._clock.now_ms()), copy_of=os.path.realpath(original))
            was_granted = _granting_folder(trusted, made.place) is not None
            if seen is not None or (is_for_work and not was_granted):
                made = replace(made, is_for_work=is_for_work)
                trusted = replace(trusted, folders=_with_folder(trusted.folders, made.place, made))
            if seen is not None:
                rules = [*(one for one in trusted.rules if one.folder.place != made.place), replace(seen, folder=made)]
                trusted = replace(trusted, rules=tuple(sorted(rules, key=lambda one: one.folder.place)))
            if was_granted and not is_for_work:
                trusted = replace(trusted, declined=_with_folder(trusted.declined, made.place, made))
            self._write_file(trusted)
        return seen is not None or is_for_work

    def is_trusted_for_work(self, path: str) -> bool:
        """Whether a folder is one that was trusted for work, or lies in one. A link in it leads elsewhere, and what
        belongs to another user now is not trusted. It is looked up anew each time: trust may have been revoked."""
        return _granting_folder(self._load_file(), path) is not None

    def revoke_work(self, path: str) -> TrustedFolder | None:
        """Trust the folder at this path for work no longer; its rules are told as before. Gives what it was trusted
        by: itself, or a folder that it lies in, which stays trusted, while this one is noted as declined. None: it was
        not."""
        place = os.path.realpath(path)
        with self._file_locked():
            trusted = self._load_file()
            direct_grant = next(
                (folder for folder in trusted.folders if folder.place == place and folder.is_for_work), None
            )
            granting = direct_grant or _granting_folder(trusted, place)
            if direct_grant is not None:  # also where the folder is gone, or another one by now
                trusted = replace(
                    trusted, folders=_with_folder(trusted.folders, place, replace(direct_grant, is_for_work=False))
                )
            if granting is not None:
                trusted = replace(trusted, folders=_without_work_in_copies(trusted.folders, place))
                self._write_file(self._without_grants_from_above(trusted, place))
        return granting

    def _without_grants_from_above(self, trusted: _TrustFile, place: str) -> _TrustFile:
        """With a no for a folder that others would still trust for work."""
        if _granting_folder(trusted, place) is None:
            return trusted
        return replace(trusted, declined=_with_folder(trusted.declined, place, _folder_at(place, self._clock.now_ms())))

    def decline_work(self, path: str) -> None:
        """Note that the person was asked whether they trust this folder for work, and said no."""
        folder = _folder_at(path, self._clock.now_ms())
        with self._file_locked():
            trusted = self._load_file()
            self._write_file(replace(trusted, declined=_with_folder(trusted.declined, folder.place, folder)))

    def is_work_declined(self, path: str) -> bool:
        """Whether the person said no when they were asked about this very folder."""
        place = os.path.realpath(path)
        return any(declined.place == place and _is_there(declined) for declined in self._load_file().declined)

    def revoke_folder(self, path: str) -> bool:
        """Trust the folder at this path no longer. False: it was not trusted."""
        place = os.path.realpath(path)
        with self._file_locked():
            trusted = self._load_file()
            revoked = next((folder for folder in trusted.folders if folder.place == place), None)
            if revoked is None:
                return False
            others = tuple(folder for folder in trusted.folders if not _is_copy_from(folder, place))
            left = _with_folder(others, place)
            rules = tuple(seen for seen in trusted.rules if seen.folder.place in {folder.place for folder in left})
            changed = replace(trusted, folders=left, rules=rules)
            self._write_file(self._without_grants_from_above(changed, place) if revoked.is_for_work else changed)
        return True

    def shown(self) -> tuple[ShownFile, ...]:
        return self._load_file().shown

    def shown_files(self) -> tuple[str, ...]:
        """The real paths of the files that commands may see. In a folder that took the place of another nothing is."""
        return tuple(os.path.join(file.folder.place, file.path) for file in self.shown() if _is_there(file.folder))

    def show_file(self, folder: str, path: str) -> ShownFile:
        """Let commands see a file of a folder from now on, whatever is in it then. `path`: from the folder on."""
        file = ShownFile(folder=_folder_at(folder, self._clock.now_ms()), path=_path_beneath(folder, path))
        if not os.path.isfile(os.path.join(file.folder.place, file.path)):
            raise InvalidInput(f"{path} is no file of {folder}", "name one that is there, by its path in the folder")
        self._change_shown(lambda earlier: not _is_same_file(earlier, file), file)
        return file

    def hide_file(self, folder: str, path: str) -> bool:
        """Let commands see it no longer. False: they did not."""
        place = (os.path.realpath(folder), _path_beneath(folder, path))
        was_shown = any((file.folder.place, file.path) == place for file in self.shown())
        self._change_shown(lambda file: (file.folder.place, file.path) != place)
        return was_shown

    def _change_shown(self, is_kept: Callable[[ShownFile], bool], *more: ShownFile) -> None:
        with self._file_locked():
            trusted = self._load_file()
            shown = sorted([*filter(is_kept, trusted.shown), *more], key=lambda file: (file.folder.place, file.path))
            self._write_file(replace(trusted, shown=tuple(shown)))

    def trust_of(self, ledger: Store) -> StoredTrust:
        """What this person remembers of an open ledger."""
        return StoredTrust(self, ledger)

    def _load_file(self) -> _TrustFile:
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
        with self._file_locked():
            trusted = self._load_file()
            ledgers = tuple(sorted(change(trusted.ledgers), key=lambda ledger: ledger.identity.place))
            self._write_file(replace(trusted, ledgers=ledgers))

    def _write_file(self, trusted: _TrustFile) -> None:
        with new_file(self.path) as file:
            file.write(format(encode(trusted), indent=2) + b"\n")

    @contextmanager
    def _file_locked(self) -> Iterator[None]:
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
        return self._trusted_ledger is not None

    @property
    def how(self) -> str | None:
        """Why it is trusted: made, cloned, copied, recovered or allowed. None: it is not."""
        return self._trusted_ledger.how if self._trusted_ledger is not None else None

    @property
    def _trusted_ledger(self) -> TrustedLedger | None:
        """What is noted of this very ledger; one that was noted before anybody opened it is known by its file."""
        trusted = self._store.find(self.identity.place)
        if trusted is None or trusted.identity not in (self.identity, _without_replica(self.identity)):
            return None
        return trusted if self._holds_token(trusted.token) else None

    def _holds_token(self, token: str | None) -> bool:
        """Whether the ledger that is open has the token that was put into it."""
        if token is None:
            return True
        with self._ledger.read() as txn:
            return txn.sql.fetch_row("SELECT 1 FROM local WHERE key = ?", (TOKEN + token,)) is not None

    def note_replica(self, former: str | None) -> None:
        """The ledger was opened. One that goes by another name since this very opening, or that was noted before its
        first one, is noted with the name that it has."""
        trusted = self._store.find(self.identity.place)
        names = (None,) if former is None else (None, former)
        if trusted is None or not self._holds_token(trusted.token) or self._ledger.read_only:
            return
        if trusted.identity in [replace(self.identity, replica=name) for name in names]:
            self.allow(trusted.how)

    @property
    def doubt(self) -> str:
        """Why a ledger that is not trusted is not."""
        trusted = self._store.find(self.identity.place)
        if trusted is not None:
            return RENAMED if trusted.identity.replica != self.identity.replica else REPLACED
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
        earlier, token = self._store.find(self.identity.place), self._store.draw_token()

        def put_token(txn: WriteTxn) -> None:
            if earlier is not None and earlier.token is not None:
                txn.sql.run("DELETE FROM local WHERE key = ?", (TOKEN + earlier.token,))
            txn.sql.run(NOTE, (TOKEN + token, ""))

        self._ledger.write(put_token)
        self._store.allow(self.identity, how, token)

    def pinned_replica(self, address: str) -> str | None:
        return self._trusted_ledger.replicas.get(address) if self._trusted_ledger is not None else None

    def pin_replica(self, address: str, replica: str) -> None:
        self._store.pin(self.identity, address, replica)

    def unpin_replica(self, address: str) -> None:
        self._store.pin(self.identity, address, None)
