"""Retention of rows and messages, and the housekeeping that deletes files which no version needs."""
