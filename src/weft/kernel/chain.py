"""The arrival log's hash chain, and receipts that hold a ledger to it."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from msgspec import Struct

GENESIS = bytes(32)


def extend(chain: bytes, event_ids: Iterable[bytes]) -> bytes:
    """`log_n = sha256(log_{n-1} + event_id)`, once per event in order of arrival."""
    for event_id in event_ids:
        chain = sha256(chain + event_id).digest()
    return chain


class Receipt(Struct, frozen=True, gc=False):
    """What a caller may keep: a ledger that was cut, rolled back or edited cannot answer for it."""

    replica: str
    n: int
    log: str
    digest: str
