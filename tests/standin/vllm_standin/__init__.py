"""Behaves as `vllm serve` 0.32.0 does on a CPU, without a model; see control.py for its faults."""

VERSION = "0.32.0"
