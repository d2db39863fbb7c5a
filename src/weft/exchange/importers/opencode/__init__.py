"""Sessions of opencode: its folder of JSON files, its database and its exports."""

from weft.exchange.importers.opencode.importer import Opencode

__all__ = ["Opencode"]
