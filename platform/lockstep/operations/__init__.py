"""What an operator commands: resume a halted stream, close an hour, see where a stream stands."""
