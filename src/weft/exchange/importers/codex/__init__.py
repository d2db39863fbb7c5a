"""Sessions of the OpenAI Codex CLI: rollout files of all three generations."""

from weft.exchange.importers.codex.importer import Codex

__all__ = ["Codex"]
