"""The workloads, one file each. See `base` for what they have in common."""
