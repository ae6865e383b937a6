"""Protobuf schema compiler: uses protoc to compile schemas in text form, as registries store them.

protoc runs as a separate process, in a folder that contains only the files of the schema. It reports errors
in the schema, and a failure affects nothing else.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import grpc_tools

from tidemill.decode.avro.schema import SchemaError
from tidemill.errors import Unavailable

# A schema compiles in a fraction of a second, most of which is Python's start.
COMPILE_SECONDS = 60
_MAIN = "schema.proto"


def compiled(text: str, references: Mapping[str, str]) -> bytes:
    """The FileDescriptorSet of a schema; its own file is last. `references` are the imported files, by the
    names in the import; Google's types need none. Raises SchemaError."""
    with tempfile.TemporaryDirectory(prefix="tidemill-protoc-") as folder:
        main = _MAIN
        while main in references:
            main = f"_{main}"
        for name, content in {**references, main: text}.items():
            path = Path(folder) / _inside(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        target = Path(folder) / "out" / "descriptors"
        target.parent.mkdir()
        well_known = os.path.join(os.path.dirname(grpc_tools.__file__), "_proto")
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"-I{well_known}"]
        command += ["--include_imports", f"--descriptor_set_out={target}", main]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=COMPILE_SECONDS, cwd=folder, check=False
            )
        except subprocess.TimeoutExpired:
            raise Unavailable(f"the Protobuf compiler took more than {COMPILE_SECONDS} seconds") from None
        if done.returncode != 0:
            said = done.stderr.replace(folder, "").strip()[:1000]
            raise SchemaError("Protobuf schema cannot be compiled", detail=said or None)
        return target.read_bytes()


def _inside(name: str) -> PurePosixPath:
    """A file name that stays within the folder."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\0" in name or path.parts[:1] == ("out",):
        raise SchemaError(f'Protobuf schema refers to a file named "{name}"')
    return path
