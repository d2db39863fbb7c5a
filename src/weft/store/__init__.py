"""Facts on disk: one small port, its backends, and the contract they all pass."""
