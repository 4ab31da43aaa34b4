"""What the server of processes imports before it starts those that play games (training/common/processes.py)."""

from training.common.processes import serve

serve()

import engines.match_slice
import engines.score_slice  # noqa: F401
