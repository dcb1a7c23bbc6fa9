"""What a user writes: streams, topics, transforms, decoders, triggers, limits; checked when declared."""
