"""Pure decisions: which key a request has, where the ring puts it, which backend takes it, whether to retry.

Owns no state that outlives a choice, save the rotation kept with each view and the retry budget. The random
source is an argument; there is no clock, no socket and no log here.
"""
