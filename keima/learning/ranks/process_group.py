"""The processes that train one network together; ``torch.distributed`` calls each a *rank*.

A single process is a group of one, ``ALONE``, for which every operation here does nothing. Several processes find each
other through torchrun's variables or command-line flags. Tensors on GPUs are exchanged with NCCL, all others with gloo.
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

from keima.learning.ranks.meeting import DEFAULT_PORT, LOCALHOST, check_own_address, wait_for_address

BUCKET_BYTES = 64 * 2**20  # summed in one operation: large enough to use the link fully, small enough to copy
TIMEOUT = timedelta(minutes=15)  # of waiting for other ranks, which may be compiling or writing
MESSAGE_TIMEOUT = timedelta(days=365)  # of waiting for rank 0's next message; its end is noticed earlier
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
ANY_PORT = 9
SIOCGIFADDR = 0x8915  # on Linux, asks for the IPv4 address of an interface: netdevice(7)
STORE_PORT = "keima/store_port"  # in torchrun's store: the port of the ranks' own store
REFUSED_AFTER = timedelta(seconds=1)  # of connecting to an old address
ROOM = "keima/room"  # in torchrun's store: which ranks have room on their machines
NCCL, NCCL_TIMEOUT = "NCCL_", "NCCL_TIMEOUT"


class RankLost(RuntimeError):
    """Another rank has ended or cannot be reached."""


class SurplusRank(Exception):
    """torchrun has started more ranks than this machine has room for, and this rank must exit."""


@dataclass(frozen=True, kw_only=True)
class RankInfo:
    """A process's number among those that train together, and where they meet; None: not given."""

    rank: int | None = None
    world_size: int | None = None
    local_rank: int | None = None  # among the processes of this machine
    master_addr: str | None = None  # the machine of rank 0
    master_port: int | None = None


class Ranks:
    """A group of processes, seen from one of them.

    Every operation between ranks raises ``RankLost`` if one of them has ended.
    """

    def __init__(
        self,
        *,
        rank: int = 0,
        world_size: int = 1,
        local_rank: int = 0,
        ranks_on_machine: int = 1,
        backend: str = "none",
        restarts: int = 0,
        started: int | None = None,
    ) -> None:
        self.rank, self.world_size, self.local_rank = rank, world_size, local_rank
        self.ranks_on_machine = ranks_on_machine  # ranks on this machine, this one included
        self.backend = backend  # "nccl", "gloo", or "none" for a process alone
        self.restarts = restarts  # how often torchrun has restarted the ranks after a failure
        self.ranks_started = (
            started or world_size
        )  # ranks, including those that left because there was no room for them
        self.lost = ""  # why no operation between ranks is possible any more: another rank has ended
        self.is_loss_raised = False  # whether that has been raised here
        self._unhurried_group: dist.ProcessGroup | None = None

    def declare_lost(self, reason: str) -> None:
        """Declare, from any thread, that another rank has ended: end all operations between ranks, also those on a GPU.

        NCCL would wait for the other rank until its time limit.
        """
        first, self.lost = not self.lost, self.lost or reason
        if first and self.backend == "nccl":
            abort_nccl()

    def raise_if_lost(self) -> None:
        """Raise if another rank is known to have ended.

        Raises:
            RankLost: one has.
        """
        if self.lost:
            self.is_loss_raised = True
            raise RankLost(self.lost)

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        """Turn torch's errors about lost connections into ``RankLost`` within the block."""
        self.raise_if_lost()
        try:
            yield
        except RuntimeError as error:
            reason = str(error).strip().partition("\n")[0]
            self.lost = self.lost or f"another rank of this training run has ended or cannot be reached: {reason}"
            self.is_loss_raised = True
            raise RankLost(self.lost) from error
        self.raise_if_lost()

    @property
    def is_main(self) -> bool:
        """Whether this is the rank that prints and saves."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether this is the only rank."""
        return self.world_size == 1

    @property
    def own_rows(self) -> slice:
        """This rank's share of the rows of any batch; shares differ by at most one row."""
        return slice(self.rank, None, self.world_size)

    def all_reduce_sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks.

        All ranks pass the same shapes in the same order, and receive the same bits.
        """
        if self.is_alone:
            return
        for bucket in _split_into_buckets(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            with self._translating_errors():
                dist.all_reduce(flat)
            for tensor, part in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
                tensor.copy_(part.view(tensor.shape))

    def all_reduce_max(self, number: int) -> int:
        """Return the largest of all ranks' numbers."""
        return max(self.all_gather(number))

    def all_gather(self, number: int) -> list[int]:
        """Return every rank's number, by rank."""
        return [int(tensor) for tensor in self.all_gather_tensor(torch.tensor(number))]

    def all_gather_tensor(self, tensor: Tensor) -> list[Tensor]:
        """Return every rank's tensor, on the CPU; all have the same shape and type."""
        if self.is_alone:
            return [tensor]
        parts = [torch.empty_like(tensor) for _ in range(self.world_size)]
        with self._translating_errors():
            dist.all_gather(parts, tensor)
        return parts

    def broadcast_bool(self, answer: bool) -> bool:
        """Return rank 0's value."""
        verdict = torch.tensor(int(answer))
        self.broadcast_([verdict])
        return bool(verdict)

    def broadcast_next_message(self, data: bytes = b"") -> bytes:
        """Return rank 0's next message; the other ranks wait for it without a time limit."""
        with self._translating_errors():
            self._unhurried_group = self._unhurried_group or dist.new_group(backend="gloo", timeout=MESSAGE_TIMEOUT)
        return self.broadcast_bytes(data, group=self._unhurried_group)

    def broadcast_(self, tensors: Sequence[Tensor], *, source: int = 0, group: dist.ProcessGroup | None = None) -> None:
        """Replace each tensor with that of rank ``source``, on any device."""
        if self.is_alone:
            return
        for tensor in tensors:
            sent = tensor.detach().contiguous()
            with self._translating_errors():
                dist.broadcast(sent, source, group)
            if self.rank != source:
                tensor.copy_(sent)

    def broadcast_bytes(self, data: bytes, *, source: int = 0, group: dist.ProcessGroup | None = None) -> bytes:
        """Return the bytes that rank ``source`` passes."""
        if self.is_alone:
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
        """Return the text that rank ``source`` passes."""
        return self.broadcast_bytes(text.encode(), source=source).decode()


ALONE = Ranks()


def abort_nccl() -> None:
    """Abort NCCL's operations on this rank's GPU, including any that it starts later."""
    assert dist.group.WORLD
    dist.group.WORLD._get_backend(torch.device("cuda")).abort()  # of PyTorch 2.6 and newer


def _split_into_buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the tensors in order, in buckets of one type and at most ``BUCKET_BYTES``, or one larger tensor."""
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
def join_ranks(
    given: RankInfo,
    *,
    device: str = "auto",
    backend: str = "auto",
    store: Store | None = None,
    environment: Mapping[str, str] | None = None,
    room: Callable[[int], int] | None = None,
) -> Iterator[Ranks]:
    """Yield the group that this process belongs to; leave it after the block.

    Args:
        given: on the command line; it overrides torchrun's variables.
        device: "cpu" keeps the group off the GPUs.
        backend: "nccl", "gloo", or "auto": NCCL if there are GPUs.
        store: through which the ranks find each other, if whoever started them has made one.
        environment: replaces this process's, for tests.
        room: given a number of ranks, how many of them this machine has room for; torchrun's others leave.

    Raises:
        SurplusRank: this rank leaves.
        ValueError: the given numbers do not fit together.
        RuntimeError: the other ranks cannot be reached.
    """
    variables = os.environ if environment is None else environment
    place = _resolve_info(given, variables)
    assert place.rank is not None and place.world_size is not None and place.local_rank is not None
    by_torchrun = given.rank is None and given.master_addr is None and "MASTER_ADDR" in variables
    started = place.world_size
    here = (None if given.world_size else _read_number(variables, "LOCAL_WORLD_SIZE")) or place.world_size
    if room and by_torchrun and started > 1:
        place, here = keep_ranks_with_room(place, here, room(here)), room(here)
    assert place.rank is not None and place.world_size is not None and place.local_rank is not None
    if place.world_size == 1:
        yield Ranks(local_rank=place.local_rank, restarts=_restart_count(variables), started=started)
        return
    on_gpu = device != "cpu" and torch.cuda.is_available()
    backend = ("nccl" if on_gpu else "gloo") if backend == "auto" else backend
    check_backend(backend, device)
    if on_gpu:
        if place.local_rank >= torch.cuda.device_count():
            raise ValueError(
                f"rank {place.rank} has no GPU: this machine has {torch.cuda.device_count()}; start fewer ranks"
            )
        torch.cuda.set_device(place.local_rank)
    if store is None and by_torchrun and variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store = connect_store(place)
    host, port = place.master_addr or LOCALHOST, place.master_port or DEFAULT_PORT
    if store is None and not by_torchrun:
        check_rendezvous(place.rank, host, port, seconds=read_rank_timeout(variables).total_seconds())
    if place.master_addr and GLOO_INTERFACE not in os.environ and (interface := interface_towards(place.master_addr)):
        os.environ[GLOO_INTERFACE] = interface
    # torch names a group by a counter. A group that was not joined has raised it, and the ranks of a later one, which
    # meet by its name, would wait for each other forever.
    dist.distributed_c10d._world.group_count = 0
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if backend == "nccl" else "gloo",
            init_method=None if store else "env://" if by_torchrun else f"tcp://{host}:{port}",
            store=store,
            rank=place.rank,
            world_size=place.world_size,
            timeout=read_rank_timeout(variables),
        )
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        raise RuntimeError(f"the {place.world_size} ranks have not met at {host}, port {port}: {reason}") from error
    ranks = Ranks(
        rank=place.rank,
        world_size=place.world_size,
        local_rank=place.local_rank,
        ranks_on_machine=here,
        backend=backend,
        restarts=_restart_count(variables),
        started=started,
    )
    try:
        yield ranks
    finally:
        if not (ranks.lost and backend == "nccl"):  # which would wait for the rank that is lost
            dist.destroy_process_group()


def check_backend(backend: str, device: str) -> None:
    """Check that ranks on ``device`` can communicate with ``backend``.

    Raises:
        ValueError: they cannot.
    """
    if backend == "nccl" and (device == "cpu" or not torch.cuda.is_available()):
        raise ValueError("--backend nccl needs a GPU for each rank, and there is none; use gloo")


def check_rendezvous(rank: int, address: str, port: int, *, seconds: float) -> None:
    """Check that processes started one by one can meet; all but rank 0 wait for rank 0.

    Raises:
        ValueError: rank 0 cannot listen there, or the address is unknown.
        RuntimeError: rank 0 does not answer.
    """
    if rank == 0:
        check_own_address(address, port)
    else:
        wait_for_address(address, port, seconds=seconds)


def keep_ranks_with_room(place: RankInfo, here: int, room: int) -> RankInfo:
    """Return the place of a rank among those that stay: on each machine the first ones, as many as it has room for.

    Args:
        place: torchrun's, with every number known.
        here: ranks that torchrun has started on this machine.
        room: how many of them this machine has room for.

    Raises:
        SurplusRank: this rank leaves.
    """
    assert place.rank is not None and place.world_size is not None and place.local_rank is not None
    stays = place.local_rank < room
    if here == place.world_size:
        staying = [rank < room for rank in range(here)]
    else:  # other machines may have room for a different number
        assert place.master_addr is not None and place.master_port is not None
        store = TCPStore(place.master_addr, place.master_port, is_master=False, timeout=read_rank_timeout())
        keys = [f"{ROOM}/{place.world_size}/{rank}" for rank in range(place.world_size)]
        store.set(keys[place.rank], str(int(stays)))
        staying = [store.get(key) == b"1" for key in keys] if stays else []
    if not stays:
        raise SurplusRank
    return replace(place, rank=sum(staying[: place.rank]), world_size=sum(staying))


def read_rank_timeout(variables: Mapping[str, str] = os.environ) -> timedelta:
    """Return how long ranks wait for each other: ``NCCL_TIMEOUT`` seconds, with gloo too.

    Raises:
        ValueError: it is not a number of seconds.
    """
    seconds = _read_number(variables, NCCL_TIMEOUT)
    if seconds is None:
        return TIMEOUT
    if seconds < 1:
        raise ValueError(f"{NCCL_TIMEOUT}={seconds} in the environment: expected whole seconds from 1")
    return timedelta(seconds=seconds)


def unused_nccl_variables(ranks: Ranks, variables: Mapping[str, str] = os.environ) -> str:
    """Return a sentence about NCCL variables that are set but have no effect; empty if there are none."""
    names = sorted(name for name in variables if name.startswith(NCCL) and (name != NCCL_TIMEOUT or ranks.is_alone))
    if not names or ranks.backend == "nccl":
        return ""
    instead = (
        "one process trains alone"
        if ranks.is_alone
        else f"the ranks use gloo, which reads {NCCL_TIMEOUT} and {GLOO_INTERFACE}"
    )
    return f"{', '.join(names)}: read only by NCCL, which connects GPUs; here {instead}"


def make_file_store(folder: Path, world_size: int) -> FileStore:
    """Return a store in an empty folder, through which ranks on one machine find each other; it opens no port."""
    return FileStore(str(folder / "store"), world_size)


def interface_towards(address: str) -> str | None:
    """Return the network interface through which this machine reaches ``address``, its own or another's; None if
    unknown.

    By default gloo listens at the address of this machine's name, which on Debian no other machine can reach.
    """
    try:
        own = socket.inet_aton(local_address_towards(address))
    except ValueError:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an address
                if fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()))[20:24] == own:
                    return name
    return None


def local_address_towards(address: str) -> str:
    """Return the address of this machine at which the machine at ``address`` reaches it.

    Raises:
        ValueError: there is no route to ``address``.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, ANY_PORT))  # sends nothing, but finds the route
        except OSError as error:
            raise ValueError(
                f"--master-addr {address} cannot be reached: {str(error.strerror or error).lower()}"
            ) from error
        own: str = probe.getsockname()[0]
        return own


def connect_store(place: RankInfo) -> TCPStore:
    """Return the store through which the ranks find each other; rank 0 hosts it, and torchrun's store has its port.

    torchrun's own store survives a restart of the ranks, with the addresses of the dead ones in it. A rank that reads
    these before the new ones are there would wait for the dead ranks. torchrun starts no rank before all earlier ones
    have ended, on every machine, so a port that refuses connections is an old one.

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


def _restart_count(variables: Mapping[str, str]) -> int:
    return int(variables.get("TORCHELASTIC_RESTART_COUNT", "0"))


def count_ranks() -> int:
    """Return how many processes torchrun has started, of which this is one.

    Raises:
        ValueError: its variables make no sense.
    """
    return _resolve_info(RankInfo(), os.environ).world_size or 1


def _resolve_info(given: RankInfo, variables: Mapping[str, str]) -> RankInfo:
    """Return the place with every number known.

    Raises:
        ValueError: a number is missing or out of range.
    """
    world_size = given.world_size if given.world_size is not None else _read_number(variables, "WORLD_SIZE")
    rank = given.rank if given.rank is not None else _read_number(variables, "RANK")
    local_rank = given.local_rank if given.local_rank is not None else _read_number(variables, "LOCAL_RANK")
    world_size = 1 if world_size is None else world_size
    if world_size > 1 and rank is None:
        raise ValueError(
            f"--world-size {world_size} needs --rank, from 0 to {world_size - 1}; or start all ranks with torchrun"
        )
    rank = rank or 0
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(f"--rank {rank} is out of range for --world-size {world_size}: ranks are numbered from 0")
    if local_rank is None:
        local_rank = rank % max(1, torch.cuda.device_count())
    if local_rank < 0:
        raise ValueError(f"--local-rank {local_rank}: ranks are numbered from 0")
    master_addr = given.master_addr or variables.get("MASTER_ADDR")
    master_port = given.master_port or _read_number(variables, "MASTER_PORT")
    return RankInfo(
        rank=rank, world_size=world_size, local_rank=local_rank, master_addr=master_addr, master_port=master_port
    )


def _read_number(variables: Mapping[str, str], name: str) -> int | None:
    text = variables.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name}={text!r} in the environment is not a whole number") from None
