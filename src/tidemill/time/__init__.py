"""Time: frontiers over total and product orders, the clocks of the machine, and the timestamp oracle.

Called by all code that reads or writes at a time. Promises: frontiers are pure values. The times of the
oracle never go back, whatever the wall clock does and however often the process is killed (I6).
"""
