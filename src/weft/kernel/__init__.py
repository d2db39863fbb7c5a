"""The vocabulary: canonical JSON, ids, times, errors, events, contents. No I/O."""
