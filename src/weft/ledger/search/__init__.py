"""Search: what was said and done, found by its words."""
