"""Independent gates of the proof, one for each integrity class."""
