"""Settings: what a run is told, read from YAML and checked before anything starts.

Programs import this package before anything that an older Python could not even read, or does not have.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - it is what the block is for
    raise SystemExit(
        f"Keima needs Python 3.11 or newer, and this is Python {'.'.join(map(str, sys.version_info[:3]))} ({sys.executable}): "
        "make an environment with a newer one, such as conda create -n keima python=3.11, or by make setup in the checkout"
    )
