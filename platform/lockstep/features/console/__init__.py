"""A live page of all streams in a browser."""
