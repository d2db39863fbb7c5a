"""The agent graph: nodes and edges over the events of a ledger, asked about as of any time."""
