"""Copies of a whole stream: backup and restore, savepoints that move to another root or cluster, rebuilt state."""
