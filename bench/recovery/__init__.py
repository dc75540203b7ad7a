"""What a change of the fleet or a surge costs, and for how long: `python -m bench.recovery`."""
