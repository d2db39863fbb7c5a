"""Approval policies: programs that decide about tool calls, run in the sandbox, tested, compared with the record."""
