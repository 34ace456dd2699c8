"""Looking at a pipeline from outside, and the decisions that a person takes."""
