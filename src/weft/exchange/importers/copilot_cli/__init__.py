"""Sessions of GitHub Copilot CLI: one file of events each, with the subagents' events among them."""

from weft.exchange.importers.copilot_cli.importer import CopilotCli

__all__ = ["CopilotCli"]
