"""Translate Ray's errors into those of the cluster, with a remedy."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ray import exceptions

from keima.base.reports.text import printable_line
from keima.cluster.ssh.errors import ClusterError, Refused, RemoteFailure, Unreachable

NODE = re.compile(r" Node Id: [0-9a-f]+")
SAID = 300  # characters of Ray's own words
TOKEN = "give this process the cluster's token: RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH"
DISK = "free space where Ray keeps its objects (by default /tmp/ray and /dev/shm)"


@contextmanager
def translate_ray_errors(worker: str, doing: str) -> Iterator[None]:
    """Turn Ray's errors within the block into ClusterError.

    Raises:
        Unreachable: the slot or its node is gone, or does not answer in time.
        RemoteFailure: Ray cannot carry it out; the slot still lives.
        Refused: nothing will change until somebody does something.
    """
    try:
        yield
    except exceptions.RayError as error:
        raise as_cluster_error(worker, doing, error) from error


def as_cluster_error(worker: str, doing: str, error: exceptions.RayError) -> ClusterError:
    """Return the error's meaning for a worker."""
    said = ray_error_text(error)
    match error:
        case exceptions.AuthenticationError():
            return Refused(worker, f"Ray refuses its token: {said}", TOKEN)
        case exceptions.RuntimeEnvSetupError():
            return Refused(worker, f"Ray cannot make the job's runtime environment: {said}", "correct its runtime_env")
        case exceptions.GetTimeoutError():
            return Unreachable(worker, f"its slot has not answered in time ({doing})")
        case exceptions.OutOfDiskError() | exceptions.ObjectStoreFullError():
            return RemoteFailure(worker, f"{doing}: {said}", DISK)
        case exceptions.RayActorError():
            return Unreachable(worker, f"its slot has ended: {said}")
        case exceptions.RayTaskError():
            return RemoteFailure(worker, f"{doing}: unexpected: {said}")
        case _:
            return Unreachable(worker, f"{doing}: {type(error).__name__}: {said}")


def ray_error_text(error: Exception) -> str:
    """Return Ray's error text on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "The actor died" in line or "Error:" in line or "Exception:" in line]
    return printable_line(NODE.sub("", " ".join((told or lines)[-1:])))[:SAID].rstrip(". ")
