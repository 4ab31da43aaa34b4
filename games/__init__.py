"""Games as their authors write them, to copy; and the door to ``keima.games`` for programs that import ``games``."""

import sys

from keima.config.older_imports import become_door

become_door(sys.modules[__name__])
