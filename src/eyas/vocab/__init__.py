"""Corpus -> draft vocabulary."""
