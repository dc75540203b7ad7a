"""Long or wide runs that look for leaks and stalls rather than for speed."""
