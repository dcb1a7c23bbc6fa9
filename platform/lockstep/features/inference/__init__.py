"""Inference of a stream from the messages of a topic: `lockstep new NAME --from TOPIC`."""
