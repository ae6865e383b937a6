"""FROM FILES: makes the definition of a file source from the statement.

With ENVELOPE MATERIALIZE here, else in `folders`. The folder must be below `files_root`. It must exist,
unless VALIDATE = false; an empty folder gives a notice. FORMAT AVRO without USING takes the schema from a
file, so it needs at least one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tidemill.catalog.sidecars import MATERIALIZE
from tidemill.cdcv2.wording import sentence
from tidemill.decode.stream import stream_shape
from tidemill.engine.ddl.upstreams.described import DescribeContext, Described
from tidemill.engine.ddl.upstreams.folder_check import look_into
from tidemill.engine.ddl.upstreams.folders import describe_folder
from tidemill.errors import (
    InvalidValue,
    SyntaxError_,
    TidemillError,
    UndefinedObject,
    Unsupported,
)
from tidemill.files_root import below_root
from tidemill.sources.definition import FILES
from tidemill.sources.files.form import avro_header
from tidemill.sources.files.reader import WORDS
from tidemill.sources.files.source import KILOBYTES, found_in
from tidemill.sources.stream_rows import stream_output
from tidemill.sql import ast
from tidemill.sql.parser.envelopes.materialize import Materialize
from tidemill.sql.parser.upstreams.files import Files


def describe_files(statement: ast.CreateSource, files: Files, context: DescribeContext) -> Described:
    folder = below_root(context.files_root, files.path)
    said = statement.messages
    if not isinstance(said.envelope, Materialize):
        return describe_folder(statement, files, context)
    if files.matching is not None or files.compression is not None:
        raise Unsupported(
            "MATCHING and COMPRESSION are not possible with ENVELOPE MATERIALIZE",
            detail="A CDCv2 stream is all files of its folder.",
            position=files.offset + 1,
        )
    if statement.tables is not None:
        raise Unsupported("FOR TABLES is not possible: a folder of files has no tables")
    if said.value is None:
        raise Unsupported(
            "ENVELOPE MATERIALIZE needs FORMAT AVRO or FORMAT JSON",
            position=said.envelope.offset + 1,
        )
    if said.key is not None or said.include:
        raise SyntaxError_("KEY FORMAT and INCLUDE are not possible with ENVELOPE MATERIALIZE")
    if said.on_error is not None and said.on_error.dead_letter:
        raise Unsupported("ON ERROR DEAD LETTER is not possible for files", position=said.on_error.offset + 1)
    spec: dict[str, Any] = {
        "name": folder.name,
        "envelope": {"kind": MATERIALIZE},
        "value": _format(said.value, said.envelope.components, folder),
    }
    output = stream_output(spec, WORDS)
    definition = {"kind": FILES, "path": files.path, "output": spec, "started": context.started}
    notices = look_into(folder, files.path, context) if statement.validate else ()
    return Described(
        FILES, f'folder "{files.path}"', definition, KILOBYTES, (output,), MATERIALIZE, notices=notices
    )


def _format(form: ast.Format, components: int | None, folder: Path) -> dict[str, Any]:
    more = {} if components is None else {"components": components}
    found = {"format": "json", **more}
    match form:
        case ast.PlainFormat("JSON"):
            schema = None
        case ast.PlainFormat("AVRO"):
            schema = _schema_in(folder)
        case ast.AvroSchema(schema):
            pass
        case ast.AvroRegistry():
            raise Unsupported(
                "files have their schema with them: there is no registry to ask",
                hint="Write FORMAT AVRO, or FORMAT AVRO USING SCHEMA '...'.",
                position=form.offset + 1,
            )
        case _:
            schema = ""
    if schema is not None:
        found = {"format": "avro", "schema": schema, "framed": False, "registry": None, **more}
    try:
        stream_shape({"format": "another"} if schema == "" else found)
    except TidemillError as e:
        e.position = form.offset + 1
        raise
    return found


def _schema_in(folder: Path) -> str:
    """The schema of the first file in the folder."""
    for name, _ in found_in(folder):
        try:
            with open(folder / name, "rb") as file:
                return avro_header(file).schema
        except OSError as e:
            raise InvalidValue(f'file "{name}" cannot be read', detail=sentence(e)) from None
        except InvalidValue as e:
            e.primary = f'"{name}" is no Avro file'
            raise
    raise UndefinedObject(
        f'folder "{folder.name}" has no files to take the schema from',
        detail=None if os.path.isdir(folder) else "It does not exist.",
        hint="Write FORMAT AVRO USING SCHEMA '...', or make the source when there is a file.",
    )
