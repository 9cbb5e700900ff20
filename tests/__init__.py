"""The project's tests; `tests/run` starts them."""
