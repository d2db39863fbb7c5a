"""Commands that look: turns, threads, searches, reports."""
