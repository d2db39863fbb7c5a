"""For the layers above: what an open ledger writes with, and what it reads from."""

from __future__ import annotations

from weft.ledger.draft import Desk
from weft.ledger.faces.face import Face
from weft.store.port import Store


def desk_of(ledger: Face) -> Desk:
    return ledger._desk


def store_of(ledger: Face) -> Store:
    return ledger._store
