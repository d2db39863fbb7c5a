"""Triggers: what sends messages without a person, by time or because something happened."""
