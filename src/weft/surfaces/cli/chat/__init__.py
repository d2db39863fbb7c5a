"""A conversation at the terminal."""
