"""Settings of PostgreSQL that scripts and tools often set, and that change no answer here.

`variables` makes session variables of them: values are checked as in PostgreSQL, stored and shown. If another
value would change the behaviour of a statement, only the value in effect is accepted. A setting that is not
listed stays unknown (42704).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

MAX_FLOAT = sys.float_info.max

# How a query is planned and run: Spark decides. Settings of functions and triggers: neither exists.
BOOLEANS: Mapping[str, str] = {
    "check_function_bodies": "on",
    "default_transaction_deferrable": "off",
    "enable_bitmapscan": "on",
    "enable_hashagg": "on",
    "enable_hashjoin": "on",
    "enable_indexonlyscan": "on",
    "enable_indexscan": "on",
    "enable_material": "on",
    "enable_mergejoin": "on",
    "enable_nestloop": "on",
    "enable_seqscan": "on",
    "enable_sort": "on",
    "escape_string_warning": "on",
    "geqo": "on",
    "jit": "off",
    "row_security": "on",  # there are no policies
    "transaction_deferrable": "off",
}
# Nothing waits for a lock.
DURATIONS: Mapping[str, str] = {"lock_timeout": "0"}
# Default, minimum and maximum.
INTEGERS: Mapping[str, tuple[int, int, int]] = {
    "default_statistics_target": (100, 1, 10_000),
    "from_collapse_limit": (8, 1, 2**31 - 1),
    "join_collapse_limit": (8, 1, 2**31 - 1),
    "max_parallel_maintenance_workers": (2, 0, 1024),
    "max_parallel_workers_per_gather": (2, 0, 1024),
}
# Default and greatest.
NUMBERS: Mapping[str, tuple[str, float]] = {
    "cpu_tuple_cost": ("0.01", MAX_FLOAT),
    "cursor_tuple_fraction": ("0.1", 1),
    "random_page_cost": ("4", MAX_FLOAT),
    "seq_page_cost": ("1", MAX_FLOAT),
}
SIZES: Mapping[str, str] = {"maintenance_work_mem": "64MB", "work_mem": "4MB"}
# The default, and the values in PostgreSQL's order.
CHOICES: Mapping[str, tuple[str, ...]] = {
    "constraint_exclusion": ("partition", "partition", "on", "off"),
    "plan_cache_mode": ("auto", "auto", "force_generic_plan", "force_custom_plan"),
    "session_replication_role": ("origin", "origin", "replica", "local"),  # there are no triggers
    # Every commit is durable before it is confirmed.
    "synchronous_commit": ("on", "local", "remote_write", "remote_apply", "on", "off"),
    "xmloption": ("content", "content", "document"),
}
