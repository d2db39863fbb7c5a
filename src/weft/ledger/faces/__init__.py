"""The sides of the ledger's public face, one room of verbs each."""
