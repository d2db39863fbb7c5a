"""What configures a turn, in layers: collected, merged, recorded."""
