"""Conversations of ChatGPT, as its data export holds them."""

from weft.exchange.importers.chatgpt.importer import ChatGpt

__all__ = ["ChatGpt"]
