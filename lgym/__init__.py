"""Online reinforcement learning of language-model agents in any Gymnasium environment, on PyTorch Lightning."""

__version__ = "0.1.0"
