"""Turns for supervised fine-tuning: demonstrations and the best episodes of the run."""
