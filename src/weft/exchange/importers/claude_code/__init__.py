"""Claude Code's sessions: one JSON-lines file each, a tree of lines joined by `parentUuid`.

The importer walks a file twice. The first pass (`index`) keeps of every line its ids, links and place, and plans
turns from them; `importer` tells the sessions of a file apart and reads the lines of a turn again when that turn is
asked for; `turns` maps them. `lines` knows what each kind of line is and says.
"""

from weft.exchange.importers.claude_code.importer import ClaudeCode

__all__ = ["ClaudeCode"]
