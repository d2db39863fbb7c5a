"""A turn as the runtime works it: a message, a model, the recorded steps."""
