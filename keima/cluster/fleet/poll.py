"""One poll of the workers of a machine, by its agent: a single round trip, whatever their number.

``keima/cluster/agent/poll.py`` answers it there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from keima.cluster.agent.client import AgentTransport
from keima.cluster.agent.poll import MOST_NAMES, NAME_LENGTH
from keima.cluster.agent.serve import POLL
from keima.cluster.machines.machine import NonNegativeInt, PrintableText, RemoteAnswer, remote_result, validate_answer
from keima.cluster.ssh.errors import RemoteFailure
from keima.cluster.ssh.transport import Entry, is_listable
from keima.worker.worker_folder import BATCH_NAME, MAX_JSON_BYTES

POLL_SECONDS = 5.0  # for the answer to begin ...
CHANGE_SECONDS = 1.0  # ... and for each assignment that a slow disk must take

FileName = Annotated[str, Field(max_length=NAME_LENGTH)]
Files = Annotated[tuple[tuple[FileName, NonNegativeInt], ...], Field(max_length=MOST_NAMES)]


@dataclass(frozen=True, kw_only=True)
class PollRequest:
    """What to do with one worker's folder, and what to tell of it; ``keima/cluster/agent/poll.py`` says more."""

    place: str
    coach: str  # who must own the folder; empty: anyone
    seen: str  # the stamp of the last heartbeat
    assignment: str | None = None
    remove: Sequence[str] = ()
    have: Sequence[str] = ()
    want: Sequence[str] = ()


class _WorkerAnswer(RemoteAnswer):
    failed: PrintableText = ""
    mine: bool = True
    wrong: PrintableText = ""
    stamp: Annotated[str, Field(max_length=100)] = ""
    heartbeat: Annotated[str, Field(max_length=MAX_JSON_BYTES)] | None = None
    unreadable: PrintableText = ""
    running: bool | None = None
    names: Files = ()
    files: Files = ()
    unread: Annotated[tuple[FileName, ...], Field(max_length=MOST_NAMES)] = ()


class _PollAnswer(RemoteAnswer):
    workers: tuple[_WorkerAnswer, ...]


@dataclass(frozen=True, kw_only=True)
class PollResult:
    """The result of a poll for one worker."""

    error: str  # why there is nothing else; empty: there is
    is_ours: bool  # the folder has the right owner; otherwise there is nothing else
    change_error: str  # why the assignment was not put, or files were not removed
    heartbeat_stamp: str  # of the heartbeat; empty: there is none
    heartbeat: str | None  # its text, if it has changed
    heartbeat_error: str  # why it has changed and cannot be read
    running: bool | None  # the process in the folder's record; None: there is no record
    entries: tuple[Entry, ...]  # of the outbox
    files: dict[str, bytes] = field(repr=False)
    unreadable_files: tuple[str, ...]  # files that could not be read


def poll_workers(
    transport: AgentTransport, requests: Sequence[PollRequest], *, limit: int, python: str
) -> list[PollResult]:
    """Poll workers; return the results in the same order.

    Args:
        transport: to their machine.
        requests: what to do and to tell.
        limit: bytes of finished games that may come with the answer.
        python: the machine's interpreter for our remote program.

    Raises:
        ClusterError: there is no answer, or none that can be understood.
    """
    request: dict[str, Any] = {
        "workers": [vars(each) for each in requests],
        "games": BATCH_NAME.pattern,
        "limit": limit,
    }
    changes = sum(each.assignment is not None for each in requests)
    answer, data = transport.request_poll(request, seconds=POLL_SECONDS + CHANGE_SECONDS * changes)
    results = parse_poll_answer(transport, requests, answer, data, python=python)
    transport.running.update((each.place, result.running) for each, result in zip(requests, results, strict=True))
    sent = sum(len(each.assignment.encode()) for each in requests if each.assignment is not None)
    transport.count_bytes(sent=sent, received=len(data))
    return results


def read_only_poll(requests: Sequence[PollRequest]) -> dict[str, Any]:
    """Return a poll that changes nothing and brings no files, to be posted during a long operation."""
    return {"workers": [vars(each) for each in requests], "games": BATCH_NAME.pattern, "limit": 0}


def parse_poll_answer(
    transport: AgentTransport, requests: Sequence[PollRequest], answer: dict[str, Any], data: bytes, *, python: str
) -> list[PollResult]:
    """Parse the answer to a poll.

    Raises:
        ClusterError: it reports a failure, or cannot be understood.
    """
    found = validate_answer(transport, _PollAnswer, remote_result(transport, POLL, {}, answer, python=python)).workers
    if len(found) != len(requests) or sum(size for each in found for _, size in each.files) != len(data):
        raise RemoteFailure(transport.worker, "an answer cannot be understood: it is not about these workers")
    results, offset = [], 0
    for each in found:
        files = {}
        for name, size in each.files:
            files[name] = data[offset : offset + size]
            offset += size
        entries = tuple(Entry(name, size) for name, size in each.names if is_listable(name))
        results.append(
            PollResult(
                error=each.failed,
                is_ours=each.mine,
                change_error=each.wrong,
                heartbeat_stamp=each.stamp,
                heartbeat=each.heartbeat,
                heartbeat_error=each.unreadable,
                running=each.running,
                entries=entries,
                files=files,
                unreadable_files=each.unread,
            )
        )
    return results
