"""Real vLLM on a socket of two NUMA nodes, emulated: a rank on each. About a quarter of an hour."""
