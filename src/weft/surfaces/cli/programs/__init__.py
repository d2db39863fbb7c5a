"""Commands about programs of every kind."""
