"""Answers computed from what was recorded: usage, audit, work, files."""
