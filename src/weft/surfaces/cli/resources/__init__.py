"""The commands of `weft resource`."""
