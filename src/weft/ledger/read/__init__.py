"""Reading: revisions, threads, turns, contexts, sessions, listings."""
