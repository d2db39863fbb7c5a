"""Compactions: when one is due, how its summary is made and recorded, and how several of a thread compare."""
