"""Sessions of Gemini CLI: chats as one document or as a log of changes, saved chats, and prompts alone."""

from weft.exchange.importers.gemini_cli.importer import GeminiCli

__all__ = ["GeminiCli"]
