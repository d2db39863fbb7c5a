"""Invoking programs: one handler for each kind, the plans of turns and their tools, triggers that fire."""
