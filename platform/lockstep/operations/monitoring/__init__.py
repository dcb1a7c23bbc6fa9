"""What watches streams: health, its alarms, metrics, webhook."""
