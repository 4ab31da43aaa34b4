"""The settings of self-play."""

from typing import Literal

from keima.config.sections.types import Auto, Count, CountOrZero, Positive, Section


class SelfPlaySettings(Section):
    """How games are spread over workers, concurrent games and network calls."""

    games_per_worker: Count = 200
    """Games granted to each worker in advance, so that it never waits; more to one that plays them in seconds."""
    parallel_games: Auto | Count = "auto"
    """Concurrent games per process, evaluated as one batch."""
    batch_size: Auto | Count = "auto"
    """Positions per network call."""
    workers: Auto | Count = "auto"
    """Worker processes; auto: one per core, or what keeps the GPUs busy."""
    device: Auto | Literal["cpu"] = "auto"
    """Device of the workers here; cpu: keep them off the GPU; auto: as training.device."""
    cache_positions: CountOrZero = 0
    """Network evaluations cached per process; 0: none."""
    flush_seconds: Auto | Positive = "auto"
    """Seconds that a finished game waits at most for its batch; auto: run.minutes / 200, 2 to 30, on this machine."""
