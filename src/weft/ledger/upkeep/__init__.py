"""Verifying, rebuilding, copying, packing and examining a ledger."""
