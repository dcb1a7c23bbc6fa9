"""Health outside of the command line: exporter of metrics, webhook, health sensor and check."""
