"""Starts a program on several ranks of this machine, by torchrun, which starts all of them anew if one dies."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.run import parse_args, run

from training.common.signals import INTERRUPTED, heeds_hangup
from training.networks.evaluator import count_gpus
from training.ranks.meeting import DEFAULT_PORT, see_that_a_training_answers
from training.ranks.ranks import meet, own_address_towards, patience

UNDER_NOHUP = ("--signals-to-handle", "SIGTERM,SIGINT,SIGQUIT")  # by default torchrun ends with its terminal there too
SECONDS_TO_END = 300  # for a rank that is asked to: it ends what it is at, and keeps it
HERE = "localhost"


@dataclass(frozen=True, kw_only=True)
class Start:
    """What is started on this machine, and where it meets what is started on others."""

    ranks: int  # on this machine
    nodes: int = 1  # machines
    node_rank: int = 0  # which of them this is
    master_addr: str | None = None  # of the first machine
    master_port: int | None = None
    restarts: int = 3  # how often all begin anew after a rank has died


def room_for_ranks(asked: int | None, device: str, *, usual: int = 1) -> tuple[int, str]:
    """How many ranks are started on this machine, and a sentence where that may not be what was meant.

    A rank needs a GPU of its own; where there is none at all, a core. Who asks for the CPU by ``device`` gets as many
    as are asked for.

    Args:
        asked: for so many; None: for as many as there are GPUs.
        device: "auto", "cuda" or "cpu".
        usual: so many where there is no GPU, and nobody has asked for a number.
    """
    gpus, cores = count_gpus() if device != "cpu" else 0, len(os.sched_getaffinity(0))
    if asked is None:
        count = gpus or min(usual, cores)
        return count, "" if gpus or device == "cpu" else f"No GPU is here: {_ranks(count)} on the CPU"
    if device == "cpu" or asked <= gpus or (asked == 1 and not gpus):
        return asked, ""
    if gpus:
        found = f"{gpus} {'is' if gpus == 1 else 'are'} here"
        return gpus, f"{asked} GPUs are asked for, and {found}: {_ranks(gpus)} with a GPU each"
    count = min(asked, cores)
    fewer = f", one for each core; --device cpu starts all {asked}" if count < asked else ""
    return count, f"{asked} GPUs are asked for, and none is here: {_ranks(count)} on the CPU{fewer}"


def _ranks(count: int) -> str:
    return f"{count} rank{'s' if count > 1 else ''}"


def see_that_they_can_meet(start: Start) -> None:
    """Return when the first machine is there, for this one; where this is the first, at once.

    Raises:
        ValueError: it cannot be.
        RuntimeError: it is not there.
    """
    if not 0 <= start.node_rank < start.nodes:
        raise ValueError(
            f"--node-rank {start.node_rank} is none of --nodes {start.nodes}: machines are numbered from 0"
        )
    address, port = start.master_addr or HERE, start.master_port or DEFAULT_PORT
    meet(start.node_rank, address, port, seconds=patience().total_seconds())
    if start.node_rank:
        see_that_a_training_answers(address, port)


def run_ranks(program: Path, words: Sequence[str], start: Start) -> int:
    """Run a program on several ranks to its end; returns 0, or 130 after Ctrl-C, which all ranks are told of once.

    A terminal that is closed is as Ctrl-C, but not for a program that was started to outlive it, as by nohup.

    Args:
        program: a file of Python, which joins the others by ``training.ranks.ranks.joined``.
        words: its arguments.
        start: how many, and where they meet; several machines each call this.

    Raises:
        ValueError: this machine has no address for the others.
        RuntimeError: the machines have not met, or a rank has died once more than may be.
    """
    address, port = start.master_addr or HERE, start.master_port or DEFAULT_PORT
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does, but for a warning
    logging.getLogger("torch.distributed.elastic").setLevel(
        logging.CRITICAL
    )  # what it says of a failure is said below, and shorter
    line = [
        *_meeting(start, address, port),
        *(() if heeds_hangup() else UNDER_NOHUP),
        "--nproc-per-node",
        str(start.ranks),
        "--max-restarts",
        str(start.restarts),
    ]
    try:
        run(parse_args([*line, "--shutdown-timeout", str(SECONDS_TO_END), str(program), *words]))
    except SignalException:
        return INTERRUPTED
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        often = (
            f"after {start.restarts} new beginnings"
            if start.restarts
            else "and --max-restarts 0 allows no new beginning"
        )
        raise RuntimeError(f"rank {rank} has ended with code {failure.exitcode} {often}; go on by --resume") from error
    except RendezvousError as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise RuntimeError(f"the {start.nodes} machines have not met at {address}, port {port}: {reason}") from error
    return 0


def _meeting(start: Start, address: str, port: int) -> list[str]:
    """The flags of torchrun that say where the machines meet."""
    if start.nodes == 1:
        return ["--master-port", str(port)]
    host = "true" if start.node_rank == 0 else "false"
    settings = f"is_host={host},join_timeout={round(patience().total_seconds())}"
    place = ["--nnodes", str(start.nodes), "--rdzv-backend", "c10d", "--rdzv-conf", settings]
    # The address by which the others reach this machine, for its name may lead nowhere.
    return [
        *place,
        "--rdzv-endpoint",
        f"{address}:{port}",
        "--rdzv-id",
        f"keima-{port}",
        "--local-addr",
        own_address_towards(address),
    ]
