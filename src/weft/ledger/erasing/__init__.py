"""Erasing: what is planned, what is done, and what was done so far."""

from weft.ledger.erasing.erasure import FORGETTERS, Erasure, erase, finish
from weft.ledger.erasing.plan import AffectedSession, ContentToErase, ErasurePlan, SharedContent, SharedTurn, make_plan
from weft.ledger.read.tombstones import Tombstone, pending, tombstones

__all__ = [
    "FORGETTERS",
    "AffectedSession",
    "ContentToErase",
    "Erasure",
    "ErasurePlan",
    "SharedContent",
    "SharedTurn",
    "Tombstone",
    "erase",
    "finish",
    "make_plan",
    "pending",
    "tombstones",
]
