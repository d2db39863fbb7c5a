"""Whether an open ledger is trusted by whoever opened it. What says so lies outside the ledger.

In a ledger that is not trusted everything can be read and recorded, and nothing acts: no command is started, no
connection opened, no key sent, no program run, no approval taken, nothing imported under its secret. Whatever would do
so asks `ensure` first. The library trusts what its caller opens (`Vouched`); surfaces hand in a trust that asks the
person's own store.
"""

from __future__ import annotations

from typing import Protocol


class LedgerTrust(Protocol):
    """What the person who opened one ledger remembers of it, outside of it."""

    @property
    def is_trusted(self) -> bool:
        """Whether the ledger may act."""

    def ensure(self, action: str) -> None:
        """Raises NotTrusted where it may not; `action` says what would be done, as in "run a program"."""

    def pinned_replica(self, address: str) -> str | None:
        """The replica that answered at an address when it was first spoken to from this ledger."""

    def pin_replica(self, address: str, replica: str) -> None:
        """From now on only this replica is expected at the address."""

    def unpin_replica(self, address: str) -> None:
        """The next replica that answers there is taken for the first."""


class Vouched:
    """The caller of the library vouches for the ledger. Pins are kept as long as it is open."""

    is_trusted = True

    def __init__(self) -> None:
        self._replicas: dict[str, str] = {}

    def ensure(self, action: str) -> None:
        """Everything is allowed."""

    def pinned_replica(self, address: str) -> str | None:
        return self._replicas.get(address)

    def pin_replica(self, address: str, replica: str) -> None:
        self._replicas[address] = replica

    def unpin_replica(self, address: str) -> None:
        self._replicas.pop(address, None)
