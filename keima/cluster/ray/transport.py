"""Files to and from the worker of a slot, and programs on its node, through the slot's actor."""

import errno
import hashlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ray
from ray.actor import ActorHandle

from keima.base.files import FileTooLarge
from keima.base.system.threads import new_lock
from keima.cluster.ray.errors import translate_ray_errors
from keima.cluster.ssh.errors import RemoteFailure, Unreachable
from keima.cluster.ssh.transport import Completed, Entry, Stream, StreamEnded, check_name, do_nothing

CALL_SECONDS = 10.0  # for a small operation, from here to the node and back
BYTES_PER_SECOND = 2**20  # the slowest transfer that is waited for
SHARED_BYTES = 2**18  # from this size on, a file is one object for all slots
MEANWHILE_SECONDS = 0.5
KEPT_OBJECTS = 4


class SharedObjects:
    """Files as objects in Ray's store, once per content: a model goes to each node once, however many slots it has.

    The last few are kept; any thread may call.
    """

    def __init__(self) -> None:
        self._guard = new_lock()
        self._kept: list[tuple[bytes, bytes, ray.ObjectRef]] = []  # (content, its SHA-256, object), oldest first

    def put_once(self, data: bytes) -> ray.ObjectRef:
        """Return the object with this content."""
        with self._guard:
            for content, _, kept in self._kept:
                if content is data:
                    return kept
            digest = hashlib.sha256(data).digest()
            for _, known, kept in self._kept:
                if known == digest:
                    return kept
            made = ray.put(data)
            self._kept = [*self._kept[1 - KEPT_OBJECTS :], (data, digest, made)]
            return made


class RayTransport:
    """A ``Transport`` to the folder of a slot's node.

    Args:
        worker: the slot's worker.
        actor: the slot's actor.
        objects: large files, for all slots.
        ended: called when the actor turns out to have ended, or not to answer.
    """

    def __init__(
        self, worker: str, actor: ActorHandle, objects: SharedObjects, ended: Callable[[Unreachable], None]
    ) -> None:
        self.worker = worker
        self.sent = 0
        self.received = 0
        self.meanwhile: Callable[[], None] = do_nothing
        self._actor, self._objects, self._ended = actor, objects, ended
        self._streams: list[RayStream] = []

    def put(self, data: bytes, name: str, *, durable: bool = True) -> None:
        """See ``Transport``."""
        with translate_ray_errors(self.worker, f"sending {check_name(name)}"):
            content = self._objects.put_once(data) if len(data) >= SHARED_BYTES else data
        self._call_slot("put", name, content, durable, seconds=CALL_SECONDS + len(data) / BYTES_PER_SECOND)
        self.sent += len(data)

    def get(self, name: str, limit: int) -> bytes:
        """See ``Transport``."""
        seconds = CALL_SECONDS + min(limit, 2**30) / BYTES_PER_SECOND
        data = bytes(self._call_slot("get", check_name(name), limit, seconds=seconds))
        self.received += len(data)
        return data

    def list_files(self, folder: str) -> list[Entry]:
        """See ``Transport``."""
        return [Entry(name, size) for name, size in self._call_slot("names", check_name(folder))]

    def remove(self, name: str) -> None:
        """See ``Transport``."""
        self._call_slot("remove", check_name(name))

    def run(self, argv: Sequence[str], *, seconds: float = 5.0) -> Completed:
        """See ``Transport``."""
        return Completed(*self._call_slot("run", list(argv), seconds, seconds=CALL_SECONDS + seconds))

    def open(self, argv: Sequence[str]) -> Stream:
        """See ``Transport``."""
        number = int(self._call_slot("open", list(argv)))
        end = partial(self._actor.call.remote, "end", number)
        self._streams.append(RayStream(self.worker, self._call_slot, number, end=end))
        return self._streams[-1]

    def close(self) -> None:
        """See ``Transport``; the slot remains."""
        for stream in self._streams:
            stream.close()

    def _call_slot(self, operation: str, *arguments: Any, seconds: float = CALL_SECONDS) -> Any:
        """Have the slot carry out an operation of ``keima.cluster.ray.slot``; return its result.

        Raises:
            ClusterError: it failed, or the slot does not answer within ``seconds``.
            FileNotFoundError, FileTooLarge: see ``Transport.get``.
        """
        try:
            with translate_ray_errors(self.worker, operation):
                kind, result = self._wait_for_answer(self._actor.call.remote(operation, *arguments), seconds)
        except Unreachable as error:
            self._ended(error)
            raise
        match kind:
            case "ok":
                return result
            case "missing":
                raise FileNotFoundError(errno.ENOENT, f"{self.worker}: there is no such file", result)
            case "large":
                raise FileTooLarge(result)
            case "late":
                raise Unreachable(self.worker, result)
            case "ended":
                raise StreamEnded(self.worker, result)
            case _:
                raise RemoteFailure(self.worker, *result)

    def _wait_for_answer(self, answer: ray.ObjectRef, seconds: float) -> Any:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > MEANWHILE_SECONDS:
            if ray.wait([answer], timeout=MEANWHILE_SECONDS)[0]:
                break
            self.meanwhile()
        return ray.get(answer, timeout=max(left, 0.0))


class RayStream:
    """A ``Stream`` of a slot's node.

    Args:
        worker: the slot's worker.
        call: has the slot carry out an operation.
        number: the program's, at the slot.
        end: has the slot end the program's input; nobody waits for that.
    """

    def __init__(self, worker: str, call: Callable[..., Any], number: int, *, end: Callable[[], object]) -> None:
        self._worker, self._call, self._number, self._end = worker, call, number, end
        self._closed = False

    def send(self, data: bytes) -> None:
        """See ``Stream``."""
        self._check()
        self._call("send", self._number, data)

    def receive(self, seconds: float) -> bytes:
        """See ``Stream``."""
        self._check()
        return bytes(self._call("receive", self._number, seconds, seconds=CALL_SECONDS + seconds))

    def close(self) -> None:
        """See ``Stream``."""
        if not self._closed:
            self._closed = True
            self._end()

    def _check(self) -> None:
        if self._closed:
            raise Unreachable(self._worker, "the connection is closed")
