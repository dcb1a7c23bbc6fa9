"""Local Kafka, the demo and the live platform."""
