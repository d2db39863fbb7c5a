"""The commands of `weft trigger`."""
