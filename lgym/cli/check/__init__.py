"""`lgym check`: what the model will see, and whatever would make training useless, before any training."""

from lgym.cli.check.checkup import check

__all__ = ["check"]
