"""The user's code as a run executes it: an immutable copy, named by the digest of its contents."""
