"""Removes what Weft made and nobody owns any more.

What is there is kept first, and a note stands beside the driver until the ledger has recorded it and it is gone.

What came to the place of something that Weft made, as a folder that a person made anew, is somebody's: it is left, and
why is recorded.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from weft.kernel.enums import ResourceCapability, ResourceLiveness, SnapshotState
from weft.kernel.errors import NotApplicable
from weft.ledger.api import Resource, Snapshot
from weft.runtime.resources.claims import Claim, ClaimingDriver, ClaimKind, Claims
from weft.runtime.resources.drivers import Driver, Drivers, RecognisingDriver


class DiscardedResource(Struct, frozen=True, kw_only=True):
    """A resource that nobody owns any more."""

    resource: Resource
    why_left: str | None = None
    """Why what it is stays where it is; None: it was removed."""


class Removals:
    """Removes what drivers made; `keep` takes a snapshot."""

    def __init__(self, drivers: Drivers, keep: Callable[[Resource], Snapshot]) -> None:
        self._drivers, self._keep = drivers, keep

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
            kept = self._keep(resource)
            if kept.state is not SnapshotState.OK:
                raise NotApplicable(f"{resource.place} cannot be kept before it is removed: {kept.error}")
            if isinstance(driver, RecognisingDriver) and (why := driver.why_not_whole(resource, kept)) is not None:
                return why
        if (claims := _claims_of(driver)) is not None:
            claims.put(Claim(key=resource.id, kind=ClaimKind.REMOVAL, place=resource.place))
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


def _claims_of(driver: Driver) -> Claims | None:
    return driver.claims if isinstance(driver, ClaimingDriver) else None
