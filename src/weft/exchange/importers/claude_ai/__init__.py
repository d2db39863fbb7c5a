"""Conversations and projects of Claude.ai, as its data export holds them."""

from weft.exchange.importers.claude_ai.importer import ClaudeAi

__all__ = ["ClaudeAi"]
