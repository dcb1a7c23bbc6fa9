"""What keeps a stream small: compaction, clean-up, retention, erasure, export, forgotten topics, growth."""
