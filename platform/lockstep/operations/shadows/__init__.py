"""Shadows: a changed stream that runs along with the old one, is compared with it and promoted."""
