"""DAVINCI: the reranker's model, its training on a leak-free view of the data, and its evaluation."""
