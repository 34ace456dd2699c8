"""What the first bytes of a value say that its format does not expect."""

from __future__ import annotations

from dataclasses import replace

from sluice.decode.messages.fault import Fault

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
