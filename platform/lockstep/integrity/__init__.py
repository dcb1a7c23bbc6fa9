"""The five integrity classes as pure gates: no Spark, no Kafka, no clock."""
