"""From environments to rollouts: the collector and what it is made of."""
