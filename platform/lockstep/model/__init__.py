"""The vocabulary everybody shares: records, findings, column types, state types."""
