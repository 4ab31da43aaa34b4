"""Rank 0 of a Coach's learner with several ranks; the other ranks repeat its calls.

Every rank has its own learner and window. Only rank 0 has workers and a ledger; it sends the others each batch that
enters its window and each call of its learner. So all ranks draw the same positions for a step, and each computes its
share of them.
"""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from keima.base.reports.run_reports import LearnerReport
from keima.config.own_modules import source_of
from keima.config.schema import Settings
from keima.data.records import GameBatch, encode_batch
from keima.learning.learner import Learner, Window
from keima.learning.ranks.process_group import RankLost, Ranks
from keima.networks.files.weights_file import encode_tree
from keima.replay.window import ReplayWindow


def send_command(ranks: Ranks, what: str, payload: bytes = b"", **details: Any) -> None:
    """Send a command to the other ranks, which read it with ``next_command``; do nothing once one of them is lost."""
    if not ranks.is_alone and not ranks.lost:
        ranks.broadcast_next_message(json.dumps({"what": what, **details}).encode() + b"\n" + payload)


def next_command(ranks: Ranks) -> tuple[str, dict[str, Any], bytes]:
    """Return the next command of rank 0, with its details and payload."""
    header, _, payload = ranks.broadcast_next_message().partition(b"\n")
    details = json.loads(header)
    return details.pop("what"), details, payload


@contextmanager
def lead_ranks(ranks: Ranks, settings: Settings) -> Iterator[None]:
    """Give the other ranks a learner and a window for these settings within the block; end them after it."""
    modules = {name: source_of(name).decode() for name in settings.own_modules}  # other machines may lack them
    send_command(ranks, "begin", settings=settings.model_dump(mode="json"), modules=modules)
    try:
        yield
    except (KeyboardInterrupt, RankLost):
        raise  # the others may be in the middle of a step; they end when this rank is gone
    except BaseException:
        send_command(ranks, "end")
        raise
    send_command(ranks, "end")


def share_state(learner: Learner) -> None:
    """Copy the state of this learner to the other ranks."""
    if not learner.ranks.is_alone:
        state = learner.state()
        send_command(learner.ranks, "state", encode_tree({"tensors": state.tensors, "counters": state.counters}))


class LeadingWindow(ReplayWindow):
    """A window whose batches go to all ranks."""

    def __init__(self, *arguments: Any, ranks: Ranks, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._ranks = ranks

    def add(self, batch: GameBatch) -> int:
        """See ``ReplayWindow``."""
        if not self._ranks.is_alone:
            send_command(self._ranks, "add", encode_batch(batch))
        return super().add(batch)

    def clear(self) -> None:
        """See ``ReplayWindow``."""
        send_command(self._ranks, "clear")
        super().clear()

    def resize(self, capacity_positions: int) -> None:
        """See ``ReplayWindow``."""
        send_command(self._ranks, "resize", capacity_positions=capacity_positions)
        super().resize(capacity_positions)


class LeadingLearner(Learner):
    """A learner whose steps all ranks take."""

    def train(
        self,
        window: Window,
        steps: int,
        seed: int,
        *,
        batch_size: int = 0,
        progress: float = 0.0,
        seconds: float = math.inf,
    ) -> LearnerReport:
        """See ``Learner``; the window is a ``LeadingWindow``."""
        send_command(
            self.ranks, "train", steps=steps, seed=seed, batch_size=batch_size, progress=progress, seconds=seconds
        )
        return super().train(window, steps, seed, batch_size=batch_size, progress=progress, seconds=seconds)
