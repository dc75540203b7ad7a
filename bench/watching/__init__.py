"""What looking at many backends costs the proxy's process."""
