"""Execution contexts as signed tokens for other processes: what is in them, how they are signed, narrowed and read."""
