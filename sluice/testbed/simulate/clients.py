"""Kafka clients as the loader uses them, over the broker in memory.

They take and give confluent_kafka's own types, so that the code above them is the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import confluent_kafka as ck

from sluice.core.ranges import EPOCH_UNKNOWN, EpochOffset, TopicPartition
from sluice.kafka.errors import KafkaUnavailableError, UnknownCommitError
from sluice.kafka.log import Cuts, SourceLog, TopicMissingError
from sluice.testbed.simulate import faults
from sluice.testbed.simulate.kafka import Broker, Headers, Stored, Transaction
from sluice.testbed.simulate.world import AbandonedError, World

#: A driver that was fenced gives its successor so long at least.
SUCCESSOR_MS = 2_500
_TIMESTAMP = ck.TIMESTAMP_CREATE_TIME


def _fail(code: int, text: str, *, fatal: bool = False, retriable: bool = False) -> NoReturn:
    raise ck.KafkaException(ck.KafkaError(code, text, fatal, retriable, False))


def _timed_out(what: str) -> NoReturn:
    _fail(ck.KafkaError._TIMED_OUT, what, retriable=True)


def _reach_broker(world: World, fails: bool, timeout: float, what: str) -> None:
    """Wait in vain, if this fails or the broker is away."""
    if fails or world.broker.unreachable_until > world.now:
        world.sleep(int(timeout * 1000))
        _timed_out(what)


class SimulatedConsumer:
    """A consumer that reads the group's offsets, or partitions by position.

    :param is_tail: of a `Tail`, which asks without waiting first, and waits then.
    """

    def __init__(self, world: World, *, stable: bool, is_tail: bool = False) -> None:
        self._world = world
        self._stable = stable
        self._is_tail, self._has_waited = is_tail, False
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()

    def close(self) -> None:
        """Nothing to give back."""

    def consumer_group_metadata(self) -> object:
        """Of no meaning here."""
        return None

    def committed(
        self, wanted: Sequence[ck.TopicPartition], timeout: float
    ) -> list[ck.TopicPartition]:
        world = self._world
        fault = world.call("read offsets", faults.READ_OFFSETS)
        broker = world.broker
        _reach_broker(world, fault == "offset read fails", timeout, "reading offsets")
        sources = [TopicPartition(item.topic, item.partition) for item in wanted]
        if self._stable and any(source in broker.pending for source in sources):
            until = world.now + int(timeout * 1000)
            while any(source in broker.pending for source in sources):
                if world.now >= until:
                    _timed_out("an offset is not stable")
                world.sleep(max(10, (until - world.now) // 8))
        answer = []
        for source in sources:
            offset, metadata = broker.group.get(source, (-1001, None))
            answer.append(
                ck.TopicPartition(source.topic, source.partition, offset, metadata=metadata or "")
            )
        return answer

    def get_watermark_offsets(
        self, where: ck.TopicPartition, timeout: float, cached: bool
    ) -> tuple[int, int]:
        world = self._world
        fault = world.call("watermarks", faults.LEDGER_ENDS)
        hesitates = "take-over hesitates between group and ledger"
        if fault is None and world.is_in_step and world.rng.random() < 0.5:
            world.faults.note(fault := hesitates)
        if fault == hesitates:
            world.sleep(world.rng.randrange(1_000))
        if fault == "watermark read fails" or world.broker.unreachable_until > world.now:
            _timed_out("reading watermarks")
        log = world.broker.log(TopicPartition(where.topic, where.partition))
        return log.begin, log.stable_end if self._stable else log.end

    def assign(self, wanted: Sequence[ck.TopicPartition]) -> None:
        self._positions = {_source(item): item.offset for item in wanted}

    def unassign(self) -> None:
        self._positions = {}

    def pause(self, wanted: Sequence[ck.TopicPartition]) -> None:
        self._paused.update(map(_source, wanted))

    def seek(self, where: ck.TopicPartition) -> None:
        self._positions[_source(where)] = where.offset

    def position(self, wanted: Sequence[ck.TopicPartition]) -> list[ck.TopicPartition]:
        return [
            ck.TopicPartition(item.topic, item.partition, self._positions[_source(item)])
            for item in wanted
        ]

    def consume(self, count: int, timeout: float) -> list[ck.Message]:
        if not self._is_tail:
            return self._fetched(count, timeout)
        # A tail that was given nothing waits for the fetch that is under way.
        if timeout and self._has_waited:
            self._has_waited = False
            return []
        before = self._positions.copy()
        found = self._fetched(count, timeout or 1.0)
        self._has_waited = not timeout and not found and self._positions == before
        return found

    def _fetched(self, count: int, timeout: float) -> list[ck.Message]:
        world = self._world
        sources = [source for source in self._positions if source not in self._paused]
        if len(sources) > 1:
            world.rng.shuffle(sources)
        fault = world.call("fetch", faults.FETCH)
        if fault == "fetch fails":
            return [self._error(sources[0], ck.KafkaError._TRANSPORT)]
        if fault == "fetch stalls":
            world.sleep(world.rng.randrange(16_000))
            return []
        if world.broker.unreachable_until > world.now:
            world.sleep(max(1000, int(timeout * 1000)))
            return []
        messages: list[ck.Message] = []
        has_moved = False
        for source in sources:
            log, before = world.broker.log(source), self._positions[source]
            if not log.begin <= before <= log.end:
                return [self._error(source, ck.KafkaError._AUTO_OFFSET_RESET)]
            if len(messages) == count:
                continue
            found, self._positions[source] = log.read(before, count - len(messages), log.end)
            has_moved = has_moved or self._positions[source] > before
            messages += [self._message(source, offset, stored) for offset, stored in found]
        if not has_moved and timeout:
            # Long enough that a stalled read costs few steps.
            world.sleep(max(1000, int(timeout * 1000)))
        return messages

    def _message(self, source: TopicPartition, offset: int, stored: Stored) -> ck.Message:
        return ck.Message(
            topic=source.topic,
            partition=source.partition,
            offset=offset,
            key=stored.key,
            value=stored.value,
            headers=list(stored.headers),
            error=None,
            timestamp=(_TIMESTAMP, stored.timestamp_ms),
        )

    def _error(self, source: TopicPartition, code: int) -> ck.Message:
        return ck.Message(
            topic=source.topic,
            partition=source.partition,
            offset=self._positions[source],
            key=None,
            value=None,
            error=ck.KafkaError(code, "simulated"),
        )


def _source(item: ck.TopicPartition) -> TopicPartition:
    return TopicPartition(item.topic, item.partition)


class SimulatedProducer:
    """A transactional producer."""

    def __init__(
        self, world: World, identity: str, timeout_ms: int, lost: Callable[[], None]
    ) -> None:
        self._world = world
        self._lost = lost
        self._identity = identity
        self._timeout_ms = timeout_ms
        self._epoch = -1
        self._initialised_at = 0
        self._transaction: Transaction | None = None

    def init_transactions(self, timeout: float) -> None:
        world = self._world
        fault = world.call("init transactions", faults.INITIALISE)
        world.before_fencing(self._identity)
        if fault == "init hangs":
            world.hang()
        if fault == "init is slow":
            world.sleep(world.rng.randrange(1_500))
        _reach_broker(world, fault == "init fails", timeout, "init")
        until = world.now + int(timeout * 1000)
        while (epoch := world.broker.initialise(self._identity)) is None:
            if world.now > until:
                _timed_out("a transaction of this id is being decided")
            world.sleep(20)
        self._check_patience()
        self._check_beside()
        self._epoch = epoch
        self._initialised_at = world.now

    def _fail_fenced(self) -> NoReturn:
        """Tell it that somebody initialised its id later."""
        driver = self._world.driver
        if self._identity.endswith(driver.owner):
            driver.fenced_at = self._world.now
        _fail(ck.KafkaError._FENCED, "the epoch is old", fatal=True)

    def _check_patience(self) -> None:
        """A driver that was fenced lets its successor record before it fences it in turn."""
        driver = self._world.driver
        waited_ms = self._world.now - driver.fenced_at
        if self._identity.endswith(driver.owner) and driver.fenced_at:
            driver.fenced_at = 0
            if waited_ms < SUCCESSOR_MS and not driver.connector_run.stopping.is_set():
                self._world.violate(
                    f"{driver.name} fences its successor {waited_ms} ms after it was fenced itself"
                )

    def _check_beside(self) -> None:
        """A member of a fleet takes over beside its loop, whose id that never touches (R25)."""
        driver, actor = self._world.driver, self._world.scheduler.current
        if driver.member and self._identity.endswith(driver.owner) and actor != driver.main_actor:
            self._world.violate(f"{driver.name} fences its own loop (R25)")

    def poll(self, timeout: float) -> None:
        """Tell of a broker that was away since the id was initialised."""
        if self._world.broker.unreachable_until > self._initialised_at:
            self._lost()

    def begin_transaction(self) -> None:
        """Local only."""
        broker = self._world.broker
        self._transaction = broker.begin(self._identity, self._epoch, self._timeout_ms)
        self._transaction.initialised_at = self._initialised_at
        self._transaction.begun_at = self._world.now
        self._transaction.writer = self._world.driver.owner

    def produce(self, topic: str, value: bytes | None, key: bytes | None, headers: Headers) -> None:
        world, transaction = self._world, self._transaction
        assert transaction is not None
        size = len(value or b"") + len(key or b"")
        size += sum(len(name) + len(content or b"") for name, content in headers)
        own = (world.plan.dead_letters, world.plan.parking, world.plan.duplicates)
        if size > world.plan.letter_bytes_max and topic in own:
            world.violate(f"a message of {size} bytes is sent to {topic}, which takes less")
            _fail(ck.KafkaError.MSG_SIZE_TOO_LARGE, f"{size} bytes")
        if transaction.state == "open":
            stored = Stored(value, key, tuple(headers), timestamp_ms=world.now)
            world.broker.topics[topic][0].append(stored, transaction)
            transaction.messages.append((topic, stored))

    def flush(self, timeout: float) -> int:
        """Nothing waits to be sent."""
        return 0

    def send_offsets_to_transaction(
        self, offsets: Iterable[ck.TopicPartition], metadata: object, timeout: float
    ) -> None:
        world, transaction = self._world, self._transaction
        assert transaction is not None
        fault = world.call("send offsets", faults.SEND)
        if fault == "send of offsets hangs":
            world.hang()
        _reach_broker(world, fault == "send of offsets fails", timeout, "sending offsets")
        if transaction.state != "open":
            self._fail_fenced()
        world.broker.add_offsets(
            transaction,
            {TopicPartition(o.topic, o.partition): (o.offset, o.metadata) for o in offsets},
        )
        if fault == "send of offsets: reply lost":
            _timed_out("sending offsets")

    def commit_transaction(self, timeout: float) -> None:
        world, transaction = self._world, self._transaction
        assert transaction is not None
        broker = world.broker
        fault = world.call("commit", faults.COMMIT)
        world.before_commit(transaction)
        if fault == "commit: request late":
            # It arrives whatever becomes of its sender, unless the id was fenced meanwhile.
            world.scheduler.at(world.rng.randrange(40_000), lambda: _arrive(broker, transaction))
        is_lost = fault in ("commit: request lost", "commit: request late")
        _reach_broker(world, is_lost, timeout, "committing")
        if fault == "commit hangs" and world.rng.random() < 0.5:
            world.hang()
        if fault == "commit: outcome unknown" and world.rng.random() < 0.5:
            _fail(ck.KafkaError._STATE, "the outcome is not known")
        if not broker.commit(transaction):
            self._fail_fenced()
        if fault == "commit hangs":
            world.hang()
        if fault == "commit: outcome unknown":
            _fail(ck.KafkaError._STATE, "the outcome is not known")
        if fault == "commit: reply lost":
            world.sleep(int(timeout * 1000))
            _timed_out("committing")

    def abort_transaction(self, timeout: float) -> None:
        world, transaction = self._world, self._transaction
        assert transaction is not None
        fault = world.call("abort", faults.ABORT)
        _reach_broker(world, fault == "abort fails", timeout, "aborting")
        if transaction.state != "open":
            self._fail_fenced()
        world.broker.abort(transaction)


class SimulatedLog(SourceLog):
    """Facts about topics, straight from the broker in memory."""

    def __init__(self, world: World) -> None:
        self._world = world

    def topics(self, names: Iterable[str], *, partial: bool = False) -> dict[str, tuple[str, int]]:
        world = self._world
        fault = world.call("describe topics", faults.LIST_OFFSETS)
        if fault == "watermark read fails" or world.broker.unreachable_until > world.now:
            raise KafkaUnavailableError("describing topics")
        found = {}
        for name in sorted(names):
            if name not in world.broker.ids:
                if partial:
                    continue
                raise TopicMissingError(f"topic {name} does not exist")
            found[name] = (world.broker.ids[name], len(world.broker.topics[name]))
        return found

    def others(self, topics: Iterable[str]) -> list[TopicPartition]:
        return []

    def stable_ends(
        self, sources: Iterable[TopicPartition], *, partial: bool = False
    ) -> dict[TopicPartition, int]:
        return self._asked(sources, partial, lambda log: log.stable_end)

    def epoch_ends(
        self, sources: Iterable[TopicPartition], *, partial: bool = False
    ) -> dict[TopicPartition, EpochOffset]:
        ends = self.stable_ends(sources, partial=partial)
        world = self._world
        if not world.plan.has_epochs:
            return {source: EpochOffset(end) for source, end in ends.items()}
        found = {}
        for source, end in ends.items():
            log = world.broker.log(source)
            former, former_end, until = log.former
            is_former = world.now < until and world.rng.random() < 0.5
            found[source] = EpochOffset(*((former_end, former) if is_former else (end, log.epoch)))
        return found

    def leader_of(self, source: TopicPartition) -> int:
        return -1

    def log_ends(
        self, sources: Iterable[TopicPartition], *, partial: bool = False
    ) -> dict[TopicPartition, int]:
        return self._asked(sources, partial, lambda log: log.end)

    def begins(
        self, sources: Iterable[TopicPartition], *, partial: bool = False
    ) -> dict[TopicPartition, int]:
        return self._asked(sources, partial, lambda log: log.begin)

    def _asked(
        self, sources: Iterable[TopicPartition], partial: bool, read: Any
    ) -> dict[TopicPartition, int]:
        world = self._world
        asked = list(sources)
        fault = world.call("list offsets", faults.LIST_OFFSETS)
        if fault == "watermark read fails" or world.broker.unreachable_until > world.now:
            world.sleep(world.rng.randrange(5_000))
            raise KafkaUnavailableError("listing offsets")
        if fault == "one partition does not answer" and asked:
            if not partial or len(asked) == 1:
                raise KafkaUnavailableError("listing offsets")
            asked.remove(world.rng.choice(asked))
        return {source: int(read(world.broker.log(source))) for source in asked}


class TopicIds:
    """What workers ask of topics, after each range that was read. It takes no step: what may happen
    before it may happen while they read."""

    def __init__(self, world: World) -> None:
        self._world = world

    def topics(self, names: Iterable[str], *, partial: bool) -> dict[str, tuple[str, int]]:
        broker = self._world.broker
        if broker.unreachable_until > self._world.now:
            raise KafkaUnavailableError("describing topics")
        return {name: (broker.ids[name], len(broker.topics[name])) for name in names}


def finding_cuts(world: World) -> Callable[..., Cuts]:
    """Stands for `sluice.kafka.log.find_cuts`."""

    def find_cuts(access: object, points: Mapping[TopicPartition, EpochOffset]) -> Cuts:
        if not points:
            return Cuts()
        fault = world.call("leader epochs", faults.LIST_OFFSETS)
        silent = set[TopicPartition]()
        if fault == "one partition does not answer":
            silent.add(world.rng.choice(sorted(points)))
        elif fault is not None or world.broker.unreachable_until > world.now:
            silent.update(points)
        cuts = {}
        for source, point in points.items():
            if source in silent:
                continue
            end = world.broker.log(source).epoch_end(point.epoch)
            if point.epoch != EPOCH_UNKNOWN and point.offset > end:
                cuts[source] = f"simulated: epoch {point.epoch} ended at {end}"
        return Cuts(cuts, dict.fromkeys(sorted(silent), "simulated: no answer"))

    return find_cuts


def _arrive(broker: Broker, transaction: Transaction) -> None:
    broker.commit(transaction)


def within(world: World, action: str, seconds: float, call: Any) -> Any:
    """The virtual `sluice.kafka.transactions.within`."""
    actor = world.scheduler.current
    assert actor is not None
    actor.call_until = world.now + int(seconds * 1000)
    try:
        return call()
    except AbandonedError:
        raise UnknownCommitError(f"{action} did not come back within {seconds:.0f} s") from None
    finally:
        actor.call_until = 0
