"""What is shown of runs: a terminal table, a JSON file, one HTML page that needs nothing else, and a page of
documentation in Markdown.

`document` is the value all of them are made of; `table`, `page`, `markdown` and `charts` only render it.
"""
