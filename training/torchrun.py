"""Starts a program on several ranks of this machine, by torchrun, which starts all of them anew if one dies."""

import os
from collections.abc import Sequence
from pathlib import Path

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run

from training.ctrl_c import INTERRUPTED
from training.ranks import DEFAULT_PORT

SECONDS_TO_END = 300  # for a rank that is asked to: it ends what it is at, and keeps it


def run_ranks(program: Path, words: Sequence[str], *, count: int, port: int | None = None, restarts: int = 3) -> int:
    """Run a program on ``count`` ranks to its end; returns 0, or 130 after Ctrl-C, which all ranks are told of once.

    Args:
        program: a file of Python, which joins the others by ``training.ranks.joined``.
        words: its arguments.
        port: a free one, by which the ranks meet.
        restarts: how often all begin anew after one has died.

    Raises:
        RuntimeError: a rank has died once more than that.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does, but for a warning
    places = ["--nproc-per-node", str(count), "--master-port", str(port or DEFAULT_PORT), "--max-restarts", str(restarts)]
    line = [*places, "--shutdown-timeout", str(SECONDS_TO_END), str(program), *words]
    try:
        run(parse_args(line))
    except SignalException:
        return INTERRUPTED
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        often = f"after {restarts} new beginnings" if restarts else "and --max-restarts 0 allows no new beginning"
        raise RuntimeError(f"rank {rank} has ended with code {failure.exitcode} {often}; go on by --resume") from error
    return 0
