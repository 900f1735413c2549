"""Conversations -> token rows: rendering and masks."""
