"""Commands that talk to a running stickyroute over its admin port: drain and its kin, and top.

They use the standard library alone, so that they start at once. Knows nothing of how the proxy works.
"""
