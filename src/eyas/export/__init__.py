"""Checkpoint -> a folder that an engine loads; and such a folder read back."""
