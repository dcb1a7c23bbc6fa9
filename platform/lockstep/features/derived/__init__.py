"""Derived tables: tables that follow the committed rows of streams."""
