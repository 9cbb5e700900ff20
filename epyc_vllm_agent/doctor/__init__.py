"""Judges a host: pure checks over what was seen, one subject a module; `look` sees."""
