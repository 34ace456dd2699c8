"""Files that a Protobuf schema may import without anybody giving them, besides Google's well-known
types, which protoc brings along: serializers neither register them nor name them as references.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib import import_module

from google.protobuf.descriptor_pb2 import FileDescriptorProto

_IMPORT = re.compile(r"""\bimport\s+(?:(?:public|weak|option)\s+)?["']([^"']+)["']""")
#: By the folder of the file: the package that has it compiled, with its name in it.
_PACKAGES = {
    "confluent": "confluent_kafka.schema_registry.confluent",
    "confluent/type": "confluent_kafka.schema_registry.confluent.type",
    "confluent/types": "confluent_kafka.schema_registry.confluent.types",
    "google/type": "google.type",
}


def imports_of(text: str) -> Iterable[str]:
    """What a .proto text imports; perhaps more, as what a comment of it says."""
    return _IMPORT.findall(text)


def built_in(imported: Iterable[str], given: Mapping[str, str]) -> list[FileDescriptorProto]:
    """Those of the imported files, and of what they import, that are not given and need not be."""
    found: dict[str, FileDescriptorProto] = {}
    waiting = list(imported)
    while waiting:
        path = waiting.pop()
        file = None if path in found or path in given else _compiled(path)
        if file is not None:
            found[path] = file
            waiting += file.dependency
    return list(found.values())


def _compiled(path: str) -> FileDescriptorProto | None:
    folder, _, name = path.rpartition("/")
    package = _PACKAGES.get(folder)
    if package is None or not name.endswith(".proto"):
        return None
    try:
        module = import_module(f"{package}.{name.removesuffix('.proto')}_pb2")
    except ImportError:
        return None
    return FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
