"""Where to cut a model into recomputed segments."""
