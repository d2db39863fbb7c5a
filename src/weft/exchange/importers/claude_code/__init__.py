"""Claude Code's sessions: one JSON-lines file each, a tree of lines joined by `parentUuid`.

The importer walks a file twice. The first pass (`index`) keeps of every line its ids, links and place; `tree` makes
turns of them; `mapping` reads the lines of a turn again when that turn is asked for.
"""

from weft.exchange.importers.claude_code.importer import ClaudeCode

__all__ = ["ClaudeCode"]
