"""The commands of `lockstep`: each asks an operation and prints its answer; no logic."""
