"""`tidemill demo`: a server of its own, a live auction house in the terminal, and proof at every read.

`run` is the command, `server` the process that it starts, `loops` what is asked of it, `proof` what must be
true of the answers, `screen` what is shown.
"""
