"""What clients say in OpenAI's and Anthropic's dialects: routes, request bodies, error bodies, model lists.

Owns the reading of a copy of the request, only as far as routing needs it. Pure: no sockets, no clock, no
chance, no log; the bytes themselves are forwarded as they came.
"""
