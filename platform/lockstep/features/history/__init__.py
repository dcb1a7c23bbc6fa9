"""Going back and trying again: rewind, savepoints, shadows, their comparison and promotion."""
