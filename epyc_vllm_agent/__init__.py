"""vLLM endpoints as services of an AMD EPYC host."""

__version__ = "0.1.0"
