"""What runs in a Python worker of an executor."""
