"""The target behind small interfaces: answer and states (and later serve)."""
