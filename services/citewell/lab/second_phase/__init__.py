"""Trains and measures the second phase of HYBRID: the features and the model are those of the index."""
