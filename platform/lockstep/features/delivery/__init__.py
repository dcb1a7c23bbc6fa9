"""Deliveries: committed rows of streams written to targets outside of their tables."""
