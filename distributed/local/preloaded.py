"""What the server of processes imports before it starts any of them (see ``processes``)."""

import signal

from distributed.local.processes import BLOCKED, end_with_starter

# A closed terminal and the end of a system service signal every process at once. The server must outlive its processes,
# whose exit codes it hands on. It ends when its parent does, even while it imports.
signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
end_with_starter(signal.SIGKILL)

import distributed.local.learner_ranks
import distributed.local.local  # noqa: F401
