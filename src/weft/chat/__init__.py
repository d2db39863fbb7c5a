"""Rooms at work: who is meant, what is answered, and what is seen of it."""
