"""The part of the engine that runs in a Python worker of an executor."""
