"""What a broker asks of a ledger: inboxes, turns that it runs and their entries, workers, what followers are told."""
