"""Kinds of program: one module for each, and one table of them."""
