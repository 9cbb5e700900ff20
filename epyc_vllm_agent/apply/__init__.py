"""Apply: carries changes out under a lock, and takes them back where they fail."""
