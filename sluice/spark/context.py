"""The Spark context, set up for short waves of Python tasks.

Ranges travel as RDDs, so nothing of Spark SQL is needed: without it a start takes 2 s of CPU less
in Java [measured].
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sluice.core.errors import ConfigurationError, TerminalError

if TYPE_CHECKING:
    from pyspark import SparkContext

_logger = logging.getLogger("sluice.spark")

#: Set by spark-submit, which has started its Java already.
SUBMITTED = "PYSPARK_GATEWAY_PORT"
_TRACEBACK = "Traceback (most recent call last):"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
#: Of which properties Spark's page and logs show no values; Spark's own default.
_REDACTED, _REDACTED_BY_SPARK = "spark.redaction.regex", "(?i)secret|password|token|access[.]?key"
LOGGING = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
#: A user's `spark.conf` may change all of these; `config` refuses what would break a promise.
DEFAULTS = {
    # Over TCP a wave of Python tasks took 235 ms, over Unix-domain sockets 60 to 80 [measured].
    "spark.python.unix.domain.socket.enabled": "true",
    # The loop decides what is repeated; a copy of a running task only wastes a slot.
    "spark.speculation": "false",
    # Thousands of small jobs a day must not fill the driver's memory.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "512m",
    # Rows never pass the JVM, so optimising its code costs more than it brings: with the
    # first compiler only, start and first job took 9 s instead of 12, and the JVM 10 s of
    # CPU instead of 22 over 32 jobs [measured].
    _JAVA_OPTIONS: f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {LOGGING}",
}


def spark_home() -> Path:
    """Where the package pyspark is: Spark's programs and jars are in it.

    :raises TerminalError: it is not installed.
    """
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise TerminalError("the package pyspark is missing", "Install Sluice with its packages.")
    # As PySpark names it to Java, also in an environment that a link leads to.
    return Path(found.origin).resolve().parent


def start_context(
    name: str,
    master: str,
    properties: Mapping[str, str],
    java_options: str = "",
    secret_names: Collection[str] = (),
) -> SparkContext:
    """Start (or join, under spark-submit) the context of this process.

    Workers run this very Python, or what `spark.pyspark.python` names; on other machines also what
    PYSPARK_PYTHON of the environment does. On a local master everything stays on loopback. The
    Spark is the one of the package pyspark, or another installation of its version in SPARK_HOME.

    :param java_options: of Spark's driver, beside those of `DEFAULTS`.
    :param secret_names: of properties whose values nobody may see.
    :raises ConfigurationError: spark-submit was told of a cluster of another kind.
    :raises SparkStartError: Spark does not start.
    """
    _set_programs(properties, is_here=master.startswith("local"))
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException

    _pass_no_arrays()
    configuration = SparkConf().setAppName(f"sluice {name}").setMaster(master)
    defaults = {**DEFAULTS, _JAVA_OPTIONS: f"{DEFAULTS[_JAVA_OPTIONS]} {java_options}".strip()}
    # Elsewhere nobody knows before a task runs whether Python finds Sluice there.
    if master.startswith("local") and SUBMITTED not in os.environ:
        defaults["spark.python.daemon.module"] = "sluice.spark.daemon"
    if secret_names:
        hidden = "|".join(re.escape(each) for each in sorted(secret_names))
        defaults[_REDACTED] = f"{_REDACTED_BY_SPARK}|{hidden}"
    every = {**defaults, **properties}
    configuration.setAll([*every.items()])
    # Java is started with its configuration on the command line, which every user of the machine
    # can read. What is secret follows over the connection to it.
    shown = SparkConf(loadDefaults=False).setAll(
        [(key, value) for key, value in configuration.getAll() if key not in secret_names]
    )
    try:
        SparkContext._ensure_initialized(conf=shown)
        if SUBMITTED in os.environ:
            submitted = SparkContext._jvm.java.lang.System.getProperty("spark.master")
            refuse_another_master(submitted or "", master)
        return SparkContext.getOrCreate(configuration)
    except (PySparkException, Py4JError) as error:
        raise SparkStartError(f"Spark does not start on {master}: {first_words(error)}") from error


class SparkStartError(TerminalError):
    """Java is not there, or Spark refuses what it was told, or the master does not answer."""

    hint = "Spark's own words stand above; see [spark] of the configuration, and JAVA_HOME."


def _set_programs(properties: Mapping[str, str], *, is_here: bool) -> None:
    """Let PySpark start the Spark and the Python that fit this program, and not others that the
    environment of a Spark user names.

    :param is_here: the workers run on this machine.
    """
    submitted = SUBMITTED in os.environ
    # PySpark itself looks at the property under spark-submit only.
    python = properties.get("spark.pyspark.python")
    if python or (is_here and not submitted):
        os.environ["PYSPARK_PYTHON"] = python or sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    own, other = spark_home(), os.environ.get("SPARK_HOME")
    if submitted or other is None or not (own / "bin" / "spark-submit").is_file():
        return
    from pyspark import __version__ as version

    if Path(other).resolve() != own and not any(Path(other).glob(f"jars/spark-core_*-{version}*")):
        _logger.warning(
            "SPARK_HOME is %s, which is no Spark %s: the one of the package pyspark is used",
            *(other, version),
        )
        os.environ["SPARK_HOME"] = str(own)


def first_words(error: Exception) -> str:
    """Why, without the places in Java: of what Java threw its class and message follow the line
    that says from where; of what Python raised in a task, the last line of its traceback."""
    try:
        first, *then = str(error).splitlines() or [""]
    except Exception:  # Java is asked for the text, and may be gone
        first, then = "", []
    if not then or not first.startswith("An error occurred while calling "):
        return first or type(error).__name__
    said = then[0].removeprefix(": ")
    if said.endswith(_TRACEBACK):
        raised = (line for line in then[1:] if line and not line[0].isspace())
        said = said.removesuffix(_TRACEBACK) + next(raised, "")
    return said


def refuse_another_master(submitted: str, master: str) -> None:
    """Spark goes by the configuration: what was submitted to a cluster would run on one machine of
    it without a word, or be ended by YARN, which hears nothing of it. Addresses may differ:
    Kubernetes has several.

    :param submitted: what spark-submit was told; it calls "nothing" `local[*]`.
    :raises ConfigurationError: they are of different kinds.
    """
    kind, wanted = (re.split(r"[:\[]", each)[0] for each in (submitted, master))
    if kind not in ("", "local", wanted):
        raise ConfigurationError(
            f"spark-submit was told --master {submitted}, and [spark] has master = {master!r}",
            "Say the same in both.",
        )


def _pass_no_arrays() -> None:
    """Let PySpark not look whether what it passes to Java is of NumPy, which Sluice never passes.

    It imports its test tools and pandas for that look: 0.6 s of CPU in each start [measured].
    """
    from py4j import protocol

    protocol.INPUT_CONVERTER[:] = [
        converter
        for converter in protocol.INPUT_CONVERTER
        if not type(converter).__name__.startswith("Numpy")
    ]


Item = TypeVar("Item")
Result = TypeVar("Result")


def spread(
    context: SparkContext,
    description: str,
    work: Callable[[Item], Result],
    items: Sequence[Item],
) -> list[Result]:
    """The results in the order of the items; each item is a task of its own.

    :param description: shown in Spark's UI.
    :param work: travels to the workers, as do items and results: picklable.
    """
    if not items:
        return []
    context.setJobDescription(description)
    results: list[Result] = context.parallelize(items, len(items)).map(work).collect()
    return results
