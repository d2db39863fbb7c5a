"""Trajectories in ATIF, the agent trajectory interchange format."""

from weft.exchange.importers.atif.importer import Atif

__all__ = ["Atif"]
