"""The Parquet companion: closed hours of a table as a plain Parquet dataset, each written once."""
