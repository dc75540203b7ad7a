"""What the router remembers takes no more memory after a million prompts: `python -m bench.memory`."""
