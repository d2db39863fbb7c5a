"""What a durable turn costs, beside the bare engine and the stores that others use: `make bench`."""
