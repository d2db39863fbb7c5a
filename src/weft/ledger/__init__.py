"""Turns, threads, sessions, forks, compactions, contexts; recording them, reading them, verifying them."""
