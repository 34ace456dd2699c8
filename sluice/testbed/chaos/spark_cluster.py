"""A Spark standalone cluster: a master and workers, each a process; on loopback by default."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sluice.spark.context import spark_home
from sluice.spark.java import set_java_home
from sluice.testbed.local.children import Child, free_ports
from sluice.testbed.local.processes import descendants, signal_to
from sluice.testbed.local.settings import Section

WORKERS = 2
LOOPBACK = "127.0.0.1"
#: Slots that a worker offers: one for a driver, one for the driver that succeeds it.
CORES = 2
_WORKER_MEMORY = "2g"
_DAEMON_MEMORY = "256m"
_READY_SECONDS_MAX = 90.0


class SparkCluster:
    """Master and workers.

    :param folder: for logs, and for what executors write.
    :param hosts: of the workers that start at first. Spark runs no two attempts of a task on one.
    :param address: of the master.
    """

    def __init__(
        self, folder: Path, hosts: Sequence[str] = (LOOPBACK,) * WORKERS, address: str = LOOPBACK
    ) -> None:
        self._folder = folder
        self._hosts = hosts
        self._address = address
        self._port = free_ports(1)[0]
        self._master = Child(folder)
        self._workers: list[Child] = []

    @property
    def master(self) -> str:
        """What `[spark] master` takes."""
        return f"spark://{self._address}:{self._port}"

    @property
    def workers(self) -> list[int]:
        """Process ids of the workers that live."""
        return [worker.pid for worker in self._workers if worker.process.poll() is None]

    def start(self) -> None:
        """Start the master, then the workers, and wait until they have registered.

        The processes end with the thread that calls this.

        :raises TerminalError: one of them does not come up.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        options = ("--port", str(self._port), "--webui-port", "0")
        self._master = self._launch("master", "master.Master", self._address, options)
        self._wait(self._master, "master", "I have been elected leader")
        for host in self._hosts:
            self.add_worker(host)
        self.wait_for_workers()

    def wait_for_workers(self) -> None:
        """Until all have registered that were started.

        :raises TerminalError: one of them does not come up.
        """
        for number, worker in enumerate(self._workers):
            self._wait(worker, f"worker-{number}", "Successfully registered with master")

    def add_worker(self, host: str = LOOPBACK, inside: Sequence[str] = ()) -> None:
        """Start one more worker; it registers by itself.

        :param inside: a program and its arguments that becomes the command after them, as
            `ip netns exec NAME`.
        """
        name = f"worker-{len(self._workers)}"
        options = ["--webui-port", "0", "--cores", str(CORES), "--memory", _WORKER_MEMORY]
        options += ["--work-dir", str(self._folder / name), self.master]
        self._workers.append(self._launch(name, "worker.Worker", host, options, inside))

    def kill_worker(self, number: int) -> int:
        """SIGKILL to a worker that lives and to its executors; gives the worker's id."""
        living = self.workers
        pid = living[number % len(living)]
        for child in descendants(pid):
            signal_to(child.pid, signal.SIGKILL)
        for worker in self._workers:
            if worker.pid == pid:
                worker.kill()
        return pid

    def stop(self) -> None:
        """End everything, executors included."""
        children = [child.pid for pid in self.workers for child in descendants(pid)]
        for each in (*self._workers, self._master):
            each.kill()
        for pid in children:
            signal_to(pid, signal.SIGKILL)

    def _launch(
        self, name: str, main: str, host: str, options: Sequence[str], inside: Sequence[str] = ()
    ) -> Child:
        home = spark_home()
        set_java_home()
        program = (str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{main}")
        environment = {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": _DAEMON_MEMORY,
        }
        command = [*inside, *program, "--host", host, *options]
        child = Child(self._folder)
        child.launch(command, f"{name}.log", environment)
        return child

    def _wait(self, child: Child, name: str, words: str) -> None:
        log = self._folder / f"{name}.log"
        child.wait_until(
            lambda: words in log.read_text(errors="replace"), log.name, _READY_SECONDS_MAX
        )


def spark_settings() -> dict[str, str]:
    """Properties for a driver that uses a cluster: an executor on each worker, with one core."""
    return {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.cores.max": str(WORKERS),
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        # A dead executor is known as lost after this long without a heartbeat.
        "spark.network.timeout": "20s",
        "spark.network.timeoutInterval": "5s",
        "spark.executor.heartbeatInterval": "3s",
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[3]),
    }


def spark_section(cluster: SparkCluster | None) -> Section:
    """Of a configuration.

    :param cluster: None for two slots on this machine.
    """
    if cluster is None:
        return {"master": "local[2]", "conf": {"spark.ui.enabled": "false"}}
    return {"master": cluster.master, "conf": spark_settings()}


@contextmanager
def running_spark(
    folder: Path, hosts: Sequence[str] = (LOOPBACK,) * WORKERS, address: str = LOOPBACK
) -> Iterator[SparkCluster]:
    """A cluster that ends with its context.

    :raises TerminalError: it did not come up.
    """
    cluster = SparkCluster(folder, hosts, address)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
