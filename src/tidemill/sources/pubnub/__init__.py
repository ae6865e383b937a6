"""PubNub: messages of channels, received by long poll and kept in an inbox here.

`receiver` asks the service, `catch_up` finds what a subscriber missed, `inbox` makes what was received
durable, `source` gives it times, and `reader` reads ranges of the inbox in the tasks.
"""
