"""How much a second copy of a prefix should cost: ways to say it, compared in virtual time."""
