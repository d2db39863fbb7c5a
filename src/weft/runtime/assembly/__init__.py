"""What a model is sent: its layers, how large they are, and what is cut where they do not fit."""
