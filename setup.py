"""The compiled parts, without which nothing is installed."""

import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, ExecError, PlatformError

_ARGUMENTS = ["-std=gnu11", "-O3"]

if sys.platform != "linux":
    sys.exit(
        f"sluice: it runs on Linux with glibc, and this is {sys.platform}\n"
        'Take the container: docs/DEPLOYMENT.md, "In a container"'
    )


class _BuildExtensions(build_ext):
    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except (CCompilerError, ExecError, PlatformError) as error:
            sys.exit(
                f"sluice: {ext.sources[0]} could not be compiled: {error}\n"
                "A build from source needs a C compiler (gcc or clang) with its headers, "
                "on Debian: apt-get install gcc libc6-dev"
            )


setup(
    cmdclass={"build_ext": _BuildExtensions},
    ext_modules=[
        Extension(name, sources=[source], extra_compile_args=_ARGUMENTS)
        for name, source in (
            ("sluice.kafka.wire._batches", "sluice/kafka/wire/batches.c"),
            ("sluice.decode.schema._structure", "sluice/decode/schema/structure.c"),
            ("sluice.decode.envelope._walk", "sluice/decode/envelope/walk.c"),
            ("sluice.decode.messages._brackets", "sluice/decode/messages/brackets.c"),
            ("sluice.decode.messages._quick_look", "sluice/decode/messages/quick_look.c"),
            ("sluice.decode.text._objects", "sluice/decode/text/objects.c"),
            ("sluice.claims._table", "sluice/claims/table.c"),
        )
    ],
)
