"""The processes that train one network together, each a *rank* in the words of ``torch.distributed``.

A process alone is a group of one, ``ALONE``, for which every operation here is nothing at all. Several find each other
through the variables that torchrun sets, or through what the command line says. GPUs speak NCCL to each other;
processors, and what is not on a GPU, speak gloo.
"""

import fcntl
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import FileStore, Store, TCPStore  # type: ignore[attr-defined]  # documented, but not marked as exported

from training.ranks.meeting import DEFAULT_PORT, check_own_address, wait_for_address

BUCKET_BYTES = (
    64 * 2**20
)  # of gradients that are summed in one go: large enough to fill a network, small enough to copy
TIMEOUT = timedelta(minutes=15)  # of waiting for the others, who may be compiling or writing
PATIENCE = timedelta(days=365)  # of waiting for rank 0's next word: that it has ended is noticed without it
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
ANY_PORT = 9
SIOCGIFADDR = 0x8915  # of Linux: the IPv4 address of an interface, see netdevice(7)
STORE_PORT = "keima/store_port"  # in torchrun's store: where the ranks' own one is
REFUSED_AFTER = timedelta(seconds=1)  # of asking at an old address
ROOM = "keima/room"  # in torchrun's store: which ranks have room on their machines
NCCL, NCCL_TIMEOUT = "NCCL_", "NCCL_TIMEOUT"


class RankLost(RuntimeError):
    """Another rank has ended, or cannot be reached any more."""


class NotNeeded(Exception):
    """torchrun has started more ranks here than the machine has room for, and this is one of those that leave."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a process stands among those that train together, and where they meet; what is None is not said."""

    rank: int | None = None
    world_size: int | None = None
    local_rank: int | None = None  # among the processes of this machine
    master_addr: str | None = None  # the machine of rank 0
    master_port: int | None = None


class Ranks:
    """A group of processes, as one of them sees it.

    Whatever has to do with the others raises ``RankLost`` when one of them has ended.
    """

    def __init__(
        self,
        *,
        rank: int = 0,
        world_size: int = 1,
        local_rank: int = 0,
        neighbours: int = 1,
        backend: str = "none",
        restarts: int = 0,
        started: int | None = None,
    ) -> None:
        self.rank, self.world_size, self.local_rank = rank, world_size, local_rank
        self.neighbours = neighbours  # ranks on this machine, this one included
        self.backend = backend  # "nccl", "gloo", or "none" for a process alone
        self.restarts = restarts  # how often torchrun has begun anew after a failure
        self.started = started or world_size  # ranks, with those that have left because there was no room for them
        self._patient: dist.ProcessGroup | None = None

    @property
    def is_main(self) -> bool:
        """Whether this is the rank that prints and saves."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether there is nobody else."""
        return self.world_size == 1

    @property
    def rows(self) -> slice:
        """This rank's share of the rows of any batch: shares differ by one row at most."""
        return slice(self.rank, None, self.world_size)

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks.

        All ranks give the same shapes in the same order, and get the same bits.
        """
        if self.alone:
            return
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            with _reaching():
                dist.all_reduce(flat)
            for tensor, part in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
                tensor.copy_(part.view(tensor.shape))

    def largest(self, number: int) -> int:
        """The largest of what the ranks say."""
        return max(self.everyones(number))

    def everyones(self, number: int) -> list[int]:
        """What each rank says."""
        return [int(tensor) for tensor in self.gather(torch.tensor(number))]

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's tensor, on the CPU; all have one shape and type."""
        if self.alone:
            return [tensor]
        parts = [torch.empty_like(tensor) for _ in range(self.world_size)]
        with _reaching():
            dist.all_gather(parts, tensor)
        return parts

    def agreed(self, answer: bool) -> bool:
        """What rank 0 answers."""
        verdict = torch.tensor(int(answer))
        self.broadcast_([verdict])
        return bool(verdict)

    def next_message(self, data: bytes = b"") -> bytes:
        """What rank 0 says next, for which the others wait as long as it takes."""
        with _reaching():
            self._patient = self._patient or dist.new_group(backend="gloo", timeout=PATIENCE)
        return self.broadcast_bytes(data, group=self._patient)

    def broadcast_(self, tensors: Sequence[Tensor], *, source: int = 0, group: dist.ProcessGroup | None = None) -> None:
        """Replace each tensor by what it is on the rank ``source``; they may lie anywhere."""
        if self.alone:
            return
        for tensor in tensors:
            sent = tensor.detach().contiguous()
            with _reaching():
                dist.broadcast(sent, source, group)
            if self.rank != source:
                tensor.copy_(sent)

    def broadcast_bytes(self, data: bytes, *, source: int = 0, group: dist.ProcessGroup | None = None) -> bytes:
        """What the rank ``source`` gives."""
        if self.alone:
            return data
        length = torch.tensor(len(data))
        self.broadcast_([length], source=source, group=group)
        if not int(length):
            return b""
        sent = (
            torch.frombuffer(bytearray(data), dtype=torch.uint8)
            if self.rank == source
            else torch.empty(int(length), dtype=torch.uint8)
        )
        self.broadcast_([sent], source=source, group=group)
        return sent.numpy().tobytes()

    def broadcast_text(self, text: str, *, source: int = 0) -> str:
        """The text that the rank ``source`` gives."""
        return self.broadcast_bytes(text.encode(), source=source).decode()


ALONE = Ranks()


@contextmanager
def _reaching() -> Iterator[None]:
    """Within the block, what torch says of a connection that is gone is a ``RankLost``."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        raise RankLost(f"another rank of this training has ended, or cannot be reached any more: {reason}") from error


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """The tensors in their order, a few at a time."""
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and (size + tensor.nbytes > BUCKET_BYTES or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.nbytes
    if bucket:
        yield bucket


@contextmanager
def joined(
    told: Place,
    *,
    device: str = "auto",
    backend: str = "auto",
    store: Store | None = None,
    environment: Mapping[str, str] | None = None,
    room: Callable[[int], int] | None = None,
) -> Iterator[Ranks]:
    """Within the block, the group that this process belongs to.

    Args:
        told: by the command line; it counts before what torchrun says.
        device: "cpu" keeps a group off the GPUs.
        backend: "nccl", "gloo", or "auto": NCCL where there are GPUs.
        store: by which the ranks find each other, where the one who started them has given them one.
        environment: of this process, but for tests.
        room: how many of so many ranks there is room for on this machine; torchrun's others leave.

    Raises:
        NotNeeded: this one leaves.
        ValueError: what is told does not fit together.
        RuntimeError: the others cannot be reached.
    """
    variables = os.environ if environment is None else environment
    place = _resolved(told, variables)
    assert place.rank is not None and place.world_size is not None and place.local_rank is not None
    by_torchrun = told.rank is None and told.master_addr is None and "MASTER_ADDR" in variables
    started = place.world_size
    here = (None if told.world_size else _number(variables, "LOCAL_WORLD_SIZE")) or place.world_size
    if room and by_torchrun and started > 1:
        place, here = with_room(place, here, room(here)), room(here)
    assert place.rank is not None and place.world_size is not None and place.local_rank is not None
    if place.world_size == 1:
        yield Ranks(local_rank=place.local_rank, restarts=_restarts(variables), started=started)
        return
    on_gpu = device != "cpu" and torch.cuda.is_available()
    backend = ("nccl" if on_gpu else "gloo") if backend == "auto" else backend
    check_backend(backend, device)
    if on_gpu:
        if place.local_rank >= torch.cuda.device_count():
            raise ValueError(
                f"rank {place.rank} has no GPU: {torch.cuda.device_count()} are to be seen here; start fewer ranks"
            )
        torch.cuda.set_device(place.local_rank)
    if store is None and by_torchrun and variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store = store_of_this_start(place)
    host, port = place.master_addr or "localhost", place.master_port or DEFAULT_PORT
    if store is None and not by_torchrun:
        meet(place.rank, host, port, seconds=patience(variables).total_seconds())
    if place.master_addr and GLOO_INTERFACE not in os.environ and (interface := interface_towards(place.master_addr)):
        os.environ[GLOO_INTERFACE] = interface
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if backend == "nccl" else "gloo",
            init_method=None if store else "env://" if by_torchrun else f"tcp://{host}:{port}",
            store=store,
            rank=place.rank,
            world_size=place.world_size,
            timeout=patience(variables),
        )
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        raise RuntimeError(f"the {place.world_size} ranks have not met at {host}, port {port}: {reason}") from error
    try:
        yield Ranks(
            rank=place.rank,
            world_size=place.world_size,
            local_rank=place.local_rank,
            neighbours=here,
            backend=backend,
            restarts=_restarts(variables),
            started=started,
        )
    finally:
        dist.destroy_process_group()


def check_backend(backend: str, device: str) -> None:
    """See that ranks on ``device`` can speak to each other by ``backend``.

    Raises:
        ValueError: they cannot.
    """
    if backend == "nccl" and (device == "cpu" or not torch.cuda.is_available()):
        raise ValueError("--backend nccl: it needs a GPU for each rank, and there is none; use gloo")


def meet(rank: int, address: str, port: int, *, seconds: float) -> None:
    """See that processes that are started one by one can meet: that of ``rank`` 0 at once, the others as soon as it is
    there.

    Raises:
        ValueError: the first one cannot listen there, or nobody knows the address.
        RuntimeError: it is not there.
    """
    if rank == 0:
        check_own_address(address, port)
    else:
        wait_for_address(address, port, seconds=seconds)


def with_room(place: Place, here: int, room: int) -> Place:
    """The place of a rank among those that stay, of whom each machine has as many as it has room for, the first ones.

    Args:
        place: torchrun's, with every number known.
        here: ranks that torchrun has started on this machine.
        room: for so many of them.

    Raises:
        NotNeeded: this one leaves.
    """
    assert place.rank is not None and place.world_size is not None and place.local_rank is not None
    stays = place.local_rank < room
    if here == place.world_size:
        staying = [rank < room for rank in range(here)]
    else:  # other machines have room for others
        assert place.master_addr is not None and place.master_port is not None
        store = TCPStore(place.master_addr, place.master_port, is_master=False, timeout=patience())
        keys = [f"{ROOM}/{place.world_size}/{rank}" for rank in range(place.world_size)]
        store.set(keys[place.rank], str(int(stays)))
        staying = [store.get(key) == b"1" for key in keys] if stays else []
    if not stays:
        raise NotNeeded
    return replace(place, rank=sum(staying[: place.rank]), world_size=sum(staying))


def patience(variables: Mapping[str, str] = os.environ) -> timedelta:
    """How long ranks wait for each other: ``NCCL_TIMEOUT`` seconds, also where it is not NCCL that waits.

    Raises:
        ValueError: it is no number of seconds.
    """
    seconds = _number(variables, NCCL_TIMEOUT)
    if seconds is None:
        return TIMEOUT
    if seconds < 1:
        raise ValueError(f"{NCCL_TIMEOUT}={seconds} in the environment: expected whole seconds from 1")
    return timedelta(seconds=seconds)


def idle_variables(ranks: Ranks, variables: Mapping[str, str] = os.environ) -> str:
    """A sentence about variables of NCCL that are set and change nothing; empty if there are none."""
    names = sorted(name for name in variables if name.startswith(NCCL) and (name != NCCL_TIMEOUT or ranks.alone))
    if not names or ranks.backend == "nccl":
        return ""
    instead = (
        "one process trains alone"
        if ranks.alone
        else f"the ranks speak gloo, which heeds {NCCL_TIMEOUT} and {GLOO_INTERFACE}"
    )
    return f"{', '.join(names)}: for NCCL, which GPUs speak to each other; here {instead}"


def store_in(folder: Path, world_size: int) -> FileStore:
    """A store in an empty folder, by which ranks on one machine find each other; nothing listens for it."""
    return FileStore(str(folder / "store"), world_size)


def interface_towards(address: str) -> str | None:
    """The network interface by which a machine is reached, or by which this one is if it is the same; None if that
    cannot be told.

    Left alone, gloo listens where this machine's own name points, which on Debian is an address that no other machine
    reaches.
    """
    try:
        own = socket.inet_aton(own_address_towards(address))
    except ValueError:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # one without an address
                if fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()))[20:24] == own:
                    return name
    return None


def own_address_towards(address: str) -> str:
    """The address of this machine by which the machine at ``address`` reaches it.

    Raises:
        ValueError: that cannot be told.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, ANY_PORT))  # sends nothing, but looks up the way
        except OSError as error:
            raise ValueError(
                f"--master-addr {address} cannot be reached: {str(error.strerror or error).lower()}"
            ) from error
        own: str = probe.getsockname()[0]
        return own


def store_of_this_start(place: Place) -> TCPStore:
    """The store by which the ranks find each other; rank 0 has it, and torchrun's store says where.

    torchrun's own lives on when the ranks are started again, with the addresses of those that have died: who reads them
    before the new ones are there waits for the dead. torchrun starts nobody before all of the earlier ones have ended,
    on every machine; so an address at which nobody answers is an old one.

    Raises:
        RuntimeError: torchrun's store or rank 0 cannot be reached.
    """
    assert place.master_addr is not None and place.master_port is not None
    torchruns = TCPStore(place.master_addr, place.master_port, is_master=False, timeout=TIMEOUT)
    if place.rank == 0:
        store = TCPStore(place.master_addr, 0, is_master=True, timeout=TIMEOUT, wait_for_workers=False)
        torchruns.set(STORE_PORT, str(store.port))
        return store
    for _ in range(round(TIMEOUT / REFUSED_AFTER)):
        port = int(torchruns.get(STORE_PORT))
        try:
            with socket.create_connection((place.master_addr, port), timeout=REFUSED_AFTER.total_seconds()):
                pass
        except OSError:
            time.sleep(REFUSED_AFTER.total_seconds())
            continue
        return TCPStore(place.master_addr, port, is_master=False, timeout=TIMEOUT, wait_for_workers=False)
    raise RuntimeError(f"rank 0 on {place.master_addr} cannot be reached")


def _restarts(variables: Mapping[str, str]) -> int:
    return int(variables.get("TORCHELASTIC_RESTART_COUNT", "0"))


def _resolved(told: Place, variables: Mapping[str, str]) -> Place:
    """The place with every number known.

    Raises:
        ValueError: a number is missing or out of range.
    """
    world_size = told.world_size if told.world_size is not None else _number(variables, "WORLD_SIZE")
    rank = told.rank if told.rank is not None else _number(variables, "RANK")
    local_rank = told.local_rank if told.local_rank is not None else _number(variables, "LOCAL_RANK")
    world_size = 1 if world_size is None else world_size
    if world_size > 1 and rank is None:
        raise ValueError(
            f"--world-size {world_size} needs --rank, from 0 to {world_size - 1}; or start all ranks by torchrun"
        )
    rank = rank or 0
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(f"--rank {rank} is none of --world-size {world_size}: ranks are numbered from 0")
    if local_rank is None:
        local_rank = rank % max(1, torch.cuda.device_count())
    if local_rank < 0:
        raise ValueError(f"--local-rank {local_rank}: ranks are numbered from 0")
    master_addr = told.master_addr or variables.get("MASTER_ADDR")
    master_port = told.master_port or _number(variables, "MASTER_PORT")
    return Place(
        rank=rank, world_size=world_size, local_rank=local_rank, master_addr=master_addr, master_port=master_port
    )


def _number(variables: Mapping[str, str], name: str) -> int | None:
    text = variables.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name}={text!r} in the environment is no number") from None
