"""Arrangements: the rows of a collection by the hash of a key, at the times that their readers still need.

Followers of queries look up the rows of the keys that changed (`subscribe`). An arrangement is a cache of a
collection: it can be lost at any moment, and is built again.
"""

from tidemill.arrangements.arrangement import Arrangement, ArrangementLost
from tidemill.arrangements.contents import DiskFull
from tidemill.arrangements.fill import Filling
from tidemill.arrangements.keys import key_hash
from tidemill.arrangements.store import ArrangementFacts, Arrangements, ArrangementsOf

__all__ = [
    "Arrangement",
    "ArrangementFacts",
    "ArrangementLost",
    "Arrangements",
    "ArrangementsOf",
    "DiskFull",
    "Filling",
    "key_hash",
]
