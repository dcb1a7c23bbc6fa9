"""Many streams in one driver process, with one Spark and a thread for each stream."""
