"""Spark's part: the task that loads a range, and the loop that drives a lane."""
