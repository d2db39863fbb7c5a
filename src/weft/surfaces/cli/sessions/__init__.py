"""Commands that change sessions: recording, branches, heads and labels."""
