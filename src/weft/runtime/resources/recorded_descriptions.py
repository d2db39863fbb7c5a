"""What drivers tell of resources, recorded: the resource itself, its parts and what is seen where, its handle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from weft.kernel.enums import ResourceKind
from weft.ledger.api import Ledger, NewResource, Resource, ResourceLog
from weft.runtime.resources.directory_driver import MARK
from weft.runtime.resources.drivers import DescribedPart, Description, Drivers
from weft.runtime.resources.removals import Removals


class RecordedDescriptions:
    """Writes descriptions into one ledger."""

    def __init__(self, ledger: Ledger, log: ResourceLog, drivers: Drivers, removals: Removals) -> None:
        self._ledger, self._log, self._drivers, self._removals = ledger, log, drivers, removals

    def declare(self, kind: ResourceKind, found: Description, name: str | None, session: str | None) -> Resource:
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

    def complete(self, resource: Resource, found: Description, session: str | None) -> None:
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

    def note_parts(self, resource: Resource, found: Description, session: str | None) -> None:
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
