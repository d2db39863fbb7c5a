"""Invoking programs: one handler for each kind."""
