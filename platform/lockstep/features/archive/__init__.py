"""The archive of a stream: its messages as Kafka had them, for longer than Kafka keeps them."""
