"""INTO FILES: a folder below `files_root`. The statement creates it and checks that it is writable."""

from __future__ import annotations

import os
from dataclasses import replace

from tidemill.engine.ddl.sink_targets.place import check_files
from tidemill.engine.ddl.sink_targets.request import SinkRequest, refuse_key
from tidemill.errors import TidemillError, Unsupported
from tidemill.files_root import below_root
from tidemill.sinks.definition import AVRO, FILES, MATERIALIZE, Definition
from tidemill.sql.parser.sink_targets.files import IntoFiles


def describe_into_files(target: IntoFiles, request: SinkRequest) -> Definition:
    if request.statement.envelope != MATERIALIZE.upper():
        raise Unsupported(
            f"ENVELOPE {request.statement.envelope} is not supported by a sink into files",
            hint="Write ENVELOPE MATERIALIZE, or make the sink INTO KAFKA.",
        )
    refuse_key(request)
    form, said = request.format(), request.statement.format
    if form == AVRO and said.registry is not None:
        raise Unsupported(
            "a schema registry is not supported by a sink into files",
            hint="Write FORMAT AVRO alone: each file has the schema in it.",
            position=said.offset + 1,
        )
    found = Definition(FILES, form, share=request.share())
    root = request.external.files_root
    try:
        folder = below_root(root, target.path)
        found = replace(found, path=os.path.relpath(folder, os.path.realpath(root)))
        check_files(folder, target.path, request.beginning(found), request.wished(form, None))
    except TidemillError as e:
        e.position = target.offset + 1
        raise
    return found
