"""Addresses as resources: they are shared and looked at; what lies behind them cannot be kept or brought back."""

from __future__ import annotations

from collections.abc import Callable

from weft.kernel.enums import ResourceCapability, ResourceKind, ResourceLiveness
from weft.kernel.errors import InvalidInput, OutsideError, Unsupported, quoted
from weft.ledger.api import NewSnapshot, Resource, Snapshot
from weft.runtime.resources.drivers import Description, RestoredPlace

CAPABILITIES = (ResourceCapability.MIGRATE, ResourceCapability.SHARE)
_LONGEST = 2048
Look = Callable[[str], int]
"""The status of the answer to a request for an address; raises OutsideError where none comes."""


class UriDriver:
    """Addresses; `look` asks those of the web, where somebody gave it."""

    kind = ResourceKind.URI

    def __init__(self, look: Look | None = None) -> None:
        self._look = look

    def describe(self, place: str) -> Description:
        scheme, colon, rest = place.partition(":")
        is_scheme = scheme[:1].isalpha() and all(letter.isalnum() or letter in "+.-" for letter in scheme)
        if not colon or not rest or not is_scheme or len(place) > _LONGEST or any(letter.isspace() for letter in place):
            raise InvalidInput(
                f"{quoted(place, 200)} is no address", "write it with its scheme, such as https://example.org/x"
            )
        return Description(name=place, place=place, capabilities=CAPABILITIES, imperative=True)

    def probe(self, place: str) -> ResourceLiveness:
        """Only what the web answers is known: 404 and 410 mean that it is not there."""
        if self._look is None or place.partition(":")[0].lower() not in ("http", "https"):
            return ResourceLiveness.UNKNOWN
        try:
            status = self._look(place)
        except OutsideError:
            return ResourceLiveness.UNKNOWN
        if status in (404, 410):
            return ResourceLiveness.DEAD
        return ResourceLiveness.ALIVE if status < 400 else ResourceLiveness.UNKNOWN

    def snapshot(self, resource: Resource, key: str) -> NewSnapshot:
        raise Unsupported(f"what lies behind {resource.place} cannot be kept")

    def restore(self, resource: Resource, snapshot: Snapshot, place: str | None, key: str) -> RestoredPlace:
        raise Unsupported(f"what lies behind {resource.place} cannot be brought back")

    def undo_restore(self, place: str, key: str) -> str | None:
        return None

    def remove(self, resource: Resource) -> None:
        raise Unsupported(f"what lies behind {resource.place} is not Weft's to remove")

    def forget_snapshot(self, snapshot: Snapshot, is_wanted: Callable[[], bool]) -> None:
        """It has none."""

    def holds(self, snapshot: Snapshot) -> bool:
        return True

    def new_place(self, resource: Resource, label: str) -> str:
        return resource.place
