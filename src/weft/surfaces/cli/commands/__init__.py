"""One module per command, each with its `command`; none of them imports another."""
