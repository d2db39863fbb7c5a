"""Exporters: threads, sessions and trees in forms that other programs and people read."""
