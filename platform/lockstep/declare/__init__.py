"""The declarations of a user: streams, topics, transforms, decoders, triggers, limits; checked when declared."""
