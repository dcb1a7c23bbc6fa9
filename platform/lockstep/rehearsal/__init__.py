"""Things to rehearse with: a real Kafka of one's own, recorded and made messages, a producer."""
