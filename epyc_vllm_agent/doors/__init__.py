"""The outside world, one door per thing; each is the only importer of its library."""
