"""The write path: from a turn to its events, contents and rows."""
