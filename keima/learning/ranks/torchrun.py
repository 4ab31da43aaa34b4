"""Start a program on several ranks of this machine with torchrun, which restarts all of them if one dies."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.run import parse_args, run

from keima.base.system.limits import count_usable_cores
from keima.base.system.signals import INTERRUPTED, ends_with_terminal
from keima.learning.ranks.meeting import DEFAULT_PORT, LOCALHOST, reject_foreign_server
from keima.learning.ranks.process_group import check_rendezvous, local_address_towards, read_rank_timeout
from keima.networks.inference.evaluator import count_gpus
from keima.paths import with_code_on_path

UNDER_NOHUP = ("--signals-to-handle", "SIGTERM,SIGINT,SIGQUIT")  # by default torchrun would end with its terminal
SECONDS_TO_END = 300  # for a rank to finish its step and save after it was asked to stop


@dataclass(frozen=True, kw_only=True)
class RankLaunch:
    """The ranks to start on this machine, and where they meet those of other machines."""

    ranks: int  # on this machine
    nodes: int = 1  # number of machines
    node_rank: int = 0  # this machine's number, from 0
    master_addr: str | None = None  # of the first machine
    master_port: int | None = None
    restarts: int = 3  # how often all ranks are restarted after one has died


def count_ranks_to_start(asked: int | None, device: str, *, usual: int = 1) -> tuple[int, str]:
    """Return how many ranks to start on this machine, and a sentence if that differs from the request.

    Each rank needs its own GPU, or its own core on a machine without GPUs. With ``device`` "cpu" the number is as
    requested.

    Args:
        asked: the requested number; None: one per GPU.
        device: "auto", "cuda" or "cpu".
        usual: the number on a machine without GPUs if ``asked`` is None.
    """
    gpus, cores = count_gpus() if device != "cpu" else 0, count_usable_cores()
    if asked is None:
        count = gpus or min(usual, cores)
        return count, "" if gpus or device == "cpu" else f"No GPU found: {_ranks_text(count)} on the CPU"
    if device == "cpu" or asked <= gpus or (asked == 1 and not gpus):
        return asked, ""
    if gpus:
        return gpus, f"{asked} GPUs requested, {gpus} found: {_ranks_text(gpus)} with a GPU each"
    count = min(asked, cores)
    fewer = f", one per core; --device cpu starts all {asked}" if count < asked else ""
    return count, f"{asked} GPUs requested, none found: {_ranks_text(count)} on the CPU{fewer}"


def _ranks_text(count: int) -> str:
    return f"{count} rank{'s' if count > 1 else ''}"


def check_machines_can_meet(start: RankLaunch) -> None:
    """Check that the machines can meet; all but the first wait until the first is there.

    Raises:
        ValueError: they cannot.
        RuntimeError: the first machine does not answer.
    """
    if not 0 <= start.node_rank < start.nodes:
        raise ValueError(
            f"--node-rank {start.node_rank} is out of range for --nodes {start.nodes}: machines are numbered from 0"
        )
    address, port = start.master_addr or LOCALHOST, start.master_port or DEFAULT_PORT
    check_rendezvous(start.node_rank, address, port, seconds=read_rank_timeout().total_seconds())
    if start.node_rank:
        reject_foreign_server(address, port)


def run_ranks(program: Sequence[str], words: Sequence[str], start: RankLaunch) -> int:
    """Run a program on several ranks to its end; return 0, or 130 after Ctrl-C, which reaches every rank once.

    Closing the terminal acts like Ctrl-C, unless the program was started to outlive it, for example with nohup.

    Args:
        program: as torchrun is told: a file, or ``--module`` and its first words. It joins the other ranks with
            ``keima.learning.ranks.process_group.join_ranks``.
        words: its arguments.
        start: how many ranks, and where they meet; each machine calls this.

    Raises:
        ValueError: this machine has no address that the others can reach.
        RuntimeError: the machines have not met, or a rank has died more often than ``start.restarts``.
    """
    address, port = start.master_addr or LOCALHOST, start.master_port or DEFAULT_PORT
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does, without its warning
    os.environ.update(with_code_on_path(os.environ))
    logging.getLogger("torch.distributed.elastic").setLevel(
        logging.CRITICAL
    )  # failures are reported below, in one line
    line = [
        *_rendezvous_flags(start, address, port),
        *(() if ends_with_terminal() else UNDER_NOHUP),
        "--nproc-per-node",
        str(start.ranks),
        "--max-restarts",
        str(start.restarts),
    ]
    try:
        run(parse_args([*line, "--shutdown-timeout", str(SECONDS_TO_END), *program, *words]))
    except SignalException:
        return INTERRUPTED
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        often = f"after {start.restarts} restarts" if start.restarts else "and --max-restarts 0 allows no restart"
        raise RuntimeError(
            f"rank {rank} has ended with code {failure.exitcode} {often}; continue with --resume"
        ) from error
    except RendezvousError as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise RuntimeError(f"the {start.nodes} machines have not met at {address}, port {port}: {reason}") from error
    return 0


def _rendezvous_flags(start: RankLaunch, address: str, port: int) -> list[str]:
    """Return the flags for torchrun that name the place where the machines meet."""
    if start.nodes == 1:
        return ["--master-port", str(port)]
    host = "true" if start.node_rank == 0 else "false"
    settings = f"is_host={host},join_timeout={round(read_rank_timeout().total_seconds())}"
    place = ["--nnodes", str(start.nodes), "--rdzv-backend", "c10d", "--rdzv-conf", settings]
    # The address at which the others reach this machine, because its name may not resolve.
    return [
        *place,
        "--rdzv-endpoint",
        f"{address}:{port}",
        "--rdzv-id",
        f"keima-{port}",
        "--local-addr",
        local_address_towards(address),
    ]
