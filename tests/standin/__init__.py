"""A stand-in for an environment with vLLM: the same command and answers, in a second."""
