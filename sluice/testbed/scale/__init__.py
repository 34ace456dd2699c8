"""What a pipeline costs at a size that nobody has at hand: a model with measured constants."""
