"""Logged play: episodes that were played before and written down, to learn from without playing."""
