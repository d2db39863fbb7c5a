"""Commands about a ledger as a whole, and what goes into it and out of it."""
