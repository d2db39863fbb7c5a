"""Commands that have messages and tasks answered."""
