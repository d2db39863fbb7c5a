"""Sessions of the pi coding agent and of those that write its format (oh-my-pi, OpenClaw)."""

from weft.exchange.importers.pi.importer import Pi

__all__ = ["Pi"]
