"""What proves that routing pays: workloads, a replay in virtual time, a load generator, comparisons, reports.

    prompts      a prompt as a chain of seeded parts: its blocks for a cache, its text for a real request
    workloads    seeded streams of requests, one file each, and readers of public traces
    replay       workload x policy x simulated engines in one process, no sockets, deterministic by seed
    client, load the same workloads over HTTP, open loop, against any OpenAI-compatible address
    single       a workload against one address
    compare      each router in turn in front of the same simulated fleet, cold caches, interleaved repeats
    knee         the largest load a policy can bear, and runs at multiples of it
    results      what a run yields, and summaries over runs; `report` turns them into tables and pages
    demo         `stickyroute demo`

Below the command line and beside `app`, which the demo and the comparison start. The product never imports
this.
"""
