"""Conversations of people and agents: who takes part, what is said, whom it reaches."""
