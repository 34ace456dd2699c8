"""From .proto texts to descriptors, by protoc, which knows all of the language."""

from __future__ import annotations

import base64
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from sluice.core.errors import TransientError
from sluice.decode.schema.headed import UnsupportedSchemaError

MAIN_FILE = "sluice_main.proto"
_PROTOC_SECONDS_MAX = 60


def compile_files(files: Mapping[str, str], main: str) -> bytes:
    """A FileDescriptorSet of a file and all that it imports, made by protoc.

    :param files: texts by import path, or FileDescriptorProtos in base64, which serializers
        register in place of texts; Google's well-known types need not be among them.
    :raises UnsupportedSchemaError: protoc refuses them.
    :raises TransientError: protoc cannot be run.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-protoc-") as folder:
        compiled = FileDescriptorSet()
        for path, text in files.items():
            parts = PurePosixPath(path).parts
            if not parts or ".." in parts or path.startswith("/"):
                raise UnsupportedSchemaError(f"{path!r} is no import path")
            descriptor = _descriptor_in(text)
            if descriptor is not None:
                # Others import it by the name that it was registered under.
                descriptor.name = path
                compiled.file.append(descriptor)
                continue
            target = Path(folder, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        output = Path(folder, "sluice.descriptors")
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", "--include_imports"]
        if compiled.file:
            given = Path(folder, "sluice.given")
            given.write_bytes(compiled.SerializeToString())
            command.append(f"--descriptor_set_in={given}")
        command += [f"--descriptor_set_out={output}", main]
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=_PROTOC_SECONDS_MAX, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise TransientError(
                f"protoc cannot be run: {error}", "Look at the machine's memory and processes."
            ) from error
        if done.returncode or not output.exists():
            said = done.stderr.decode(errors="replace").replace(f"{folder}/", "").strip()
            said = said.replace(f"{MAIN_FILE}:", "line ").replace("\n", "; ")
            raise UnsupportedSchemaError(f"the Protobuf schema cannot be read: {said}")
        return output.read_bytes()


def _descriptor_in(text: str) -> FileDescriptorProto | None:
    """A file's descriptor in base64; None: the text is something else, as a .proto is."""
    try:
        descriptor = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except Exception:  # the library has several for what it cannot parse
        return None
    return descriptor if descriptor.message_type or descriptor.enum_type else None


def read_descriptors(text: str) -> bytes:
    """A FileDescriptorSet in base64.

    :raises UnsupportedSchemaError: it is none.
    """
    try:
        raw = base64.b64decode(text, validate=True)
        if not FileDescriptorSet.FromString(raw).file:
            raise ValueError("no file in it")
    except Exception as error:  # the library has several for what it cannot parse
        raise UnsupportedSchemaError(f"no descriptor set in base64: {error}") from error
    return raw
