"""The run in Prometheus' terms, through Ray's own endpoint on each node; docs/metrics.md.

The driver alone reports, from the counts that it has anyway, so the number of series does not grow
with the cluster or the run: some 40 for each output.
"""

from collections.abc import Mapping

from ray.util.metrics import Counter, Gauge

from pipeline.work import Progress

# Name, label of its own, what it says. Ray's endpoint puts `ray_` before each name.
COUNTERS = (
    ("embedmill_shards_total", "outcome", "Shards done: published, lost to another run, failed."),
    ("embedmill_images_total", "outcome", "Images of published shards: embedded, rejected."),
    ("embedmill_rejects_total", "reason", "Rejected images of published shards, by reason."),
    ("embedmill_tokens_total", None, "Tokens of published shards' images."),
    ("embedmill_forward_passes_total", None, "Forward passes of published shards."),
    ("embedmill_read_bytes_total", None, "Bytes of published shards' input."),
    ("embedmill_phase_seconds_total", "phase", "Seconds that published shards spent in a phase."),
)
GAUGES = (
    ("embedmill_shards_left", None, "Shards neither published nor given up."),
    ("embedmill_shards_before", None, "Shards that were done when the run began."),
    ("embedmill_leases", None, "Shards in work."),
    ("embedmill_open_images", None, "Images encoded so far in shards in work."),
    ("embedmill_pool_size", "pool", "Actors that are ready, by pool."),
    ("embedmill_encoders_busy_share", None, "Share of their time that Encoders with work compute."),
    (
        "embedmill_streams_waiting_share",
        None,
        "Share of their time that streams wait for Encoders.",
    ),
)


class RunMetrics:
    """The metrics of one run. Needs a connected Ray."""

    def __init__(self, output: str) -> None:
        self._output = output
        self._counters = {name: Counter(name, text, _keys(label)) for name, label, text in COUNTERS}
        self._gauges = {name: Gauge(name, text, _keys(label)) for name, label, text in GAUGES}
        self._labels = {name: label for name, label, _ in (*COUNTERS, *GAUGES)}
        self._told: dict[tuple[str, str], float] = {}

    def update(self, progress: Progress) -> None:
        """None; hands over what has changed since the last call."""
        self._count("embedmill_shards_total", "published", progress.done)
        self._count("embedmill_shards_total", "lost", progress.lost)
        self._count("embedmill_shards_total", "failed", len(progress.failed))
        self._count("embedmill_images_total", "embedded", progress.embedded)
        self._count("embedmill_images_total", "rejected", progress.rejected.total())
        self._count_each("embedmill_rejects_total", progress.rejected)
        self._count("embedmill_tokens_total", "", progress.tokens)
        self._count("embedmill_forward_passes_total", "", progress.passes)
        self._count("embedmill_read_bytes_total", "", progress.bytes_read)
        self._count_each("embedmill_phase_seconds_total", progress.seconds)
        self._set("embedmill_shards_left", "", progress.remaining)
        self._set("embedmill_shards_before", "", progress.already_done)
        self._set("embedmill_leases", "", progress.leases)
        self._set("embedmill_open_images", "", progress.open_images)
        self._set("embedmill_pool_size", "Encoder", progress.encoders)
        self._set("embedmill_pool_size", "Preprocessor", progress.preprocessors)
        if progress.load is not None:
            self._set("embedmill_encoders_busy_share", "", progress.load.busy_share)
            self._set("embedmill_streams_waiting_share", "", progress.load.blocked_share)

    def _count_each(self, name: str, values: Mapping[str, float]) -> None:
        for value, total in values.items():
            self._count(name, value, total)

    def _count(self, name: str, value: str, total: float) -> None:
        more = total - self._told.get((name, value), 0.0)
        if more > 0:
            self._counters[name].inc(more, self._tags(name, value))
            self._told[name, value] = total

    def _set(self, name: str, value: str, number: float) -> None:
        if self._told.get((name, value)) != number:
            self._gauges[name].set(number, self._tags(name, value))
            self._told[name, value] = number

    def _tags(self, name: str, value: str) -> dict[str, str]:
        label = self._labels[name]
        return {"output": self._output} | ({label: value} if label else {})


def _keys(label: str | None) -> tuple[str, ...]:
    return ("output", label) if label else ("output",)
