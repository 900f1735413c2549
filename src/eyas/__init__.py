"""Eyas trains EAGLE-3 drafters: from prompts to a measured speed-up."""

__version__ = "0.1.0"
