"""Threads of LangGraph, from the checkpoints that its savers keep in SQLite or PostgreSQL."""

from weft.exchange.importers.langgraph.importer import LangGraph

__all__ = ["LangGraph"]
