"""Processes, and what runs in namespaces of its own."""
