"""Errors of other machines, classified by their remedy."""


class ClusterError(Exception):
    """Something went wrong on a worker's machine.

    Its text names the machine, what happened, and the remedy.
    """

    def __init__(self, worker: str, what: str, remedy: str = "") -> None:
        """Take the machine's name, what happened to it, and the remedy, as parts of one sentence."""
        super().__init__(f"{worker}: {what}" + (f"; {remedy}" if remedy else ""))
        self.worker = worker
        self.what = what
        self.remedy = remedy


class Unreachable(ClusterError):
    """The machine does not answer, or not in time. Retry, at growing intervals."""


class NotReadyYet(Unreachable):
    """The machine will become ready on its own, such as a slot that waits for a node. Retry soon."""


class RemoteFailure(ClusterError):
    """The machine answers but a request fails: its disk is full, a folder is not writable, a program fails."""


class Refused(RemoteFailure):
    """The machine cannot be used until somebody changes something: a host key, a login, a version.

    Retrying soon does not help.
    """


def describe_failure(error: Exception) -> str:
    """Return what happened and what fixes it, without the machine's name."""
    if isinstance(error, ClusterError):
        return error.what + (f"; {error.remedy}" if error.remedy else "")
    return str(error)
