"""Which GPU each worker process of this machine plays on.

A worker sees one GPU or none: the part of ``CUDA_VISIBLE_DEVICES`` that is its own. What this process was told to see
binds its workers.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from configs.schema import Settings
from training.networks.evaluator import count_gpus

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


@dataclass(frozen=True, kw_only=True)
class DeviceSlot:
    """Where one worker plays, and what it is called."""

    worker: str  # its name, such as gpu-0
    title: str  # of the device, for people, such as GPU 0
    device: str  # what CUDA_VISIBLE_DEVICES names for it; "" is the CPU


def visible_gpus(count: int, listed: str | None) -> tuple[str, ...]:
    """The names of the GPUs that this process sees, in its own order.

    Args:
        count: how many they are. listed: what CUDA_VISIBLE_DEVICES says: numbers or UUIDs, or nothing at all to hide
        all of them; None where it is not set.
    """
    if listed is None:
        return tuple(map(str, range(count)))
    return tuple(name.strip() for name in listed.split(","))[
        :count
    ]  # CUDA, which counted, stops at the first that there is not


def spread_workers(
    gpus: Sequence[str], *, cores: int, workers: int | None = None, per_gpu: int | None = None
) -> Spread:
    """Spread worker processes evenly over the GPUs, or where there are none, leave them to the CPU.

    Args:
        gpus: the names of the GPUs. cores: of this machine, that this process may use. One worker for each, with at
        least two for each GPU, unless it is said otherwise. workers: how many in all; over several GPUs, rounded down
        to what divides evenly, but at least one for each. per_gpu: how many for each GPU.

    Raises:
        ValueError: there would be no worker, or both numbers are given.
    """
    if workers is not None and per_gpu is not None:
        raise ValueError("give the number of workers either in all or for each GPU, not both")
    for name, number in (("workers", workers), ("workers for each GPU", per_gpu)):
        if number is not None and number < 1:
            raise ValueError(f"{number} {name} cannot play: it takes at least 1")
    if not gpus:
        note = f"there is no GPU to play on: {cores} workers play on the CPU, one for each core" if per_gpu else ""
        return Spread(devices=("",) * (workers or cores), note=note)
    if per_gpu is None:
        per_gpu = max(FEWEST_PER_GPU, cores // len(gpus)) if workers is None else max(1, workers // len(gpus))
    devices = tuple(gpus) * per_gpu
    note = ""
    if workers is not None and workers != len(devices):
        note = (
            f"{workers} workers cannot be spread evenly over {len(gpus)} GPUs: {len(devices)} play, {per_gpu} on each"
        )
    return Spread(devices=devices, note=note)


def spread_here(settings: Settings, *, per_gpu: int | None = None) -> Spread:
    """How the workers of this machine are spread by the run's settings, or by so many for each GPU.

    Raises:
        ValueError: see ``spread_workers``.
    """
    asked = settings.self_play.workers
    gpus = () if "cpu" in (settings.training.device, settings.self_play.device) else gpus_here()
    workers = None if asked == "auto" else asked
    return spread_workers(gpus, cores=len(os.sched_getaffinity(0)), workers=workers, per_gpu=per_gpu)


def device_slots(asked: str | None, gpus: Sequence[str], *, cores: int, per_device: int = 1) -> tuple[DeviceSlot, ...]:
    """The workers on the devices that somebody has asked for, the first device's first.

    Args:
        asked: numbers of GPUs, such as "0,1", or "cpu" as often as workers are to play on it; None: all GPUs, or
        without any, the cores.
            Where there is no GPU at all, the CPU stands in for each that is asked for.
        gpus: the names of the GPUs that there are.
        cores: of this machine, that this process may use.
        per_device: workers for each.

    Raises:
        ValueError: there is no such GPU, or the list makes no sense.
    """
    if asked is None:
        asked = ",".join(map(str, range(len(gpus)))) or ",".join(["cpu"] * cores)
    if per_device < 1:
        raise ValueError(f"{per_device} workers for each device cannot play: it takes at least 1")
    words = [word.strip() for word in asked.split(",")]
    if set(words) == {"cpu"}:
        devices = [(f"cpu-{number}", f"CPU {number}", "") for number in range(len(words))]
    else:
        devices = [_gpu(word, gpus, asked) for word in words]
    if len(set(devices)) < len(devices):
        raise ValueError(f"--gpus {asked} names a GPU twice: name each once")
    if not gpus:
        devices = [(f"cpu-{number}", f"CPU {number}", "") for number in range(len(devices))]
    rounds = [f"-{number + 1}" if per_device > 1 else "" for number in range(per_device)]
    return tuple(
        DeviceSlot(worker=name + suffix, title=title, device=device)
        for suffix in rounds
        for name, title, device in devices
    )


def _gpu(word: str, gpus: Sequence[str], asked: str) -> tuple[str, str, str]:
    """A GPU's worker, its title, and its name."""
    if not re.fullmatch("[0-9]{1,4}", word):
        raise ValueError(
            f'--gpus {asked} is no list of GPUs: write their numbers, such as 0,1, or cpu,cpu; found "{word}"'
        )
    number = int(word)
    if not gpus:
        return f"cpu-{number}", f"CPU {number}", ""
    if number >= len(gpus):
        there = (
            "the only one is GPU 0"
            if len(gpus) == 1
            else f"there are {len(gpus)}: {', '.join(map(str, range(len(gpus))))}"
        )
        raise ValueError(f"there is no GPU {number} here: {there}")
    return f"gpu-{number}", f"GPU {number}", gpus[number]


def gpus_here() -> tuple[str, ...]:
    """The names of the GPUs that this process sees, in its own order."""
    return visible_gpus(count_gpus(), os.environ.get(CUDA_VISIBLE_DEVICES))


def see_only(slots: Sequence[DeviceSlot]) -> None:
    """Have this process see the GPUs of these workers alone, the first one's first; to be done before it uses any."""
    os.environ[CUDA_VISIBLE_DEVICES] = ",".join(dict.fromkeys(slot.device for slot in slots))
