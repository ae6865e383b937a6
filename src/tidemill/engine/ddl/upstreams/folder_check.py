"""Checks the folder of a FROM FILES clause: a path may be mistyped."""

from __future__ import annotations

import os
from pathlib import Path

from tidemill.engine.ddl.upstreams.described import DescribeContext
from tidemill.errors import Notice, UndefinedObject, WrongObjectType
from tidemill.sinks.definition import Definition
from tidemill.sources.files.source import found_in


def look_into(folder: Path, path: str, context: DescribeContext) -> tuple[Notice, ...]:
    """Checks that the path exists and is readable, as it may be mistyped. Raises if not."""
    here = f"It is taken from the folder files_root on, which is {context.files_root}."
    if not os.path.lexists(folder):
        raise UndefinedObject(
            f'folder "{path}" does not exist',
            hint=f"{here} For a folder that comes later, WITH (VALIDATE = false) does without it.",
        )
    if not os.path.isdir(folder):
        raise WrongObjectType(f'"{path}" is not a folder', hint="Name the folder that the files are in.")
    if next(found_in(folder), None) is not None or _written_to(folder, context):
        return ()
    return (Notice(f'folder "{path}" has no files yet', detail="What appears in it is read.", hint=here),)


def _written_to(folder: Path, context: DescribeContext) -> bool:
    """Whether a sink of this server writes there and has not created the folder yet."""
    root = os.path.realpath(context.files_root)
    paths = (Definition.of(sink).path for sink in context.catalog.sinks())
    return any(path is not None and os.path.join(root, path) == str(folder) for path in paths)
