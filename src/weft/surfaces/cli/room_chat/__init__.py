"""A room at a terminal."""
