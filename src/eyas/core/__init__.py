"""The vocabulary and the ground rules. Imports nothing else of eyas."""
