"""What a model is sent: the layers that configure a turn, its context, what is cut of it, and summaries."""
