"""What a router costs per byte moved: `python -m bench.dataplane`.

A fake fleet (`fleet`), a load generator (`load`) and the router under test each run in a process of their
own; `rig` starts them, drives every router through the same phases in turn, and repeats; `report` turns the
samples into medians and ratios. A router is known only by its launcher in `bench.drivers`.
"""
