"""Plan: what should run where, decided by pure functions from facts and configuration."""
