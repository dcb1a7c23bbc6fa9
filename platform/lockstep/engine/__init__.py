"""The batch engine: pure planning, one Spark job per batch, one commit by the driver loop."""
