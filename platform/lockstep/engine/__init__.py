"""The ordered batch: planned purely, run as one Spark job, committed by the driver loop."""
