"""Erasure of one session from rows, state, ledger, quarantine and late table."""
