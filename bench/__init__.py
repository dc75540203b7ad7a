"""Experiments around stickyroute: scenarios, drivers of other routers, the data-plane cost rig, dated results.

May import stickyroute; stickyroute never imports this.
"""
