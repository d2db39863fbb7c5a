"""Workers: sessions that an agent's tool calls start, with no more rights than the turn that asked."""
