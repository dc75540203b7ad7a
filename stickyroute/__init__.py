"""stickyroute: a cache-aware load balancer and reverse proxy for fleets of vLLM and SGLang engines."""

__version__ = "0.1.0"
