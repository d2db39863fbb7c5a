"""Recorded threads run again, and searched for the turn after which a check fails."""
