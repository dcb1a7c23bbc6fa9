"""Ready transforms, so that the usual stream needs no logic of its own."""
