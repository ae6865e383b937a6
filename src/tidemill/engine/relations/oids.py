"""OIDs of catalog items, as clients see them."""

from __future__ import annotations

from tidemill.catalog.items import is_system

# Object ids of user items on the wire: PostgreSQL's first normal OID, plus the item's number.
FIRST_NORMAL_OID = 16384


def item_oid(item_id: str) -> int:
    """The OID of a catalog item: as stable as its id."""
    number = int(item_id[1:])
    return number if is_system(item_id) else FIRST_NORMAL_OID + number
