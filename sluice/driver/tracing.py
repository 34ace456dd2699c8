"""Traces for OpenTelemetry: of each range, or bundle, from its intent to its settle.

Workers say what they did when, and the driver sends it: a worker is ended without a word, and what
it kept for later would be lost. The library is loaded only where the environment asks for traces.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

from sluice import __version__
from sluice.clickhouse.reactions import name_of
from sluice.core.bundles import members_in
from sluice.core.errors import ConfigurationError
from sluice.core.ranges import Range, TopicPartition
from sluice.core.records import Kind, Record
from sluice.core.tracing import TraceIds, trace_of
from sluice.driver.state import PartitionState
from sluice.spark.jobs import JobResult
from sluice.worker.assignment import Assignment

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import Tracer, TracerProvider
    from opentelemetry.sdk.trace.sampling import Sampler

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
#: Traces of bundles that have ended: a range that leaves one late ends its trace no second time.
_ENDED_MAX = 10_000
#: How long the end of a driver waits for what is not sent yet.
_FLUSH_MS = 3_000

_Attributes = dict[str, str | int]
_P = ParamSpec("_P")
_logger = logging.getLogger("sluice.tracing")


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Whether the usual variables ask for traces.

    :raises ConfigurationError: they ask for what Sluice does not have.
    """
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    is_off = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if is_off or exporter == "none" or not (exporter or any(map(environment.get, _ENDPOINTS))):
        return False
    if exporter not in ("", "otlp", "console"):
        raise ConfigurationError(
            f"OTEL_TRACES_EXPORTER is {exporter}, and traces are sent by otlp or console",
            "Set it to otlp, or to none, and OTEL_EXPORTER_OTLP_ENDPOINT to where they go.",
        )
    for name in _PROTOCOLS:
        protocol = environment.get(name, "http/protobuf").strip().lower()
        if protocol != "http/protobuf":
            raise ConfigurationError(
                f"{name} is {protocol}, and traces are sent by http/protobuf",
                "Name the collector's port for HTTP, mostly 4318, and leave the protocol out.",
            )
    return True


def _harmless(tell: Callable[_P, None]) -> Callable[_P, None]:
    """What goes wrong while something is told is logged, and loading goes on."""

    @wraps(tell)
    def telling(*words: _P.args, **named: _P.kwargs) -> None:
        try:
            tell(*words, **named)
        except Exception:
            _logger.exception("a trace is lost on a bug; loading goes on")

    return telling


class Tracing:
    """Of one process; its connectors share it. Each is used by the thread of its loop.

    :raises ConfigurationError: the library is not installed.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        try:
            self._roots = threading.local()
            self._provider, self._tracer = _open(environment, self._roots)
            from opentelemetry import trace as api
        except ImportError as error:
            raise ConfigurationError(
                f"the environment asks for traces, and {error.name} is not installed",
                "pip install '.[tracing]' where Sluice's source is (in the image: "
                'docs/DEPLOYMENT.md, "In a container"), or set OTEL_TRACES_EXPORTER=none.',
            ) from None
        self._api = api
        self._sampler: Sampler = self._provider.sampler
        self._ended: OrderedDict[int, None] = OrderedDict()
        #: The traces of ranges in doubt, by the thread of their loop, for its logs.
        self._of_ranges: dict[tuple[int, Range], TraceIds] = {}
        self._factory_before = logging.getLogRecordFactory()
        logging.setLogRecordFactory(self._log_record)

    def close(self) -> None:
        """Send what is left, for a while."""
        logging.setLogRecordFactory(self._factory_before)
        sending = threading.Thread(target=self._provider.shutdown, daemon=True)
        sending.start()
        sending.join(_FLUSH_MS / 1000)

    @_harmless
    def committed(
        self,
        connector: str,
        states: Mapping[TopicPartition, PartitionState],
        records: Mapping[TopicPartition, Record],
        began_ms: int,
        ended_ms: int,
    ) -> None:
        """A transaction has recorded these; the states are still those of before."""
        seen = set[int]()
        for source, record in records.items():
            state = states[source]
            before = _ids_of(connector, source, state.record)
            after = _ids_of(connector, source, record)
            left = None
            self._of_ranges.pop((threading.get_ident(), state.block_range), None)
            if before is not None and before != after:
                left = None if state.loaded is not None else before
                # A range that is given back goes on in its trace when it is planned anew.
                is_over = state.loaded is not None or bool(state.record.bundle)
                if is_over and before.trace not in seen:
                    seen.add(before.trace)
                    self._end(connector, state, before, began_ms, ended_ms)
            if after is not None:
                block_range = Range(source, record.begin, record.end)
                self._of_ranges[threading.get_ident(), block_range] = after
                if after.trace not in seen:
                    seen.add(after.trace)
                    name = "intent" if record.kind is Kind.INTEND else record.kind.word
                    told = _of_record(connector, source, record)
                    self._span(name, after, began_ms, ended_ms, told, left=left)

    @_harmless
    def came_back(self, connector: str, result: JobResult) -> None:
        """A job has ended: what its tasks did, or that they are lost."""
        records = {each.block_range.source: each for each in result.job.assignments}
        for report in result.reports:
            if not report.spans:
                continue
            source = report.block_range.source
            record = records[source].record
            ids = _ids_of(connector, source, record)
            if ids is None or not self._is_sampled(ids.trace):
                continue
            task = None
            told = _of_record(connector, source, record)
            # The task itself ended last, and is the parent of the others.
            for span in reversed(report.spans):
                made = self._start(
                    span.name, ids, span.began_ns, told | dict(span.facts), parent=task
                )
                task = task or made
                self._finish(made, span.ended_ns, span.error)
        if result.error is not None:
            lost = dict[TraceIds, Assignment]()
            for each in result.job.assignments:
                ids = _ids_of(connector, each.block_range.source, each.record)
                if ids is not None and self._is_sampled(ids.trace):
                    lost.setdefault(ids, each)
            for ids, each in lost.items():
                told = _of_record(connector, each.block_range.source, each.record)
                made = self._start("task", ids, each.sent_at_ms * 1_000_000, told)
                self._finish(made, time.time_ns(), name_of(result.error))

    def _end(
        self, connector: str, state: PartitionState, ids: TraceIds, began_ms: int, ended_ms: int
    ) -> None:
        """The range is settled, or goes on in another trace, or is given back."""
        if ids.trace in self._ended or not self._is_sampled(ids.trace):
            return
        told = _of_record(connector, state.source, state.record)
        error = "" if state.loaded is not None else "BundleEnded"
        if error:
            self._ended[ids.trace] = None
            while len(self._ended) > _ENDED_MAX:
                self._ended.popitem(last=False)
        else:
            self._span("settle", ids, began_ms, ended_ms, told)
        since_ms = state.background.since_ms or began_ms
        root = self._start("range", ids, since_ms * 1_000_000, told, is_root=True)
        self._finish(root, ended_ms * 1_000_000, error)

    def _span(
        self,
        name: str,
        ids: TraceIds,
        began_ms: int,
        ended_ms: int,
        told: _Attributes,
        left: TraceIds | None = None,
    ) -> None:
        """One within a range, in milliseconds.

        :param left: the trace that the range was in before.
        """
        if self._is_sampled(ids.trace):
            made = self._start(name, ids, began_ms * 1_000_000, told, left=left)
            self._finish(made, ended_ms * 1_000_000, "")

    def _start(
        self,
        name: str,
        ids: TraceIds,
        began_ns: int,
        told: _Attributes,
        *,
        is_root: bool = False,
        parent: Any = None,
        left: TraceIds | None = None,
    ) -> Any:
        """A span, with the ids of its range: who repeats the range goes on with them."""
        api = self._api
        links = [] if left is None else [api.Link(self._context(left))]
        if is_root:
            from opentelemetry.context import Context

            self._roots.next = ids
            within = Context()
        else:
            above = parent or api.NonRecordingSpan(self._context(ids))
            within = api.set_span_in_context(above)
        return self._tracer.start_span(
            name, within, attributes=told, links=links, start_time=began_ns
        )

    def _finish(self, span: Any, ended_ns: int, error: str) -> None:
        if error:
            span.set_status(self._api.StatusCode.ERROR, error)
            span.set_attribute("error.type", error)
        span.end(ended_ns)

    def _context(self, ids: TraceIds) -> Any:
        flags = self._api.TraceFlags(self._api.TraceFlags.SAMPLED)
        return self._api.SpanContext(ids.trace, ids.root, is_remote=True, trace_flags=flags)

    def _is_sampled(self, trace: int) -> bool:
        """Decided by the id, so all who are at a range decide alike."""
        return bool(self._sampler.should_sample(None, trace, "range").decision.is_sampled())

    def _log_record(self, *words: Any, **named: Any) -> logging.LogRecord:
        """What is logged of a range in doubt names its trace."""
        made = self._factory_before(*words, **named)
        for each in made.args if isinstance(made.args, tuple) else ():
            if isinstance(each, Range):
                ids = self._of_ranges.get((threading.get_ident(), each))
                if ids is not None:
                    made.trace_id, made.span_id = f"{ids.trace:032x}", f"{ids.root:016x}"
        return made


def _ids_of(connector: str, source: TopicPartition, record: Record) -> TraceIds | None:
    return trace_of(connector, source, record) if record.in_doubt else None


def _of_record(connector: str, source: TopicPartition, record: Record) -> _Attributes:
    """What all spans of a range say of it; of a bundle, of one of its ranges."""
    told: _Attributes = {
        "sluice.connector": connector,
        "sluice.topic": source.topic,
        "sluice.partition": source.partition,
        "sluice.begin": record.begin,
        "sluice.end": record.end,
        "sluice.attempt": record.attempt,
    }
    if record.bundle:
        told |= {"sluice.bundle": record.bundle, "sluice.ranges": members_in(record.bundle)}
    return told


def _open(environment: Mapping[str, str], roots: threading.local) -> tuple[TracerProvider, Tracer]:
    """The library, set up by its own variables.

    :param roots: `next` are the ids of the span that a thread makes next, where it is a root.
    """
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class Ids(RandomIdGenerator):  # type: ignore[misc]  # it is skipped where it is not installed
        """Random ids of spans, and the ids of a range for the span that is its root."""

        def generate_trace_id(self) -> int:
            ids: TraceIds | None = getattr(roots, "next", None)
            return ids.trace if ids is not None else int(super().generate_trace_id())

        def generate_span_id(self) -> int:
            ids: TraceIds | None = getattr(roots, "next", None)
            roots.next = None
            return ids.root if ids is not None else int(super().generate_span_id())

    named = {} if environment.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: "sluice"}
    resource = Resource.create(named)
    provider = TracerProvider(resource=resource, id_generator=Ids(), shutdown_on_exit=False)
    exporter: Any
    if environment.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "console":
        exporter = ConsoleSpanExporter()
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider, provider.get_tracer("sluice", __version__)


@contextmanager
def tracing_if_wanted(environment: Mapping[str, str] = os.environ) -> Iterator[Tracing | None]:
    """Traces, where the environment asks for them.

    :raises ConfigurationError: it asks for what is not there.
    """
    if not is_wanted(environment):
        yield None
        return
    tracing = Tracing(environment)
    try:
        yield tracing
    finally:
        tracing.close()
