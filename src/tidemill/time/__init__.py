"""Time: frontiers over total and product orders, the clocks of the machine, the oracle that hands out
timestamps.

Called by everything that reads or writes at a time. Promises: frontiers are pure values; the oracle's times
never go back, whatever the wall clock does and however often the process dies (I6).
"""
