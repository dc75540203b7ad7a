"""Background tasks that look at the backends and tell the fleet what they saw.

Each runs under the supervisor. They use the aiohttp client, reach the fleet only through its `record_*`
methods, and know nothing of the data plane: the two are blind to each other.
"""
