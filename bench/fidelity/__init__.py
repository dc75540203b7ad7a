"""How true the simulated engine is: its step time against measured runs, and whether it keeps up with its
own clock."""
