"""Releases: named copies of the user's code, of which one is current."""
