"""Style, types and spelling, held as tests."""
