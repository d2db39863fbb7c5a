"""Files of messages in the forms of chat APIs, whoever wrote them."""

from weft.exchange.importers.messages.importer import Messages

__all__ = ["Messages"]
