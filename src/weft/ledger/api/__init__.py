"""The public verbs of a ledger, one module for each group of them."""
