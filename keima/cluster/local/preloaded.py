"""What the server of processes imports before it starts workers and learner ranks (keima/base/system/processes.py)."""

from keima.base.system.processes import serve

serve()

import keima.cluster.local.learner_ranks
import keima.cluster.local.processes  # noqa: F401
