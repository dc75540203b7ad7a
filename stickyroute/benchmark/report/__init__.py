"""What is shown of runs: a terminal table, a JSON file, one HTML page that needs nothing else.

`document` is the value all three are made of; `table`, `page` and `charts` only render it.
"""
