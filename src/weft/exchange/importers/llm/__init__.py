"""Conversations of the `llm` command line tool, from its log database."""

from weft.exchange.importers.llm.importer import Llm

__all__ = ["Llm"]
