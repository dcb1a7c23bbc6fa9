"""Copies of a whole stream: backup and restore, savepoints that move to another root or another cluster."""
