"""Ready transforms, so that a common stream needs no logic."""
