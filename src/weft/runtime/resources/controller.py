"""Carries out what is wanted of resources, and records what came of it.

A job of the broker does so for wishes that whoever made them did not live to see done. What Weft
made and nobody owns any more is removed. What a ledger keeps of its resources lies in a folder
beside it: trees, copies of files, archives.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from weft.exchange.sync.commands import remotes
from weft.kernel.enums import ResourceCapability, ResourceKind, ResourceLiveness, RestoreOutcome, SnapshotState
from weft.kernel.errors import (
    Damaged,
    EngineUnreachable,
    FilesElsewhere,
    NotApplicable,
    NotFound,
    StoreError,
    StoreFailed,
    Unsupported,
    WeftError,
    error_code,
    error_text,
)
from weft.ledger.api import (
    BusyResource,
    KeptReference,
    Lease,
    Ledger,
    NewResource,
    NewSnapshot,
    Owner,
    Resource,
    ResourceFailure,
    ResourceLog,
    ResourceRestore,
    Snapshot,
)
from weft.runtime.folder_snapshots.file_store import FileStore
from weft.runtime.ledger_port import Executor, HoldLost, ResourceHold, ensure_held, holding
from weft.runtime.resources import local_drivers
from weft.runtime.resources.docker_drivers import ARCHIVE
from weft.runtime.resources.drivers import (
    ChoosingDriver,
    ClaimingDriver,
    ClaimKind,
    DescribedPart,
    Driver,
    Drivers,
    HandlingDriver,
    PlaceClaim,
    PlaceClaims,
    PlaceDescription,
    RecognisingDriver,
    RestoredPlace,
    StoringDriver,
)
from weft.runtime.resources.local_drivers import MARK, DirectoryDriver, new_folder
from weft.store.private_files import make_folder, new_file, open_aside, put_in_place

# --- What a ledger keeps of its resources, in a folder beside it: trees of directories, copies of files, archives.

TREES, COPIES, ARCHIVES = "trees", "copies", "archives"
_LEFT_OUT = "left-out"
_MOST_ORIGIN_BYTES = 4096
_CHUNK_BYTES = 1024 * 1024
_COPY_NAME, _ARCHIVE_NAME = re.compile(r"([0-9a-f]{64})\.[0-7]{1,4}"), re.compile(r"([0-9a-f]{64})\.tar")
_NAMES = {COPIES: _COPY_NAME, ARCHIVES: _ARCHIVE_NAME}


class CarriedFiles(Struct, frozen=True, kw_only=True):
    """What was brought from one folder to another."""

    snapshots: int = 0
    """Of directories."""
    files: int = 0
    """Copies of files, and archives."""
    damaged: tuple[str, ...] = ()
    """How what was left out is called, since it is not whole."""


class FileProblem(Struct, frozen=True):
    """That what a snapshot holds is missing, or not what it was."""

    reference: KeptReference
    why: str


class KeptFiles:
    """The folder of one ledger. Nothing is made by looking at it."""

    def __init__(self, folder: Path, *, path_folders: str = "") -> None:
        """`path_folders` are more folders in which git may lie, as PATH names them."""
        self.folder = folder
        self.trees = FileStore(folder / TREES, path_folders=path_folders)

    @property
    def is_there(self) -> bool:
        return self.trees.is_made or any(True for kind in _NAMES for _ in self._files_of_kind(kind))

    def hold(self) -> AbstractContextManager[None]:
        """No tree is removed meanwhile."""
        return self.trees.hold() if self.trees.is_made else nullcontext()

    def copy_to(self, other: KeptFiles) -> CarriedFiles:
        """Add all that the other folder lacks. What is not whole here is left out and named."""
        trees = self.trees.copy_to(other.trees)
        files, damaged = 0, list(trees.damaged)
        for kind in _NAMES:
            for path in self._files_of_kind(kind):
                if (other.folder / kind / path.name).exists():
                    continue
                try:
                    files += _copy_file(path, other.folder / kind / path.name)
                except Damaged:
                    damaged.append(path.name)
        if other.origin is not None:
            (other.folder / _LEFT_OUT).unlink()
        return CarriedFiles(snapshots=trees.copied, files=files, damaged=tuple(damaged))

    def leave_out(self, origin: str) -> None:
        """Note that the files were left where they are, beside the ledger at `origin`."""
        make_folder(self.folder)
        with new_file(self.folder / _LEFT_OUT) as file:
            file.write(origin.encode()[:_MOST_ORIGIN_BYTES])

    @property
    def origin(self) -> str | None:
        """The ledger beside which the files lie that were left out of this copy of it."""
        try:
            with (self.folder / _LEFT_OUT).open("rb") as file:
                return file.read(_MOST_ORIGIN_BYTES).decode(errors="replace")
        except FileNotFoundError:
            return None

    def absent(self, references: Iterable[KeptReference]) -> list[KeptReference]:
        """Those of which nothing is here. What lies in a container engine is not looked for."""
        trees = self.trees.ids() if self.trees.is_made else set()
        return [one for one in references if not self._has_reference(one, trees)]

    def _has_reference(self, reference: KeptReference, trees: set[str]) -> bool:
        if reference.kind == local_drivers.TREE_REFERENCE:
            return reference.id in trees
        path = self._path_of(reference)
        return path is None or path.is_file()

    def problems(self, references: Iterable[KeptReference]) -> Iterator[FileProblem]:
        """What is missing, or not what it was. Every byte is read once."""
        wanted = list(references)
        absent = self.absent(wanted)
        yield from (FileProblem(one, "it is not in the store of files") for one in absent)
        missing = {(one.kind, one.id) for one in absent}
        present = {(one.kind, one.id): one for one in wanted if (one.kind, one.id) not in missing}
        trees = {id: one for (kind, id), one in present.items() if kind == local_drivers.TREE_REFERENCE}
        if trees:
            for id, why in self.trees.damaged(trees):
                yield FileProblem(trees[id], "; ".join(why[:3]) + (" and more" if len(why) > 3 else ""))
        for one in present.values():
            path = self._path_of(one)
            if path is not None and _file_digest(path) != path.name[:64]:
                yield FileProblem(one, f"{path} holds other bytes than were kept")

    def unused(self, references: Iterable[KeptReference]) -> list[str]:
        """What is kept here and named by none of these: what somebody left who died before it was recorded, or after it
        was to be thrown away."""
        used, trees = self._names_of(references)
        names = [name for name in (self.trees.ids() if self.trees.is_made else ()) if name not in trees]
        return names + [path.name for kind in _NAMES for path in self._files_of_kind(kind) if path not in used]

    def remove_unused(self, references: Callable[[], Sequence[KeptReference]]) -> int:
        """Remove all that none of these name, with every byte that only it has; how much that was. They are asked for
        when nobody else uses the trees."""
        removed = 0
        if self.trees.is_made:
            removed += self.trees.prune(lambda: self._names_of(references())[1])
        used, _ = self._names_of(references())
        for path in [path for kind in _NAMES for path in self._files_of_kind(kind) if path not in used]:
            path.unlink(missing_ok=True)
            removed += 1
        return removed

    def unfinished(self) -> int:
        """How many restores to a new place, and removals, were begun and not ended."""
        return sum(len(list((self.folder / kind / "restoring").glob("*.json"))) for kind in (TREES, COPIES))

    def size_bytes(self) -> int:
        """How much room all of it takes."""
        total = 0
        for folder, _, names in os.walk(self.folder):
            for name in names:
                with suppress(FileNotFoundError):
                    total += os.lstat(os.path.join(folder, name)).st_size
        return total

    def _names_of(self, references: Iterable[KeptReference]) -> tuple[set[Path], set[str]]:
        listed = list(references)
        paths = {path for one in listed if (path := self._path_of(one)) is not None}
        return paths, {one.id for one in listed if one.kind == local_drivers.TREE_REFERENCE}

    def _path_of(self, reference: KeptReference) -> Path | None:
        """Of what is kept as a file of its own; None for all else, also for what no file is called like."""
        if reference.kind == local_drivers.COPY_REFERENCE:
            name = reference.id.replace(":", ".", 1)
            return self.folder / COPIES / name if _COPY_NAME.fullmatch(name) else None
        name = f"{reference.id}.tar"
        is_archive = reference.kind == ARCHIVE and _ARCHIVE_NAME.fullmatch(name)
        return self.folder / ARCHIVES / name if is_archive else None

    def _files_of_kind(self, kind: str) -> Iterator[Path]:
        """The files of one kind that are whole: what is being written is called otherwise."""
        try:
            names = sorted(os.listdir(self.folder / kind))
        except FileNotFoundError:
            return
        for name in names:
            path = self.folder / kind / name
            if _NAMES[kind].fullmatch(name) and path.is_file() and not path.is_symlink():
                yield path


def _copy_file(path: Path, target: Path) -> int:
    """How many files were copied: none, where it is removed meanwhile. Raises Damaged."""
    aside, hashed = target.with_name(f"{target.name}.partial"), hashlib.sha256()
    try:
        make_folder(target.parent)
        with path.open("rb") as source, open_aside(aside) as copy:
            while chunk := source.read(_CHUNK_BYTES):
                hashed.update(chunk)
                copy.write(chunk)
        if hashed.hexdigest() != path.name[:64]:
            raise Damaged(f"{path} holds other bytes than were kept", "take it from a backup")
        put_in_place(aside, target)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StoreFailed(f"{error.filename or target}: {error.strerror}") from None
    finally:
        with suppress(OSError):  # an error that is on its way says more; the next attempt removes it
            aside.unlink()
    return 1


def _file_digest(path: Path) -> str:
    hashed = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            hashed.update(chunk)
    return hashed.hexdigest()


# --- Says where the files of a snapshot are that this ledger only knows of.

_THERE = "check them out there, or copy that ledger with its files"


def files_elsewhere(ledger: Ledger, kept: Path | None, snapshot: Snapshot) -> FilesElsewhere:
    """The error for a snapshot whose files are not here. `kept` is the folder in which this ledger's own lie."""
    origin = None if kept is None else KeptFiles(kept).origin
    if origin is not None:
        return FilesElsewhere(snapshot.id, f"they were left out of this copy of {origin}", _THERE)
    replica = ResourceLog(ledger).replica_of(snapshot.resource)
    if replica is None:
        return FilesElsewhere(
            snapshot.id,
            "the folder of kept files beside this ledger does not have them",
            "bring that folder back from a backup",
        )
    return FilesElsewhere(snapshot.id, f"{_ledger_of(ledger, replica)} has them", _THERE)


def _ledger_of(ledger: Ledger, replica: str) -> str:
    """Another ledger as its remote, for whoever may know those; else by the end of its replica id."""
    for remote in remotes(ledger) if ledger.authority.is_unlimited else ():
        if ledger.trust.pinned_replica(remote.address) == replica:
            return f"the ledger at {remote.address} (remote {remote.name})"
    return f"the ledger …{replica[-8:]}"


# --- Removes what Weft made and nobody owns any more.


class DiscardedResource(Struct, frozen=True, kw_only=True):
    """A resource that nobody owns any more."""

    resource: Resource
    why_left: str | None = None
    """Why what it is stays where it is; None: it was removed."""


class Removals:
    """Removes what drivers made; `keep` takes a snapshot."""

    def __init__(self, drivers: Drivers, keep: Callable[[Resource], Snapshot]) -> None:
        self._drivers, self._take_and_record = drivers, keep

    def begin(self, resource: Resource) -> str | None:
        """Keep what is about to be removed, and note that it is. Why it is left where it is, if it is; then nothing was
        done. Raises NotApplicable where it cannot be kept."""
        if not resource.is_made:
            return "Weft did not make it"
        self._drivers.ensure_here(resource)
        if (why := self.why_left(resource)) is not None:
            return why
        driver = self._drivers.of(resource.kind)
        if resource.can(ResourceCapability.SNAPSHOT) and driver.probe(resource.place) is ResourceLiveness.ALIVE:
            kept = self._take_and_record(resource)
            if kept.state is not SnapshotState.OK:
                raise NotApplicable(f"{resource.place} cannot be kept before it is removed: {kept.error}")
            if isinstance(driver, RecognisingDriver) and (why := driver.why_not_whole(resource, kept)) is not None:
                return why
        if (claims := _claims_of(driver)) is not None:
            claims.put(PlaceClaim(key=resource.id, kind=ClaimKind.REMOVAL, place=resource.place))
        return None

    def cancel(self, resource: Resource) -> None:
        """It is not removed after all."""
        if (claims := _claims_of(self._drivers.of(resource.kind))) is not None:
            claims.drop(resource.id)

    def finish(self, resource: Resource) -> None:
        """Remove it, now that nobody owns it. Raises WeftError where it cannot be; the note stays then."""
        if self.why_left(resource) is None:
            self._drivers.of(resource.kind).remove(resource)
        self.cancel(resource)

    def why_left(self, resource: Resource) -> str | None:
        """Why what is at the place of something that Weft made is not removed."""
        driver = self._drivers.of(resource.kind)
        return driver.why_left(resource) if isinstance(driver, RecognisingDriver) else None


def _claims_of(driver: Driver) -> PlaceClaims | None:
    return driver.claims if isinstance(driver, ClaimingDriver) else None


# --- What drivers tell of resources, recorded: the resource itself, its parts and what is seen where, its handle.


class RecordedDescriptions:
    """Writes descriptions into one ledger."""

    def __init__(self, ledger: Ledger, log: ResourceLog, drivers: Drivers, removals: Removals) -> None:
        self._ledger, self._log, self._drivers, self._removals = ledger, log, drivers, removals

    def declare(self, kind: ResourceKind, found: PlaceDescription, name: str | None, session: str | None) -> Resource:
        """The resource alone, new or described anew; `complete` adds the rest."""
        machine = self._drivers.machine_of(kind)
        new = NewResource(
            name=name or found.name,
            kind=kind,
            place=found.place,
            capabilities=found.capabilities,
            imperative=found.imperative,
            session=session,
            metadata=found.metadata,
            machine=machine,
        )
        known = self._log.find_at(kind, found.place, machine)
        return self._log.declare(new) if known is None else self._described_anew(known, new, name)

    def complete(self, resource: Resource, found: PlaceDescription, session: str | None) -> None:
        """Its parts, and last the handle: one without a handle may lack parts, too."""
        self.note_parts(resource, found, session)
        handle = found.handle
        if handle is not None:
            self._log.open_handle(resource.id, handle.provider, handle.provider_id, capabilities=handle.capabilities)

    def _described_anew(self, known: Resource, new: NewResource, name: str | None) -> Resource:
        is_made = known.is_made and self._removals.why_left(known) is None
        mark = known.metadata.get(MARK) if is_made and isinstance(known.metadata, dict) else None
        again = replace(
            new, name=name or known.name, is_made=is_made, metadata=with_mark(new.metadata, mark), session=None
        )
        owner = None if new.session is None else self._ledger.session(new.session).id
        if owner is not None and known.owner is not None and known.owner.id != owner:
            self._ledger.resources.migrate(known.id, session=owner)
        return self._log.describe(known.id, again)

    def note_parts(self, resource: Resource, found: PlaceDescription, session: str | None) -> None:
        """What it consists of now, and what of it is seen where; parts that are not found any more are none."""
        known = {part.place: part for part in (self._ledger.resources.get(one.resource) for one in resource.parts)}
        for part in found.parts:
            declared = known.pop(part.place, None)
            if declared is None:
                declared = self._part_resource(part, session)
                self._log.add_part(resource.id, declared.id, role=part.part.value)
            if part.mount is not None and not _is_seen(declared, resource):
                self._log.mount(
                    declared.id, part.mount, mode="ro" if part.is_read_only else "rw", container=resource.id
                )
        for gone in known.values():
            self.end_mount(gone, resource)
            self._log.remove_part(resource.id, gone.id)

    def _part_resource(self, part: DescribedPart, session: str | None) -> Resource:
        machine = self._drivers.machine_of(part.kind)
        return self._log.find_at(part.kind, part.place, machine) or self._log.declare(
            NewResource(
                name=part.name,
                kind=part.kind,
                place=part.place,
                capabilities=part.capabilities,
                imperative=part.imperative,
                session=session,
                machine=machine,
            )
        )

    def end_mount(self, part: Resource, container: Resource) -> None:
        if _is_seen(part, container):
            self._log.unmount(part.id, container=container.id)


def _is_seen(part: Resource, container: Resource) -> bool:
    return any(use.way == "mounted" and use.user.id == container.id for use in part.uses)


def with_mark(metadata: Any, mark: Mapping[str, int] | None) -> Any:
    """What is told of a resource, with what it is known again by."""
    return metadata if mark is None else {**(metadata or {}), MARK: dict(mark)}


# --- Carries out what is wanted of resources, and records what came of it.

T = TypeVar("T")
MOST_LETTERS = 200
"""Of the name of a copy: copies of copies would have ever longer ones."""


class Reconciled(Struct, frozen=True, kw_only=True):
    """What a controller did."""

    snapshots: tuple[Snapshot, ...] = ()
    restores: tuple[ResourceRestore, ...] = ()
    busy: tuple[str, ...] = ()
    """Ids of resources that somebody else works on."""
    left: tuple[str, ...] = ()
    """What could not be done now, for people: something was to be removed, or a container engine does not answer. It is
    tried again."""


class ResourceController:
    """Acts on the resources of one ledger, in the name of whoever the ledger acts for."""

    def __init__(self, ledger: Ledger, drivers: Drivers) -> None:
        self._ledger, self.drivers = ledger, drivers
        self.log = ResourceLog(ledger)
        self.removals = Removals(drivers, self.snapshot)
        self.descriptions = RecordedDescriptions(ledger, self.log, drivers, self.removals)
        self.notes: dict[str, tuple[str, ...]] = {}
        """What restores of this controller could not make equal, for people, by the ids of the restores."""
        self._holds: dict[str, ResourceHold] = {}
        """The resources that this controller works on."""

    # --- alone ------------------------------------------------------------------------------------------------------

    @contextmanager
    def working(self, *resources: str, in_place: bool = False) -> Iterator[list[Lease]]:
        """Nobody else acts on resources meanwhile, by their ids; the leases. Raises NotApplicable while somebody does,
        or, where they are to be changed in place, while a turn works with one of them."""
        with ExitStack() as stack:
            for resource in resources:
                busy = stack.enter_context(self._holding_resource(resource, in_place=in_place))
                if busy is not None:
                    raise NotApplicable(
                        f"{busy.who} is working in {self._ledger.resources.get(resource).name!r}", "try again later"
                    )
            try:
                yield [self._holds[resource].lease for resource in resources]
            except HoldLost as error:
                raise NotApplicable(str(error), "look at what is there now") from None

    @contextmanager
    def _holding_resource(self, resource: str, *, in_place: bool = False) -> Iterator[BusyResource | None]:
        """What is held already stays so."""
        if resource in self._holds:
            yield None
            return
        lease = self.log.hold(resource, in_place=in_place)
        if isinstance(lease, BusyResource):
            yield lease
            return
        with holding(self.log, lease) as hold:
            self._holds[resource] = hold
            try:
                yield None
            finally:
                del self._holds[resource]

    # --- one resource -----------------------------------------------------------------------------------------------

    def add(self, driver: Driver, place: str, *, name: str | None = None, session: str | None = None) -> Resource:
        """Declare what is at a place, with its parts and its handle. What is declared already is described anew: it
        keeps its name unless another is given, stays Weft's own if that made it, and gets the session for its owner
        where one is named."""
        self._ledger.trust.ensure("act on a resource")
        found = driver.describe(place)
        resource = self.descriptions.declare(driver.kind, found, name, session)
        self.descriptions.complete(resource, found, session)
        return self._ledger.resources.get(resource.id)

    def probe(self, resource: Resource) -> ResourceLiveness:
        """Look whether it is there, and record what was seen, also of its parts. Handles of what is dead are closed,
        and it sees its parts no more."""
        self._ledger.trust.ensure("look at a resource")
        self.drivers.ensure_here(resource)
        with self.working(resource.id):  # what is being restored or removed is neither there nor gone
            return self._probe_and_record(resource, self.drivers.of(resource.kind))

    def _probe_and_record(self, resource: Resource, driver: Driver) -> ResourceLiveness:
        status = driver.probe(resource.place)
        self.log.record_probe(resource.id, status.value)
        if status is ResourceLiveness.ALIVE and resource.parts:
            self.descriptions.note_parts(resource, driver.describe(resource.place), None)
        if status is ResourceLiveness.DEAD:
            for part in resource.parts:
                self.descriptions.end_mount(self._ledger.resources.get(part.resource), resource)
            for handle in resource.handles:
                self.log.close_handle(resource.id, handle.id, reason="it is not there any more")
        return status

    def snapshot(self, resource: Resource, *, run: str | None = None, method: str | None = None) -> Snapshot:
        """Ask for a snapshot and take it at once, by one of its driver's methods. Raises NotApplicable while somebody
        else works on the resource."""
        self._ledger.trust.ensure("take a snapshot")
        self.drivers.ensure_here(resource)
        if method is not None:
            _ensure_method(self.drivers.of(resource.kind), resource, method)
        wish = self._ledger.resources.snapshot(self.log.request_snapshot(resource.id, run=run, method=method))
        taken = self._take_wished_snapshot(wish)
        if taken is None:
            raise NotApplicable(f"somebody else is working in {resource.name!r}", "the snapshot is taken after them")
        return taken

    def restore(self, snapshot: Snapshot, *, place: str | None = None, session: str | None = None) -> ResourceRestore:
        """Ask for a restore and do it at once. In place it is refused with NotApplicable while somebody else, or a
        turn, works on the resource; the wish for a new one stays open then."""
        self._ledger.trust.ensure("restore a snapshot")
        resource = self._ledger.resources.get(snapshot.resource)
        self.drivers.ensure_here(resource)
        self.ensure_kept(snapshot)
        if place is None:
            with self.working(resource.id, in_place=True):
                return self.finish_restore(self.log.request_restore(snapshot.id, session=session).id)
        place = self.absolute_place(resource, place)
        return self.finish_restore(self.log.request_restore(snapshot.id, place=place, session=session).id)

    def refuse_unsupported(self, snapshot: Snapshot, *, in_place: bool) -> None:
        """Where a snapshot cannot be restored, record the attempt and raise Unsupported."""
        why = self._why_unsupported(snapshot, in_place=in_place)
        if why is None:
            return
        self._ledger.trust.ensure("restore a snapshot")
        words, hint = why
        self.log.record_unsupported_restore(snapshot.id, ResourceFailure("unsupported", words))
        raise Unsupported(f"{words}; the attempt is recorded", hint)

    def _why_unsupported(self, snapshot: Snapshot, *, in_place: bool) -> tuple[str, str] | None:
        kind = self._ledger.resources.get(snapshot.resource).kind
        if snapshot.state in (SnapshotState.ERROR, SnapshotState.DISCARDED):
            what = "failed" if snapshot.state is SnapshotState.ERROR else "was discarded"
            return f"snapshot {snapshot.id} {what}: nothing is kept of it", "name another one"
        if not snapshot.restorable:
            return f"snapshot {snapshot.id} cannot be restored", "it tells what was, and holds no bytes"
        if not self.drivers.has(kind):
            return f"nothing here acts on a {kind.value}", "connect what does, such as a container engine"
        if in_place and kind not in (ResourceKind.DIRECTORY, ResourceKind.FILE):
            return f"a {kind.value} is not restored over itself", "say --to PLACE or --session SESSION"
        return None

    def ensure_kept(self, snapshot: Snapshot) -> None:
        """Raises FilesElsewhere where what a snapshot kept lies beside another ledger, or is lost."""
        present = self._ledger.resources.snapshot(snapshot.id)
        if present.state is not SnapshotState.OK or present.external_id is None:
            return  # whoever restores it is told that there is nothing
        kind = self._ledger.resources.get(present.resource).kind
        if self.drivers.has(kind) and not self.drivers.of(kind).holds(present):
            raise files_elsewhere(self._ledger, self.drivers.folder, snapshot)

    def finish_restore(self, restore: str) -> ResourceRestore:
        """Carry out a wish, by its id; it stays open while somebody else works on the resource, or its container engine
        does not answer."""
        self._ledger.trust.ensure("restore a snapshot")
        wish = self.log.restore(restore)
        self.drivers.ensure_here(self._ledger.resources.get(self._resource_of(wish)))
        try:
            return self._bring_back(wish) or wish
        except EngineUnreachable:
            return wish

    def keep_present(self, resource: Resource, *, method: str | None = None) -> Snapshot:
        """A snapshot of what is about to be overwritten, by a method of its driver; a folder that is gone counts as
        empty. Raises NotApplicable where it cannot be kept: nothing is overwritten then."""
        driver = self.drivers.of(resource.kind)
        if isinstance(driver, DirectoryDriver) and not os.path.lexists(resource.place):
            with self.working(resource.id), driver.storing():
                return self.log.record_snapshot(resource.id, driver.take_present(resource.place))
        taken = self.snapshot(resource, method=method)
        if taken.state is not SnapshotState.OK:
            raise NotApplicable(f"{resource.place} as it is now cannot be kept: {taken.error}", "mend that first")
        return taken

    def obstacle(self, resource: Resource) -> str | None:
        """Why what is wanted of a resource is not done at once, for people."""
        if self.log.is_worked_on(resource.id):
            return "somebody else is working in it"
        try:
            self.drivers.of(resource.kind).describe(resource.place)
        except EngineUnreachable as error:
            return str(error)
        except WeftError:
            return None  # its outcome will say so
        return None

    def ensure_own(self, resource: Resource, act: str) -> None:
        """Before a place is looked at without a wish in the ledger. Raises NotTrusted in a ledger that nobody trusts,
        NotApplicable where another ledger declared the resource: its place is that ledger's word."""
        self._ledger.trust.ensure(act)
        if not resource.is_own:
            raise NotApplicable(f"resource {resource.name!r} was declared by another ledger", "act on it there")

    def absolute_place(self, resource: Resource, place: str) -> str:
        """Where a copy goes, as it is written down: whoever carries the wish out may stand in another folder. Raises
        NotApplicable where it would lie in what it is a copy of."""
        if resource.kind not in (ResourceKind.DIRECTORY, ResourceKind.FILE):
            return place
        target = new_folder(place)
        if resource.kind is ResourceKind.DIRECTORY and target.is_relative_to(resource.place):
            raise NotApplicable(f"{target} lies in {resource.place}, of which it would be a copy", "name one beside it")
        return str(target)

    def discard(self, resource: Resource) -> DiscardedResource:
        """Let nobody own it any more; what Weft made is kept and then removed, what was there before stays."""
        self._ledger.trust.ensure("discard a resource")
        with self.working(resource.id, in_place=True):
            return self._discard_resource(resource)

    def _discard_resource(self, resource: Resource) -> DiscardedResource:
        why_left = self.removals.begin(resource)
        if why_left is not None:
            reason = why_left if resource.is_made else None
            return DiscardedResource(resource=self.log.discard(resource.id, reason=reason), why_left=why_left)
        try:
            gone = self.log.discard(resource.id)
        except WeftError:
            self.removals.cancel(resource)
            raise
        self.removals.finish(resource)
        return DiscardedResource(resource=gone)

    def forget(self, snapshots: Sequence[Snapshot], reason: str) -> list[Snapshot]:
        """Throw away what snapshots kept, and with them those of no turn that hold the same, such as what was kept
        before an undo. What snapshots of other turns hold stays. Those whose bytes are on another machine are given
        back: they stay as they are until they are thrown away there."""
        self._ledger.trust.ensure("throw snapshots away")
        here = [one for one in snapshots if self._is_here(one.resource)]
        gone = {(one.external_kind, one.external_id): one for one in here if one.external_kind is not None}
        found = self.log.kept_beside([reference for _, reference in gone if reference is not None])
        beside = [one for one in found if self._is_here(one.resource)]
        for one in {one.id: one for one in (*here, *beside)}.values():
            if one.state is SnapshotState.OK:
                self.log.discard_snapshot(one.id, reason=reason)
        for (kind, reference), one in gone.items():
            driver = self.drivers.of(self._ledger.resources.get(one.resource).kind)
            driver.forget_snapshot(one, partial(self._is_wanted, str(kind), reference))
        elsewhere = {one.id for one in snapshots} - {one.id for one in here}
        return [one for one in snapshots if one.id in elsewhere and one.state is SnapshotState.OK]

    def _is_wanted(self, kind: str, reference: str | None) -> bool:
        return reference is not None and self.log.is_held(kind, reference)

    # --- all that is open -------------------------------------------------------------------------------------------

    def pending(self) -> tuple[list[Snapshot], list[ResourceRestore]]:
        """What is wanted of places on this machine, and of those that are bound to none, the oldest first."""
        snapshots, restores = self.log.pending()
        return (
            [one for one in snapshots if self._is_here(one.resource)],
            [one for one in restores if self._is_here(self._resource_of(one))],
        )

    def _is_here(self, resource: str) -> bool:
        return self.drivers.is_here(self._ledger.resources.get(resource))

    def reconcile(self) -> Reconciled:
        """Carry out every open wish that nobody else is at."""
        self._ledger.trust.ensure("act on resources")
        left = [
            why for driver in self.drivers.all() for why in (*self._tidy_up(driver), *self._complete_removals(driver))
        ]
        snapshots, restores = self.pending()
        taken = [
            self._outcome_or_wait(
                partial(self._take_wished_snapshot, wish, is_late=True), partial(self._fail_snapshot, wish)
            )
            for wish in snapshots
        ]
        done = [
            self._outcome_or_wait(partial(self._bring_back, wish, is_late=True), partial(self._fail_restore, wish))
            for wish in restores
        ]
        ids = [*(wish.resource for wish in snapshots), *map(self._resource_of, restores)]
        return Reconciled(
            snapshots=tuple(one for one in taken if isinstance(one, Snapshot)),
            restores=tuple(one for one in done if isinstance(one, ResourceRestore)),
            busy=tuple(dict.fromkeys(id for id, one in zip(ids, (*taken, *done), strict=True) if one is None)),
            left=(*left, *(one for one in (*taken, *done) if isinstance(one, str))),
        )

    def _outcome_or_wait(self, work: Callable[[], T | None], fail: Callable[[ResourceFailure], T]) -> T | str | None:
        """What came of a wish, or why it has to wait. One that cannot be carried out for a reason that nobody reckoned
        with is over, with that reason: the others are carried out all the same."""
        try:
            return work()
        except EngineUnreachable as error:
            return str(error)
        except StoreError:
            raise  # the ledger itself
        except Exception as error:  # a defect of a driver, say: it is recorded, and the others go on
            return fail(_failure_of(error))

    def _fail_snapshot(self, wish: Snapshot, failure: ResourceFailure) -> Snapshot:
        return self.log.record_snapshot(wish.resource, failure, snapshot=wish.id)

    def _fail_restore(self, wish: ResourceRestore, failure: ResourceFailure) -> ResourceRestore:
        return self.log.record_restore(wish.id, RestoreOutcome.ERROR.value, failure=failure)

    def _resource_of(self, wish: ResourceRestore) -> str:
        return self._ledger.resources.snapshot(wish.snapshot).resource

    def _tidy_up(self, driver: Driver) -> Iterator[str]:
        """Finish what somebody left who died after the ledger had recorded what came of it; what cannot be is told."""
        if not isinstance(driver, ClaimingDriver):
            return
        claims: PlaceClaims = driver.claims
        try:
            noted = claims.all()
        except Damaged as error:
            yield str(error)
            return
        for claim in noted:
            try:
                is_settled = self._is_settled(claim)
            except NotFound:
                continue  # of another ledger, or not for whoever acts
            except WeftError as error:
                yield str(error)
            else:
                if is_settled:
                    claims.drop(claim.key)

    def _complete_removals(self, driver: Driver) -> Iterator[str]:
        """Tell of the parts and the handles of copies that somebody made who died before; what cannot be is told."""
        if not isinstance(driver, HandlingDriver):
            return
        for resource in self._ledger.resources.list(kind=driver.kind):
            is_copy = resource.is_made and resource.is_own
            if not is_copy or resource.owner is None or resource.handles:
                continue
            try:
                if driver.probe(resource.place) is ResourceLiveness.ALIVE:
                    self.descriptions.complete(resource, driver.describe(resource.place), _session_of(resource.owner))
            except WeftError as error:
                yield str(error)

    def _is_settled(self, claim: PlaceClaim) -> bool:
        """Whether nobody needs the note any more."""
        if claim.kind is ClaimKind.RESTORE:
            return self.log.restore(claim.key).outcome is not None
        resource = self._ledger.resources.get(claim.key)
        is_used_anew = self.log.find_at(resource.kind.value, resource.place, resource.machine) is not None
        if resource.owner is None and resource.is_own and resource.is_made and not is_used_anew:
            self.removals.finish(resource)
        return True

    def _take_wished_snapshot(self, wish: Snapshot, *, is_late: bool = False) -> Snapshot | None:
        """None while somebody else works on the resource. One that is taken late is none of the turn's files: who
        knows what has changed since."""
        with suppress(HoldLost), self._holding_resource(wish.resource) as busy:
            if busy is not None:
                return None
            present = self._ledger.resources.snapshot(wish.id)
            if present.state is not SnapshotState.REQUESTED:
                return present
            resource = self._ledger.resources.get(wish.resource)
            return self._take_and_record(resource, wish.id, run=None if is_late else wish.run, method=present.method)
        return None

    def _take_and_record(self, resource: Resource, wish: str, *, run: str | None, method: str | None) -> Snapshot:
        """Nothing is thrown away until what was taken is recorded. Raises EngineUnreachable: that is tried again."""
        with ExitStack() as stack:
            taken: NewSnapshot | ResourceFailure
            try:
                driver = self.drivers.of(resource.kind)
                if isinstance(driver, StoringDriver):
                    stack.enter_context(driver.storing())
                taken = _take_with_driver(driver, resource, wish, method)
            except EngineUnreachable:
                raise
            except (WeftError, OSError) as error:
                taken = _failure_of(error)
            ensure_held()
            return self.log.record_snapshot(resource.id, taken, snapshot=wish, run=run)

    def _bring_back(self, wish: ResourceRestore, *, is_late: bool = False) -> ResourceRestore | None:
        """None while somebody else works on the resource, or, in place, a turn does."""
        snapshot = self._ledger.resources.snapshot(wish.snapshot)
        in_place = wish.new_resource is None
        with suppress(HoldLost), self._holding_resource(snapshot.resource, in_place=in_place) as busy:
            if busy is not None:
                return None
            present = self.log.restore(wish.id)
            if present.outcome is not None:
                return present
            resource = self._ledger.resources.get(snapshot.resource)
            refused = self._why_not(present, resource, is_late=is_late)
            if refused is not None:
                return self.log.record_restore(wish.id, "error", failure=refused)
            done = self._try_restoring(present, snapshot, resource)
            driver = self.drivers.of(resource.kind) if self.drivers.has(resource.kind) else None
            if isinstance(driver, ClaimingDriver):
                driver.claims.drop(wish.id)
            return done
        return None

    def _why_not(self, wish: ResourceRestore, resource: Resource, *, is_late: bool) -> ResourceFailure | None:
        """Why a restore over a resource is not carried out; what is there is kept where nobody did so just before."""
        if wish.new_resource is not None:
            return None
        if resource.owner is None:
            return ResourceFailure("discarded", f"{resource.name!r} is discarded")
        if self.log.is_superseded(wish.id):
            return ResourceFailure(
                "superseded", f"{resource.name!r} was worked with, restored or given to another since"
            )
        if not is_late or not resource.can(ResourceCapability.SNAPSHOT) or not self.drivers.has(resource.kind):
            return None
        try:
            self.keep_present(resource)
        except NotApplicable as error:
            return ResourceFailure("not_kept", str(error))
        return None

    def _try_restoring(self, wish: ResourceRestore, snapshot: Snapshot, resource: Resource) -> ResourceRestore:
        if not self.drivers.has(resource.kind) or not snapshot.restorable:
            why = f"a {resource.kind} cannot be restored here"
            return self.log.record_restore(wish.id, "unsupported", failure=ResourceFailure("unsupported", why))
        driver = self.drivers.of(resource.kind)
        try:
            restored = driver.restore(resource, snapshot, wish.place, wish.id)
            self.notes[wish.id] = restored.notes
            found = None if wish.new_resource is None else driver.describe(restored.place)
        except EngineUnreachable:
            raise
        except (WeftError, OSError) as error:
            ensure_held()
            return self._record_failure(driver, wish, error)
        ensure_held()
        if found is None:
            return self.log.record_restore(wish.id, RestoreOutcome.OK.value)
        session, new = _session_of(wish.owner), self._restored_resource(resource, wish, restored, found)
        done = self.log.record_restore(wish.id, RestoreOutcome.OK.value, new=new)
        self.descriptions.complete(self._ledger.resources.get(str(done.new_resource)), found, session)
        return done

    def _restored_resource(
        self, resource: Resource, wish: ResourceRestore, restored: RestoredPlace, found: PlaceDescription
    ) -> NewResource:
        owner = _session_of(wish.owner)
        return NewResource(
            name=f"{resource.name}-{owner}"[:MOST_LETTERS] if owner else found.name,
            kind=resource.kind,
            place=found.place,
            capabilities=found.capabilities,
            imperative=found.imperative,
            is_made=restored.is_made,
            metadata=with_mark(found.metadata, restored.mark),
            machine=self.drivers.machine_of(resource.kind),
        )

    def _record_failure(self, driver: Driver, wish: ResourceRestore, error: WeftError | OSError) -> ResourceRestore:
        try:
            undone = None if wish.place is None else driver.undo_restore(wish.place, wish.id)
        except (WeftError, OSError) as fault:
            undone = f"what was begun could not be undone: {fault}"
        outcome = RestoreOutcome.UNSUPPORTED if isinstance(error, Unsupported) else RestoreOutcome.ERROR
        return self.log.record_restore(wish.id, outcome.value, failure=_failure_of(error), compensation=undone)


def _ensure_method(driver: Driver, resource: Resource, method: str) -> None:
    known = driver.methods if isinstance(driver, ChoosingDriver) else ()
    if method not in known:
        ways = f"one of {', '.join(known)}" if known else "in one way; name none"
        raise Unsupported(f"no snapshot of a {resource.kind.value} is taken by {method!r}", f"it is taken {ways}")


def _take_with_driver(driver: Driver, resource: Resource, wish: str, method: str | None) -> NewSnapshot:
    if method is None:
        return driver.snapshot(resource, wish)
    _ensure_method(driver, resource, method)
    assert isinstance(driver, ChoosingDriver)
    return driver.snapshot_by(method, resource, wish)


def _session_of(owner: Owner | None) -> str | None:
    return owner.name if owner is not None and owner.kind == "session" else None


def _failure_of(error: Exception) -> ResourceFailure:
    return ResourceFailure(error_code(error), error_text(error))


# --- The job of a broker that carries out what is wanted of resources: wishes that whoever made them did not live to
# see done, and those of forks.

BUSY_MS = 5000
"""So soon is looked again at what somebody else works on, or an engine that does not answer is to do."""
LEFT_MS = 60_000
"""So soon is tried again what could not be removed."""


class ResourceJob:
    """A `BackgroundJob`. Its first run also finishes what a process that died left half done; later ones act where
    something is wanted."""

    name = "resources"

    def __init__(self, ledger: Ledger, crossing: Executor, controller: Callable[[], ResourceController]) -> None:
        self._ledger, self._crossing, self._make = ledger, crossing, controller
        self._controller: ResourceController | None = None
        self._has_left = False
        """Whether something could not be done when it was last tried."""

    async def run_due(self, now_ms: int) -> int | None:
        return await self._crossing.run(lambda: self.run(now_ms))

    def run(self, now_ms: int) -> int | None:
        """Carry out what is open; when to look again at the latest. A ledger that may not act for the person is left
        as it is."""
        if not self._ledger.trust.is_trusted:
            return None
        if self._controller is None:
            self._controller = self._make()
        elif not self._has_left and not any(self._controller.pending()):
            return None
        self._has_left = bool(self._controller.reconcile().left)
        if any(self._controller.pending()):
            return now_ms + BUSY_MS
        return now_ms + LEFT_MS if self._has_left else None
