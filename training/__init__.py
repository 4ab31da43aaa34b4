"""The door to ``keima.worker``: workers of one's own begin with ``from training.worker import Worker``.

``evenly.py`` is an example of one.
"""

import sys

from keima.config.older_imports import become_door

become_door(sys.modules[__name__])
