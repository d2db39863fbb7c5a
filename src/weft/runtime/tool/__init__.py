"""What a tool is: its contract, named lists of tools, the gate that each call passes, and the workspace."""
