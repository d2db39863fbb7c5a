"""Messages that wait for their turns, and the turns that a broker runs."""
