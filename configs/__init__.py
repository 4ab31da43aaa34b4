"""Settings of a run, read from YAML and validated before anything starts.

Programs import this package first, so that an old Python fails with a sentence and not with a syntax error.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - the block exists for older versions
    raise SystemExit(
        f"Keima needs Python 3.11 or newer, and this is Python {'.'.join(map(str, sys.version_info[:3]))} "
        f"({sys.executable}): create an environment with a newer one, for example by "
        "conda create -n keima python=3.11, or run make setup in the checkout"
    )
