"""The part of the engine that runs on the driver."""
