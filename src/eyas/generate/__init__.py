"""Prompts -> the target's answers."""
