"""The optional compiled part. Without a C compiler the rest is installed; the reader "wire"
then says what it lacks."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "sluice.kafka.wire._batches",
            sources=["sluice/kafka/wire/batches.c"],
            extra_compile_args=["-std=gnu11", "-O3"],
            optional=True,
        )
    ]
)
