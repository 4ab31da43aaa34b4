"""What plays on the machines of a cluster: cores and GPUs, for a run whose settings are chosen."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

from keima.cluster.connector import NotDone, SSHConnector
from keima.coach.proposal import Players
from keima.config.sections.cluster import DistributedSettings


def find_players_elsewhere(
    path: Path, distributed: DistributedSettings, *, say: Callable[[str], None]
) -> Players | None:
    """Return what the machines in a settings file have to play with; None: neither they nor the file can say."""
    checked = []
    if distributed.workers:
        say("asking the machines how many cores and GPUs they have")
        try:
            checked = list(SSHConnector(path).check())
        except NotDone as error:
            say(str(error))
    for each in checked:
        if not each.slots:
            say(f"{each.machine.name} does not answer, and is not counted")
    slots = [(each.machine.name, slot) for each in checked for slot in each.slots]
    cores, machines = sum(slot.gpu is None for _, slot in slots), len({machine for machine, _ in slots})
    gpus = len({(machine, slot.gpu) for machine, slot in slots if slot.gpu is not None})
    for count, share in _slots_of_schedulers(distributed):
        machines, cores, gpus = machines + count, cores + count * (not share), gpus + math.ceil(count * min(share, 1))
    return Players(cores=cores, gpus=gpus, machines=machines) if machines else None


def _slots_of_schedulers(distributed: DistributedSettings) -> Iterator[tuple[int, float]]:
    """Yield how many workers Slurm and Ray are asked for, and how many GPUs each has, which several may share."""
    if distributed.slurm:
        yield distributed.slurm.count, distributed.slurm.gpus
    if distributed.ray and distributed.ray.slots != "auto":
        yield distributed.ray.slots, distributed.ray.num_gpus
