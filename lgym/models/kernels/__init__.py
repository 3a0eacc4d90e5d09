"""Fused autograd functions, and the precision of trainable parameters."""
