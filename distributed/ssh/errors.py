"""What can go wrong with another machine, sorted by what to do about it."""


class ClusterError(Exception):
    """Something went wrong with a worker's machine.

    Its text names the machine, says what happened, and what remedies it.
    """

    def __init__(self, worker: str, what: str, remedy: str = "") -> None:
        """Take the machine's name, what happened to it, and what the user can do, all as parts of one sentence."""
        super().__init__(f"{worker}: {what}" + (f"; {remedy}" if remedy else ""))
        self.worker = worker
        self.what = what
        self.remedy = remedy


class Unreachable(ClusterError):
    """The machine does not answer, or not in time. It may later: try again, less and less often."""


class RemoteFailure(ClusterError):
    """The machine answers, but cannot do what it is asked to: its disk is full, a folder is not writable, a program
    fails.
    """


class Refused(RemoteFailure):
    """The machine cannot be used until somebody changes something: a host key, a login, a version.

    Retrying soon is no use.
    """
