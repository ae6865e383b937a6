"""FROM FILES: a folder whose files are rows, by lines or as a whole."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

from tidemill.catalog.items import Source
from tidemill.engine.ddl.upstreams.described import DescribeContext, Described
from tidemill.engine.ddl.upstreams.folder_check import look_into
from tidemill.engine.ddl.upstreams.messages import DescribedOutput
from tidemill.engine.ddl.upstreams.objects import (
    FirstObject,
    check_chosen,
    describe_object_output,
    expect_reference,
)
from tidemill.errors import Unsupported
from tidemill.files_root import below_root
from tidemill.sources.contract import OutputDefinition
from tidemill.sources.definition import FILES
from tidemill.sources.files.source import found_in
from tidemill.sources.objects.contents import is_tailed
from tidemill.sources.objects.folder import FolderStore
from tidemill.sources.objects.layout import GAUGE
from tidemill.sources.objects.patterns import pattern
from tidemill.sql import ast
from tidemill.sql.parser.upstreams.files import Files


def describe_folder(statement: ast.CreateSource, files: Files, context: DescribeContext) -> Described:
    folder = below_root(context.files_root, files.path)
    if statement.tables is not None:
        raise Unsupported("FOR TABLES is not possible: a folder of files has no tables")
    chosen = check_chosen(files.matching, files.compression)
    notices = look_into(folder, files.path, context) if statement.validate else ()
    specs: list[dict[str, Any]] = []
    outputs: list[OutputDefinition] = []
    if statement.messages.silent:
        tailed = True
    else:
        first = _first(folder, chosen)
        spec, output = describe_object_output(folder.name, statement.messages, context, first)
        specs, outputs, tailed = [spec], [output], is_tailed(spec["value"])
    definition = {
        "kind": FILES,
        "path": files.path,
        **chosen,
        "tailed": tailed,
        "outputs": specs,
        "started": context.started,
    }
    label = f'folder "{files.path}"'
    envelope = specs[0]["envelope"]["kind"] if specs else None
    return Described(FILES, label, definition, GAUGE, tuple(outputs), envelope, notices=notices)


def describe_folder_table(
    source: Source, statement: ast.CreateTableFromSource, context: DescribeContext
) -> DescribedOutput:
    """The output that a table adds to its source."""
    definition: dict[str, Any] = json.loads(source.definition)
    path = str(definition["path"])
    if "outputs" not in definition:
        raise Unsupported(
            f'source "{source.name}" reads a CDCv2 stream, which is one relation',
            position=statement.source.offset + 1,
        )
    expect_reference(source, statement, path)
    folder = below_root(context.files_root, path)
    first = _first(folder, definition)
    spec, output = describe_object_output(path, statement.messages, context, first)
    if definition["tailed"] and not is_tailed(spec["value"]):
        raise Unsupported(
            f'source "{source.name}" reads files line by line, as they grow',
            hint="Create another source for files that are read as a whole.",
            position=statement.source.offset + 1,
        )
    return DescribedOutput(spec, output, ())


def _first(folder: Path, chosen: dict[str, Any]) -> FirstObject:
    return FirstObject(
        FolderStore(os.path.realpath(folder)),
        chosen["compression"],
        partial(_name, folder, chosen["matching"]),
    )


def _name(folder: Path, glob: str | None) -> str | None:
    wanted = None if glob is None else pattern(glob)
    names = (n for n, stat in found_in(folder) if stat.size and (wanted is None or wanted.fullmatch(n)))
    return next(names, None)
