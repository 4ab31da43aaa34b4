"""One poll of the workers of a machine, by its agent: a single round trip, whatever their number.

``keima/cluster/agent/poll.py`` answers it there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from keima.cluster.agent.call import read_answer
from keima.cluster.agent.client import AgentTransport
from keima.cluster.agent.commands import POLL, FolderAnswer, FolderRequest, PollRequest
from keima.cluster.ssh.errors import RemoteFailure
from keima.cluster.ssh.transport import Entry, is_listable
from keima.worker.worker_folder import BATCH_NAME

POLL_SECONDS = 5.0  # for the answer to begin ...
CHANGE_SECONDS = 1.0  # ... and for each assignment that a slow disk must take


@dataclass(frozen=True, kw_only=True)
class PollResult:
    """The result of a poll for one worker."""

    answer: FolderAnswer
    entries: tuple[Entry, ...] = ()  # of the outbox
    files: dict[str, bytes] = field(default_factory=dict, repr=False)


def poll_workers(
    transport: AgentTransport, requests: Sequence[FolderRequest], *, limit: int, python: str
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
    changes = sum(each.assignment is not None for each in requests)
    seconds = POLL_SECONDS + CHANGE_SECONDS * changes
    answer, data = transport.ask_agent(POLL, make_poll(requests, limit), seconds=seconds)
    results = parse_poll_answer(transport, requests, answer, data, python=python)
    for each, result in zip(requests, results, strict=True):
        transport.running[each.place] = result.answer.running
    sent = sum(len(each.assignment.encode()) for each in requests if each.assignment is not None)
    transport.count_bytes(sent=sent, received=len(data))
    return results


def make_poll(requests: Sequence[FolderRequest], limit: int) -> PollRequest:
    """Return the poll of these folders, which may bring ``limit`` bytes of games."""
    return PollRequest(workers=[vars(each) for each in requests], games=BATCH_NAME.pattern, limit=limit)


def parse_poll_answer(
    transport: AgentTransport, requests: Sequence[FolderRequest], answer: dict[str, Any], data: bytes, *, python: str
) -> list[PollResult]:
    """Parse the answer to a poll.

    Raises:
        ClusterError: it reports a failure, or cannot be understood.
    """
    found = read_answer(transport.worker, POLL, answer, python=python).workers
    if len(found) != len(requests) or sum(size for each in found for _, size in each.files) != len(data):
        raise RemoteFailure(transport.worker, "an answer is invalid: it is not about these workers")
    results, offset = [], 0
    for each in found:
        files = {}
        for name, size in each.files:
            files[name] = data[offset : offset + size]
            offset += size
        entries = tuple(Entry(name, size) for name, size in each.names if is_listable(name))
        results.append(PollResult(answer=each, entries=entries, files=files))
    return results
