"""Runs of SWE-agent and mini-swe-agent."""

from weft.exchange.importers.swe_agent.importer import SweAgent

__all__ = ["SweAgent"]
