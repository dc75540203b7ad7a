"""What the pure part of a request costs: parse, key, decision. `python -m bench.decision` prints it."""
