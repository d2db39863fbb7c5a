"""Whatever acts: processes and connections, models and keys, and in whose name."""
