"""Names of the AUCTION generator: organizations, people and things.

They are part of the rows of an event, so they never change after a release.
"""

from __future__ import annotations

import itertools

ORGANIZATIONS = [
    "Brackwater Trading",
    "Copper Lane",
    "Elm & Daughters",
    "Fourth Street Auctions",
    "Gull Rock Estates",
    "Harbour House",
    "Lantern Hall",
    "Marsh & Moor",
    "Old Quay",
    "Tidewright",
]

_FIRST_NAMES = ["Ada", "Bela", "Chidi", "Dora", "Emre", "Fatou", "Goro", "Hana", "Ivo", "Jun"]
_LAST_NAMES = [
    "Abara",
    "Brandt",
    "Castillo",
    "Dufour",
    "Eriksen",
    "Fujita",
    "Ghosh",
    "Horvat",
    "Ibsen",
    "Jansen",
]
# Neighbours differ in the first name: users are shown by their ids.
USERS = [f"{first} {last}" for last, first in itertools.product(_LAST_NAMES, _FIRST_NAMES)]

_QUALITIES = [
    "Antique",
    "Brass",
    "Carved",
    "Gilded",
    "Painted",
    "Rare",
    "Signed",
    "Silver",
    "Small",
    "Walnut",
]
_THINGS = ["Atlas", "Barometer", "Chair", "Clock", "Compass", "Lamp", "Mirror", "Sextant", "Vase", "Violin"]
ITEMS = [f"{quality} {thing}" for quality, thing in itertools.product(_QUALITIES, _THINGS)]
