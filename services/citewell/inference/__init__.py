"""Transformer graphs on a CPU, without torch: for the profiler's encoder and the reranker's in-process scorer."""
