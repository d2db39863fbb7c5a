"""The tools that an agent is offered: files, commands, pages, and those of MCP servers."""
