"""Where a message goes: the thread that a text belongs to."""
