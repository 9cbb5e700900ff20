"""Watch: readiness inside the start job, preflight before it, and the report of a failure."""
