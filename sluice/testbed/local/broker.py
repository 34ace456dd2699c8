"""A real Kafka broker of one node (KRaft: broker and controller in one process), on loopback."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from contextlib import suppress
from pathlib import Path

from sluice.core.errors import ConfigurationError, TerminalError
from sluice.spark.archives import options_of
from sluice.spark.java import require_java
from sluice.testbed.local.broker_classes import archive_path
from sluice.testbed.local.children import end_process, free_ports, start_process
from sluice.testbed.local.jars import kafka_jars
from sluice.testbed.local.lifetime import StopRequest, lock_folder

HEAP_VARIABLE = "SLUICE_KAFKA_HEAP"
#: "PORT:ADVERTISED": a second listener on PORT that sends its clients to ADVERTISED, where a
#: proxy is expected. Clients follow what a broker advertises, wherever they asked first.
PROXY_VARIABLE = "SLUICE_KAFKA_PROXY"
#: A file of further properties, which win: as of a login at the second listener, of an authorizer.
PROPERTIES_VARIABLE = "SLUICE_KAFKA_PROPERTIES"
#: A broker of minutes: the second compiler and its profiling cost more than they bring. Rounds of
#: the benchmark took it 0.15 us a row from the first on, instead of 0.30, 0.35, 0.15 [measured].
_JAVA_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_HEAP_DEFAULT = "512m"
_BOOTSTRAP = "bootstrap.checkpoint"
_READY_SECONDS_MAX = 60.0
_STOP_SECONDS_MAX = 30.0

#: One node: everything has one replica. The rest is Kafka's defaults, but for topics, which
#: are made on purpose only, for sizes that suit a machine of a developer, and for the controller:
#: it does not write twice a second that nothing happened, which was 30 % of an idle broker's CPU
#: [measured], and CI has three of them; and what it decides it writes at once, where it would wait
#: 25 ms for more of it to come: each topic that is made waits for that.
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}{proxied}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}{advertised}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT
log.dirs={data}/log
offsets.topic.replication.factor=1
offsets.topic.num.partitions=8
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=8
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
min.insync.replicas=1
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
metadata.max.idle.interval.ms=0
controller.quorum.append.linger.ms=0
log.cleaner.dedupe.buffer.size=33554432
"""

_LOGGING = """\
status = error
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {data}/broker.log
appender.file.filePattern = {data}/broker.log.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %m (%c{{1}})%n%throwable
appender.file.policies.type = SizeBasedTriggeringPolicy
appender.file.policies.size = 20MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
rootLogger.level = INFO
rootLogger.appenderRef.file.ref = file
"""


def run_kafka(data: Path, port: int | None) -> int:
    """Run a broker until SIGTERM or SIGINT, then stop it in order.

    Prints one line once the broker answers: {"brokers": "127.0.0.1:PORT"}. Its log is
    DATA/broker.log. Should this process be killed, the kernel kills the broker.

    :param port: None for any free one.
    :returns: 0 after a stop that was asked for.
    :raises ConfigurationError: folder or port cannot be used.
    :raises TerminalError: another process has the folder, Java is missing, the broker failed.
    """
    data = data.absolute()
    java, jars = require_java(), kafka_jars()
    lock_fd = lock_folder(data)
    try:
        stop = StopRequest()
        port = _checked_port(port) if port else free_ports(1)[0]
        base = [str(java), f"-Xmx{os.environ.get(HEAP_VARIABLE, _HEAP_DEFAULT)}", *_JAVA_OPTIONS]
        base += options_of(archive_path(java, jars))
        base += [f"-Dlog4j2.configurationFile={data}/log4j2.properties", "-cp", f"{jars}/*"]
        properties = _write_settings(data, port)
        _format(base, data, properties, jars / _BOOTSTRAP)
        return _run(base, data, properties, port, stop)
    finally:
        os.close(lock_fd)


def _run(base: list[str], data: Path, properties: Path, port: int, stop: StopRequest) -> int:
    output = data / "broker.out"
    output.unlink(missing_ok=True)
    broker = start_process([*base, "kafka.Kafka", str(properties)], output)
    try:
        deadline_seconds = time.monotonic() + _READY_SECONDS_MAX
        while not stop.came and not _answers(port):
            if broker.poll() is not None:
                raise _failure(data, f"the broker ended with status {broker.returncode}")
            if time.monotonic() > deadline_seconds:
                raise _failure(data, f"the broker did not answer for {_READY_SECONDS_MAX:.0f} s")
            time.sleep(0.05)
        if not stop.came:
            print(json.dumps({"brokers": f"127.0.0.1:{port}"}), flush=True)
        stop.wait(lambda: broker.poll() is None)
        if broker.poll() is not None and not stop.came:
            raise _failure(data, f"the broker ended with status {broker.returncode}")
    finally:
        end_process(broker, _STOP_SECONDS_MAX)
    return 0


def _format(base: list[str], data: Path, properties: Path, kept: Path) -> None:
    """Give a new folder its identity; a folder that has one is left alone.

    :param kept: the features of a cluster, which Kafka's tool writes: the same for each of this
        version, and the tool is a JVM of its own. The first time it runs, and they are kept.
    """
    log = data / "log"
    if (log / "meta.properties").exists():
        return
    cluster_id, directory_id = (
        urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode() for _ in range(2)
    )
    if kept.exists():
        log.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(kept, log / _BOOTSTRAP)
        (log / "meta.properties").write_text(
            f"version=1\nnode.id=1\ncluster.id={cluster_id}\ndirectory.id={directory_id}\n"
        )
        return
    tool = [*base, "kafka.tools.StorageTool", "format", "--ignore-formatted"]
    tool += [f"--cluster-id={cluster_id}", f"--config={properties}"]
    done = subprocess.run(tool, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        told = (done.stdout + done.stderr).strip().splitlines()[-3:]
        raise _failure(data, f"the folder could not be formatted: {' '.join(told)}")
    with suppress(OSError):  # the jars may belong to somebody else
        partial = kept.with_name(f"{_BOOTSTRAP}.{directory_id}")
        shutil.copyfile(log / _BOOTSTRAP, partial)
        partial.replace(kept)


def _write_settings(data: Path, port: int) -> Path:
    """Both files are written at each start: the ports may be others than last time."""
    (data / "log4j2.properties").write_text(_LOGGING.format(data=data))
    properties = data / "server.properties"
    own, _, advertised = os.environ.get(PROXY_VARIABLE, "").partition(":")
    more = os.environ.get(PROPERTIES_VARIABLE, "")
    properties.write_text(
        _PROPERTIES.format(
            data=data,
            port=port,
            controller_port=next(each for each in free_ports(2) if each != port),
            proxied=f",PROXIED://127.0.0.1:{own}" if own else "",
            advertised=f",PROXIED://127.0.0.1:{advertised}" if own else "",
        )
        + (Path(more).read_text() if more else "")
    )
    return properties


def _answers(port: int) -> bool:
    """True once the broker counts itself as part of the cluster, not merely listens."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    client = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
    try:
        return bool(client.list_topics(timeout=2).brokers)
    except KafkaException:
        return False


def _checked_port(port: int) -> int:
    """A port that is taken is told here, in words, rather than by a stack trace in a log."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise ConfigurationError(
                f"--port {port}: {error}", "Choose another port, or none for a free one."
            ) from error
    return port


def _failure(data: Path, what: str) -> TerminalError:
    output = (data / "broker.out").read_text(errors="replace").strip().splitlines()[-3:]
    return TerminalError(
        f"{what} {' '.join(output)}".strip(), f"Read {data}/broker.log; it says why."
    )
