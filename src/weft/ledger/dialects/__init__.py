"""Messages, tool calls and usage as the APIs of models spell them, translated into the ledger's own."""
