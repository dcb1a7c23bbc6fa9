"""Session state: folded lazily, saved as durable changed-entry files, with a hot copy on local disk."""
