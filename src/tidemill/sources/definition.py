"""Source definition: the form in which the catalog stores a source.

A definition is a plain dictionary in JSON: `kind`, the fields of the kind, and `started`, the time at which
the source was created. The engine creates it (`engine.ddl.upstreams`). `open_source` turns it into a source,
on any server of any later version. `SOURCES` lists the kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tidemill.errors import TidemillError
from tidemill.sources.contract import Definition, UpstreamError, UpstreamSource, unreadable_definition
from tidemill.sources.generators.definition import LOAD_GENERATOR, open_generator

__all__ = [
    "FILES",
    "KAFKA",
    "KINESIS",
    "LOAD_GENERATOR",
    "POSTGRES",
    "PUBNUB",
    "S3",
    "SOURCES",
    "Definition",
    "open_source",
]

KAFKA = "kafka"
FILES = "files"
POSTGRES = "postgres"
S3 = "s3"
KINESIS = "kinesis"
PUBNUB = "pubnub"


# Imports are in the functions: a process without such a source need not load its client and all decoders.


def _open_kafka(definition: Mapping[str, Any], files_root: str) -> UpstreamSource:
    from tidemill.sources.kafka.source import KafkaSource

    return KafkaSource(definition)


def _open_files(definition: Mapping[str, Any], files_root: str) -> UpstreamSource:
    from tidemill.sources.files.source import FilesSource
    from tidemill.sources.objects.folder_source import FolderSource

    opened = FilesSource if "output" in definition else FolderSource
    try:
        return opened(definition, files_root)
    except TidemillError as error:
        # The setting may be another one than it was.
        raise UpstreamError(error.primary, detail=error.detail, hint=error.hint) from error


def _open_postgres(definition: Mapping[str, Any], files_root: str) -> UpstreamSource:
    from tidemill.sources.postgres.source import PostgresSource

    return PostgresSource(definition)


def _open_s3(definition: Mapping[str, Any], files_root: str) -> UpstreamSource:
    from tidemill.sources.objects.bucket_source import BucketSource

    return BucketSource(definition)


def _open_kinesis(definition: Mapping[str, Any], files_root: str) -> UpstreamSource:
    from tidemill.sources.kinesis.source import KinesisSource

    return KinesisSource(definition)


def _open_pubnub(definition: Mapping[str, Any], files_root: str) -> UpstreamSource:
    from tidemill.sources.pubnub.source import PubNubSource

    return PubNubSource(definition)


# By the `kind` of a definition, and with `files_root`, the folder below which files may be read.
SOURCES: dict[str, Callable[[Mapping[str, Any], str], UpstreamSource]] = {
    LOAD_GENERATOR: open_generator,
    KAFKA: _open_kafka,
    FILES: _open_files,
    POSTGRES: _open_postgres,
    S3: _open_s3,
    KINESIS: _open_kinesis,
    PUBNUB: _open_pubnub,
}


def open_source(definition: Mapping[str, Any], files_root: str = "") -> UpstreamSource:
    """The source. Raises UpstreamError for a definition that this version cannot read: it stalls that source
    and no other."""
    kind = definition.get("kind")
    if kind not in SOURCES:
        raise unreadable_definition(f"There is no kind of source {kind!r}.")
    try:
        return SOURCES[kind](definition, files_root)
    except UpstreamError:
        raise
    except TidemillError as error:
        raise unreadable_definition(f"It says what cannot be: {error.primary}.") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise unreadable_definition(f"{type(error).__name__}: {error}.") from error
