"""Conversations of OpenHands: its first event stream (V0) and that of its software agent SDK (V1)."""

from weft.exchange.importers.openhands.importer import OpenHands

__all__ = ["OpenHands"]
