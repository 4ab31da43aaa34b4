"""Assigns the GPUs of this machine to its worker processes.

A worker sees one GPU or none: its part of ``CUDA_VISIBLE_DEVICES``. Workers get only GPUs that this process sees.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from keima.base.system.limits import count_usable_cores
from keima.config.schema import Settings
from keima.networks.inference.evaluator import count_gpus

CUDA_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
WORKERS_PER_GPU = 2  # if one ends, the other goes on


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The devices of the workers."""

    devices: tuple[str, ...]  # for each worker, its CUDA_VISIBLE_DEVICES; "" is the CPU
    note: str = ""  # what the user should know

    def __len__(self) -> int:
        """Return the number of workers."""
        return len(self.devices)


@dataclass(frozen=True, kw_only=True)
class DeviceSlot:
    """The device and the name of one worker."""

    worker: str  # the worker's name, such as gpu-0
    title: str  # of the device, for people, such as GPU 0
    device: str  # its CUDA_VISIBLE_DEVICES; "" is the CPU


def visible_gpus(count: int, listed: str | None) -> tuple[str, ...]:
    """Return the names of the GPUs that this process sees, in its own order.

    Args:
        count: the number of GPUs.
        listed: CUDA_VISIBLE_DEVICES: numbers or UUIDs, or nothing to hide all; None: it is not set.
    """
    if listed is None:
        return tuple(map(str, range(count)))
    # CUDA, which counted, stops at the first name that does not exist.
    return tuple(name.strip() for name in listed.split(","))[:count]


def spread_workers(
    gpus: Sequence[str],
    *,
    cores: int,
    workers: int | None = None,
    per_gpu: int | None = None,
) -> Spread:
    """Spread worker processes evenly over the GPUs, or if there are none, leave them to the CPU.

    Args:
        gpus: the names of the GPUs.
        cores: the cores that this process may use; without GPUs, by default one worker plays on each. On a GPU it is
            two, whose threads share the cores.
        workers: the number of workers in all; with several GPUs rounded down to a multiple, but at least one per GPU.
        per_gpu: the number of workers per GPU.

    Raises:
        ValueError: there would be no worker, or both numbers are given.
    """
    if workers is not None and per_gpu is not None:
        raise ValueError("give the number of workers either in total or for each GPU, not both")
    for name, number in (("workers", workers), ("workers for each GPU", per_gpu)):
        if number is not None and number < 1:
            raise ValueError(f"{number} {name} cannot play: it takes at least 1")
    if not gpus:
        note = f"no GPU found: {cores} workers play on the CPU, one for each core" if per_gpu else ""
        return Spread(devices=("",) * (workers or cores), note=note)
    if per_gpu is None:
        per_gpu = WORKERS_PER_GPU if workers is None else max(1, workers // len(gpus))
    devices, note = tuple(gpus) * per_gpu, ""
    if workers is not None and workers != len(devices):
        note = (
            f"{workers} workers cannot be spread evenly over {len(gpus)} GPUs: {len(devices)} play, {per_gpu} on each"
        )
    return Spread(devices=devices, note=note)


def spread_local_workers(settings: Settings, *, per_gpu: int | None = None) -> Spread:
    """Spread the workers of this machine by the run's settings, or with ``per_gpu`` for each GPU.

    Raises:
        ValueError: see ``spread_workers``.
    """
    asked = settings.self_play.workers
    gpus = worker_gpus(settings)
    workers = None if asked == "auto" else asked
    return spread_workers(gpus, cores=count_usable_cores(), workers=workers, per_gpu=per_gpu)


def worker_gpus(settings: Settings) -> tuple[str, ...]:
    """Return the names of the GPUs on which a run's workers play here.

    Raises:
        ValueError: there is no such GPU.
    """
    device = settings.training.device
    if "cpu" in (device, settings.self_play.device):
        return ()
    gpus, number = local_gpus(), device.partition(":")[2]
    if number and int(number) >= len(gpus):
        raise ValueError(f"training.device: there is no {device} here; {len(gpus)} GPUs are visible")
    return (gpus[int(number)],) if number else gpus


def device_slots(asked: str | None, gpus: Sequence[str], *, cores: int, per_device: int = 1) -> tuple[DeviceSlot, ...]:
    """Return the workers on the requested devices, the first device's first.

    Args:
        asked: numbers of GPUs, such as "0,1", or "cpu" once per worker; None: all GPUs, or without any, the cores. On a
            machine without GPUs, the CPU stands in for each.
        gpus: the names of the GPUs that there are.
        cores: the cores that this process may use.
        per_device: workers per device.

    Raises:
        ValueError: there is no such GPU, or the list is invalid.
    """
    if asked is None:
        asked = ",".join(map(str, range(len(gpus)))) or ",".join(["cpu"] * cores)
    if per_device < 1:
        raise ValueError(f"{per_device} workers for each device cannot play: it takes at least 1")
    words = [word.strip() for word in asked.split(",")]
    if set(words) == {"cpu"}:
        devices = [(f"cpu-{number}", f"CPU {number}", "") for number in range(len(words))]
    else:
        devices = [_parse_gpu(word, gpus, asked) for word in words]
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


def _parse_gpu(word: str, gpus: Sequence[str], asked: str) -> tuple[str, str, str]:
    """Return the worker of a GPU, its title, and the GPU's name."""
    if not re.fullmatch("[0-9]{1,4}", word):
        raise ValueError(
            f'--gpus {asked} is not a list of GPUs: write their numbers, such as 0,1, or cpu,cpu; found "{word}"'
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


def local_gpus() -> tuple[str, ...]:
    """Return the names of the GPUs that this process sees, in its own order."""
    return visible_gpus(count_gpus(), os.environ.get(CUDA_VISIBLE_DEVICES))


def restrict_to_gpus(slots: Sequence[DeviceSlot]) -> None:
    """Restrict this process to the GPUs of these workers, the first one's first; call it before any GPU is used."""
    os.environ[CUDA_VISIBLE_DEVICES] = ",".join(dict.fromkeys(slot.device for slot in slots))
