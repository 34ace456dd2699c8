"""How the messages of a text format stand behind each other, and what is proven of each.

A buffer joins messages with newlines. What may be joined so that the engine's rows are the
messages differs by format; what is not sound is set aside before the engine sees it. What its first
bytes say that its format does not expect goes into the words about it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np

from sluice.decode.messages.brackets import (
    ARRAYS,
    JSON_WHITESPACE,
    OBJECTS,
    Mask,
    Positions,
    bracket_faults,
)
from sluice.decode.messages.fault import NOT_ONE_OBJECT, NOT_ONE_ROW, Fault

#: By what compressed values begin with. A raw block of snappy begins with its size.
COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
}
_NOT_READ = {b"BZh": "bzip2", b"x\x9c": "zlib", b"x\xda": "zlib", b"\xfd7zXZ\x00": "xz"}
_SNAPPY_STREAMS = (b"\x82SNAPPY\x00", b"\xff\x06\x00\x00sNaPpY")
_FILES = {
    b"Obj\x01": "an Avro file, which is format Avro",
    b"\xc3\x01": "a single object of Avro, which is format AvroSingleObject",
    b"PAR1": "a Parquet file, which is format Parquet",
    b"ARROW1": "an Arrow file, which is format Arrow",
    b"ORC": "an ORC file, which is format ORC",
}
_UTF_16 = "text in UTF-16; write it in UTF-8"
_REGISTRY_BYTES = 5


def begins_like(value: bytes) -> str:
    """What a value looks like by its first bytes, and what to do; "" if they say nothing."""
    for head, name in COMPRESSED.items():
        if value.startswith(head):
            return f'{name}; set decompress = "{name}" in [[table]]'
    for head, name in _NOT_READ.items():
        if value.startswith(head):
            return f"{name}, which decompress does not read; use gzip, zstd, lz4 or snappy"
    if value.startswith(_SNAPPY_STREAMS):
        return 'a stream of snappy; decompress = "snappy" takes one raw block for each message'
    for head, name in _FILES.items():
        if value.startswith(head):
            return name
    if value.startswith((b"\xff\xfe", b"\xfe\xff")):
        return _UTF_16
    if len(value) > 1 and 0 in value[:2] and value[:2].strip(b"\0") in (b"{", b"["):
        return _UTF_16
    if value[:2] == b"\0\0" and len(value) >= _REGISTRY_BYTES:
        number = int.from_bytes(value[1:_REGISTRY_BYTES], "big")
        if value[_REGISTRY_BYTES:].lstrip()[:1] in (b"{", b"["):
            return f"JSON with a registry's header (schema {number}), which is format JSONConfluent"
        return (
            f"a message with a registry's header (schema {number}), which is format AvroConfluent "
            "or ProtobufConfluent"
        )
    return ""


def looks_like(value: bytes) -> str:
    """The same where JSON is not expected."""
    is_json = value[:2] in (b'{"', b"[{")
    return "JSON, which is format JSONEachRow" if is_json else begins_like(value)


def in_words(fault: Fault, value: bytes) -> Fault:
    """A fault of a message that is not to be JSON, and what the message looks like, if it shows."""
    like = looks_like(value)
    return replace(fault, error=f"{fault.error}: it begins like {like}") if like else fault


BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Framing:
    """The tests of a format. All of them are functions of each message alone.

    :param kind: what each message is, OBJECTS or ARRAYS of `brackets`. Empty: nothing is known, and
        nothing is joined for the engine: the decoder takes messages singly or frames them anew.
    """

    kind: bytes = b""

    @property
    def inspects_digits(self) -> bool:
        """Whether numbers are written as text, so that too long ones have to be found."""
        return bool(self.kind)

    def faults(self, chunk: bytes | memoryview, starts: Positions, ends: Positions) -> Mask:
        """True for each message that must not be joined."""
        if not self.kind:
            return np.zeros(len(starts), np.bool_)
        return bracket_faults(chunk, starts, ends, self.kind)

    def explain(self, value: bytes) -> Fault:
        """What is wrong with a message that `faults` names."""
        reason = NOT_ONE_OBJECT if self.kind == OBJECTS else NOT_ONE_ROW
        noun = "JSON object" if self.kind == OBJECTS else "JSON array"
        opening = self.kind[:1].decode()
        text = value.strip(JSON_WHITESPACE)
        if not text:
            what = "the message is empty"
        elif text.startswith(BYTE_ORDER_MARK):
            what = "the message starts with a byte order mark"
        elif text.startswith(b"[") and self.kind == OBJECTS:
            what = "the message is an array"
        elif text.startswith(b"{") and self.kind == ARRAYS:
            what = "the message is an object"
        elif text.startswith(b"[") and text[1:].strip(JSON_WHITESPACE) == b"]":
            what = "the array is empty"
        elif begins_like(value):
            what = f"the message is not one {noun}: it begins like {begins_like(value)}"
        elif not text.startswith(self.kind[:1]):
            what = f"the message does not start with {opening}"
        else:
            try:
                json.loads(text)
                what = f"the message is not one {noun}"
            except RecursionError:
                what = f"the message is not one {noun}: it is nested too deeply"
            except ValueError as error:
                what = f"the message is not one {noun}: {error}"
        return Fault(reason, what)


JSON_OBJECTS = Framing(OBJECTS)
JSON_ARRAYS = Framing(ARRAYS)
BYTES = Framing()
