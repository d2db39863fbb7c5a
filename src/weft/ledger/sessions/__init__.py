"""Commands that change sessions: heads, labels, compactions, merges."""
