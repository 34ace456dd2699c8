"""PySpark's daemon, which forks the Python workers, with what all of them need loaded.

A worker loads 0.35 s of modules less then [measured], and so does one that takes the place of a
worker that died; and workers share the memory of it. The engine is not among them: it has threads,
and does not survive a fork.
"""

import gc
import importlib

from pyspark.daemon import manager

_LOADED = ("pyspark.worker", "sluice.spark.jobs", "sluice.worker.tasks")

if __name__ == "__main__":
    for name in _LOADED:
        importlib.import_module(name)
    # What is there stays: no collection of a worker looks at it, and writes into shared pages.
    gc.freeze()
    manager()
