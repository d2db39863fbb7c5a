"""Sessions of Kiro and of Amazon Q before it: three stores of the command line, and those of the editor."""

from weft.exchange.importers.kiro.importer import Kiro

__all__ = ["Kiro"]
