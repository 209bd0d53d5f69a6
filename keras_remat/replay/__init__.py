"""Run a block of TensorFlow ops a second time with the same numbers and without side effects."""
