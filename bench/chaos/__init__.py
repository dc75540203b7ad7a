"""A bad day, made to order: engines die, hang, fill up, lie and move under load, configurations change, and the proxy's
own replicas are told to stop. What is lost, what is answered twice, and how soon each fault is noticed.
"""
