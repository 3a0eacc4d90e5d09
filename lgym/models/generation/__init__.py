"""Batched sampling of responses, token by token."""
