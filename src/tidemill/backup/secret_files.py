"""The texts of secrets in a backup: files beside the data directory's shards (`catalog.secrets`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tidemill.catalog import codec
from tidemill.catalog.items import Secret
from tidemill.catalog.secrets import file_name
from tidemill.catalog.store import CATALOG_SHARD
from tidemill.errors import DataCorrupted
from tidemill.persist.blob import BlobMissing, Blobs
from tidemill.persist.log import ShardMissing
from tidemill.persist.shard import Shard

# Folders of a backup's archive.
LOGS, SECRETS = "logs", "secrets"


def secrets_at(blobs: Blobs, folder: Path | None) -> Iterator[tuple[str, bytes]]:
    """The names and contents of the files that the catalog of the store names."""
    for secret in _named(blobs):
        name = file_name(secret)
        try:
            if folder is None:
                raise FileNotFoundError
            yield name, (folder / name).read_bytes()
        except FileNotFoundError:
            # Dropped or altered meanwhile, or really missing: the next cut tells.
            raise DataCorrupted(
                f'the text of secret "{secret.name}" is missing',
                detail=f"There is no file {folder / name}." if folder else "No folder for secrets is set.",
                hint="Give the server's folder for secrets with --secrets-dir.",
            ) from BlobMissing(name)


def _named(blobs: Blobs) -> list[Secret]:
    try:
        catalog = Shard.open(blobs, CATALOG_SHARD, epoch=None)
    except ShardMissing:
        return []
    if not catalog.upper:
        return []
    with catalog.snapshot(catalog.upper - 1) as snapshot:
        table = snapshot.read()
    found: list[Secret] = []
    for row_id, body in zip(table.column("id").to_pylist(), table.column("body").to_pylist(), strict=True):
        if row_id[:1] in ("u", "s") and row_id[1:].isdigit():
            item = codec.decode(row_id, body)
            if isinstance(item, Secret):
                found.append(item)
    return found
