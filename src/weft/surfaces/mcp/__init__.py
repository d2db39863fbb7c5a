"""The past of agents for other programs, over the Model Context Protocol."""
