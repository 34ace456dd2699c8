"""A process that has the libraries in memory, and forks for each run: it saves most of its time.

It reads one request a line on stdin, and answers with two lines: the process id at once, and the
status at the end. It never imports the package or its tests: those differ from run to run.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import sys
from typing import Any

#: Those that start no threads when they are imported; the engine's does.
LIBRARIES = (
    "pytest",
    "_pytest.assertion.rewrite",
    "hypothesis",
    "numpy",
    "pandas",
    "pyspark.sql",
    "confluent_kafka.admin",
    "confluent_kafka.schema_registry",
    "kazoo.client",
    "prometheus_client",
    "clickhouse_connect",
    "asyncio",
    "multiprocessing.pool",
)


def main() -> None:
    """Until stdin ends."""
    _end_with_parent()
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _run(request)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _end_with_parent() -> None:
    """A run that is interrupted leaves no process behind."""
    set_signal_of_parents_death = 1
    ctypes.CDLL(None).prctl(set_signal_of_parents_death, signal.SIGKILL)


def _run(request: dict[str, Any]) -> None:
    """In the child: what `python -m` would do."""
    status = 1
    try:
        os.setsid()
        _end_with_parent()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.update(request["variables"])
        sys.argv = [request["module"], *request["arguments"]]
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
