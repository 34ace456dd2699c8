"""The optional compiled parts. Without a C compiler the rest is installed; the reader "wire"
then says what it lacks, and JSON, Avro and Protobuf are checked more slowly."""

from setuptools import Extension, setup

_ARGUMENTS = ["-std=gnu11", "-O3"]

setup(
    ext_modules=[
        Extension(name, sources=[source], extra_compile_args=_ARGUMENTS, optional=True)
        for name, source in (
            ("sluice.kafka.wire._batches", "sluice/kafka/wire/batches.c"),
            ("sluice.decode.schema._structure", "sluice/decode/schema/structure.c"),
            ("sluice.decode.messages._brackets", "sluice/decode/messages/brackets.c"),
            ("sluice.decode.messages._moments", "sluice/decode/messages/moments.c"),
        )
    ]
)
