"""MCP servers as tools: their configuration, pinned definitions, connections, calls and what they notify of."""
