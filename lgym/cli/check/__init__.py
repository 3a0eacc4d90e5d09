"""`lgym check`: what the model will see, and whatever would make training useless, before any training."""
