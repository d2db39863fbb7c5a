"""Sessions of aider: its chat history in Markdown, its history of inputs, and its log of what the model was sent."""

from weft.exchange.importers.aider.importer import Aider

__all__ = ["Aider"]
