"""What a scrape of /metrics costs."""
