"""The Delta log as the commit point: commit protocol, ledger, side tables, files, schema."""
