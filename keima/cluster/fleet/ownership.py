"""Ownership of workers: each plays for one Coach, whose record is on the worker's machine.

The record names run, main node and Coach (``keima/cluster/agent/owner.py``). A worker belongs to the Coach in the
record until that Coach releases it, its lease expires, or a user says ``--takeover``. A lease is a token that the owner
changes at every contact. Another Coach that wants the worker watches the token by its own clock, so no clocks of two
machines are compared. If the owner was a process of this main node that no longer exists, there is no need to wait for
the lease. That is known only within one boot: a record with this machine's name and another boot is of this machine
before its restart, or of a clone of it that still runs.
"""

import getpass
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from keima.cluster.agent import process as remote_process
from keima.cluster.agent.call import call_remote
from keima.cluster.agent.commands import GIVE_WAY, OWN, GiveWayRequest, Owned, Owner, OwnRequest
from keima.cluster.agent.owner import LABEL, UNKNOWN_RUN
from keima.cluster.machines.machine import worker_place
from keima.cluster.ssh.errors import RemoteFailure
from keima.cluster.ssh.transport import Transport
from keima.config.commands import cluster
from keima.worker.worker_folder import TAGGED, is_batch_of_run, run_tag

ASK_SECONDS = 5.0  # between two checks of whether a worker has become free


def make_owner(run_id: str, *, run_dir: Path, lease_seconds: float) -> Owner:
    """Return this process as the owner for the run in ``run_dir``."""
    found = remote_process.read_process_stat(os.getpid())
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user id without a name, as in containers
        user = str(os.getuid())
    return Owner(
        run_id=run_id,
        label=run_tag(run_id),
        host=socket.gethostname(),
        user=user,
        folder=str(run_dir.absolute()),
        coach=secrets.token_hex(8),
        world=remote_process.process_id_scope(),
        pid=os.getpid(),
        start_ticks=found[2] if found else 0,
        lease_seconds=lease_seconds,
    )


def has_ended(owner: Owner) -> bool:
    """Return whether it was a process of this machine that no longer exists; False if that is unknown."""
    if not remote_process.boot_id() or owner.world != remote_process.process_id_scope():
        return False
    found = remote_process.read_process_stat(owner.pid)
    return found is None or found[0] in "ZX" or found[2] != owner.start_ticks


def describe_owner(owner: Owner) -> str:
    """Return the run and whose it is: its folder, user and main node."""
    if not owner.host:
        return f"run {owner.run_id} of an earlier version"
    name = f"run {Path(owner.folder).name} ({owner.folder})" if owner.folder else f"run {owner.run_id}"
    whose = f"{name} of {owner.user}@{owner.host}" if owner.user else f"{name} of {owner.host}"
    machine, boot = (*owner.world.split("/"), "")[:2]
    here, boot_here = remote_process.process_id_scope().split("/")[:2]
    if machine == here and boot != boot_here:
        whose += " (this machine before its restart, or another with the same name)"
    return whose


@dataclass(frozen=True, kw_only=True)
class Claimant:
    """The Coach that claims workers.

    Args:
        owner: the Coach.
        takeover: whether to take over workers of other Coaches at the first contact.
        config: the settings file that lists the machines, for messages.
    """

    owner: Owner
    takeover: bool = False
    config: Path | None = None


class FolderMoved(RemoteFailure):
    """The worker's folder is not the one that was claimed: it was deleted, or taken over."""


class FolderTaken(RemoteFailure):
    """The worker plays for another Coach and must not be touched."""

    def __init__(self, worker: str, what: str, remedy: str, owner: Owner) -> None:
        super().__init__(worker, what, remedy)
        self.owner = owner


@dataclass(frozen=True)
class _WatchedLease:
    """An owner, its lease, and since when the lease has not changed."""

    coach: str
    token: str
    since: float


class Claim:
    """A Coach's claim to one worker's folder.

    Args:
        worker: the worker's name.
        claimant: the Coach that claims it.
        clock: a monotonic clock in seconds.

    Attributes:
        is_lost: whether another Coach has the worker.
    """

    def __init__(self, worker: str, claimant: Claimant, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.owner = claimant.owner
        self.is_lost = False
        self._worker, self._config, self._clock = worker, claimant.config, clock
        self._fresh = True  # the folder was never ours
        self._takeover = claimant.takeover
        self._ask_at = 0.0
        self._watched: _WatchedLease | None = None
        self._refusal: FolderTaken | None = None
        run_id = claimant.owner.run_id
        own_name = run_id if LABEL.fullmatch(run_id) else UNKNOWN_RUN
        self._labels = list(dict.fromkeys([claimant.owner.label, own_name]))

    @property
    def set_aside_folder(self) -> str:
        """The folder in which our games are set aside while another Coach has the worker."""
        return f"{worker_place(self._worker)}.{self.owner.label}"

    def take_over(self) -> None:
        """Take the worker from any owner at the next contact."""
        self._takeover, self._ask_at = True, 0.0

    def check_folder(self, mine: bool, names: Iterable[str], *, machine: str) -> None:
        """Check what a poll has shown: the folder is the claimed one and holds nothing of other runs.

        Args:
            mine: whether its owner's record is this Coach's.
            names: the files in its outbox.
            machine: the machine's name.

        Raises:
            FolderMoved: it is another folder, or holds games of another run, perhaps from a worker that was slow to
                end.
        """
        if not mine:
            text = f"{worker_place(self._worker)} was deleted, or taken over by another Coach"
            raise FolderMoved(machine, text, "it is checked again")
        if not all(is_batch_of_run(name, self.owner.run_id) for name in names):
            raise FolderMoved(machine, f"{worker_place(self._worker)} holds games of another run", "they are set aside")

    def enter_owner(self, transport: Transport, end_worker: Callable[[], object], *, python: str) -> bool:
        """Enter this Coach as the owner and move away what belongs to other runs.

        Returns:
            Whether the folder was empty or held files of another run, so that nothing in it is ours.

        Raises:
            FolderTaken: another Coach has it.
            ClusterError: it could not be done.
        """
        if self._refusal and self._clock() < self._ask_at:
            raise self._refusal
        answer = self._request_ownership(transport, python, expired=None)
        if not answer.mine and answer.owner and self._has_lease_expired(answer.owner, answer.token):
            answer = self._request_ownership(
                transport, python, expired={"coach": answer.owner.coach, "token": answer.token}
            )
        if not answer.mine:
            raise self._taken_error(transport, answer)
        foreign = bool(answer.contents) and answer.contents not in self._labels
        if foreign:
            end_worker()
        if foreign or answer.unsorted:
            request = GiveWayRequest(
                place=worker_place(self._worker),
                coach=self.owner.coach,
                contents=answer.contents,
                labels=self._labels,
                tagged=TAGGED.pattern,
            )
            call_remote(transport, GIVE_WAY, request, python=python)
        self._fresh = self._takeover = self.is_lost = False
        self._watched = self._refusal = None
        return foreign or not answer.contents

    def _request_ownership(self, transport: Transport, python: str, *, expired: dict[str, str] | None) -> Owned:
        request = OwnRequest(
            place=worker_place(self._worker),
            owner=vars(self.owner),
            fresh=self._fresh,
            force=self._takeover,
            expired=expired,
            labels=self._labels,
            tagged=TAGGED.pattern,
        )
        return call_remote(transport, OWN, request, python=python)

    def _has_lease_expired(self, owner: Owner, token: str) -> bool:
        now, watched = self._clock(), self._watched
        if watched is None or (watched.coach, watched.token) != (owner.coach, token):
            self._watched = watched = _WatchedLease(owner.coach, token, now)
        return has_ended(owner) or now - watched.since >= owner.lease_seconds

    def _taken_error(self, transport: Transport, answer: Owned) -> FolderTaken:
        assert answer.owner is not None and self._watched is not None
        owner, now = answer.owner, self._clock()
        left = max(0.0, owner.lease_seconds - (now - self._watched.since))
        until = datetime.now() + timedelta(seconds=left)
        who = describe_owner(owner)
        if owner.run_id == self.owner.run_id:
            who += ", because another Coach owns it"
        what = f"{self._worker} plays for {who}, lease until {until:%H:%M}"
        aside = "after its finished games are set aside for that run"
        remedy = f"{cluster(f'takeover {self._worker}', self._config)} takes it over, {aside}"
        self.is_lost, self._ask_at = True, now + ASK_SECONDS
        self._refusal = FolderTaken(transport.worker, what, remedy, owner)
        return self._refusal
