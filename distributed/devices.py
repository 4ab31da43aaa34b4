"""Which GPU each worker process of this machine plays on.

A worker sees one GPU or none: the part of ``CUDA_VISIBLE_DEVICES`` that is its own. What this process was told to see binds its workers.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from configs.schema import Settings
from training.evaluator import count_gpus

CUDA_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
FEWEST_PER_GPU = 2  # while one worker of a GPU prepares its positions, another's are evaluated


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Where the workers play."""

    devices: tuple[str, ...]  # for each worker, what CUDA_VISIBLE_DEVICES names for it; "" is the CPU
    note: str = ""  # what people should know of it

    def __len__(self) -> int:
        """How many workers there are."""
        return len(self.devices)


def visible_gpus(count: int, listed: str | None) -> tuple[str, ...]:
    """The names of the GPUs that this process sees, in its own order.

    Args:
        count: how many they are.
        listed: what CUDA_VISIBLE_DEVICES says: numbers or UUIDs, or nothing at all to hide all of them; None where it is not set.
    """
    if listed is None:
        return tuple(map(str, range(count)))
    return tuple(name.strip() for name in listed.split(","))[:count]  # CUDA, which counted, stops at the first that there is not


def spread_workers(gpus: Sequence[str], *, cores: int, workers: int | None = None, per_gpu: int | None = None) -> Spread:
    """Spread worker processes evenly over the GPUs, or where there are none, leave them to the CPU.

    Args:
        gpus: the names of the GPUs.
        cores: of this machine, that this process may use. One worker for each, with at least two for each GPU, unless it is said otherwise.
        workers: how many in all; over several GPUs, rounded down to what divides evenly, but at least one for each.
        per_gpu: how many for each GPU.

    Raises:
        ValueError: there would be no worker, or both numbers are given.
    """
    if workers is not None and per_gpu is not None:
        raise ValueError("give the number of workers either in all or for each GPU, not both")
    for name, number in (("workers", workers), ("workers for each GPU", per_gpu)):
        if number is not None and number < 1:
            raise ValueError(f"{number} {name} cannot play: it takes at least 1")
    if not gpus:
        note = f"no GPU is to be seen here, so {cores} workers play on the CPU, one for each core" if per_gpu else ""
        return Spread(devices=("",) * (workers or cores), note=note)
    if per_gpu is None:
        per_gpu = max(FEWEST_PER_GPU, cores // len(gpus)) if workers is None else max(1, workers // len(gpus))
    devices = tuple(gpus) * per_gpu
    note = ""
    if workers is not None and workers != len(devices):
        note = f"{workers} workers cannot be spread evenly over {len(gpus)} GPUs: {len(devices)} play, {per_gpu} on each"
    return Spread(devices=devices, note=note)


def spread_here(settings: Settings, *, per_gpu: int | None = None) -> Spread:
    """How the workers of this machine are spread by the run's settings, or by so many for each GPU.

    Raises:
        ValueError: see ``spread_workers``.
    """
    asked = settings.self_play.workers
    gpus = () if settings.training.device == "cpu" else visible_gpus(count_gpus(), os.environ.get(CUDA_VISIBLE_DEVICES))
    workers = None if asked == "auto" else asked
    return spread_workers(gpus, cores=len(os.sched_getaffinity(0)), workers=workers, per_gpu=per_gpu)
