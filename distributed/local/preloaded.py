"""What the server of processes imports before it starts workers and learner ranks (training/common/processes.py)."""

from training.common.processes import serve

serve()

import distributed.local.learner_ranks
import distributed.local.local  # noqa: F401
