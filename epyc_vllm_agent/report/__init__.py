"""Reports: results as text for people or as versioned JSON."""
