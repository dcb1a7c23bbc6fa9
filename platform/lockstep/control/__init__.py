"""Files of a stream's control folder: heartbeats, and requests to its writer."""
