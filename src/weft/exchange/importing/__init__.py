"""Importing: one run, sessions on their way in, and an import that goes on watching."""
