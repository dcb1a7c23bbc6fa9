"""Session state: loaded lazily, saved as durable changelog files, with a cache on local disk."""
