"""The broker: messages reach their turns, once, whatever dies in between."""
