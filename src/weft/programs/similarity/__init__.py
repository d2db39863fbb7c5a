"""Nodes that mean nearly the same: texts as vectors, and the nearest of them."""
