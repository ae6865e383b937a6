"""`tidemill demo`: a separate server, a live auction house in the terminal, and proof at every read.

`run` is the command, `server` the process that it starts, `loops` the queries, `proof` the checks of the
answers, `screen` the display.
"""
