"""``python -m keima``: the same as the command ``keima``. Machines of workers start it by its path."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # An interpreter searches the present folder first if it is started with -m, and this one if it is started by the
    # path: files there must not hide packages.
    package = Path(__file__).resolve().parent
    if Path(sys.path[0]).resolve() == package:
        sys.path[0] = str(package.parent)
    elif Path(sys.path[0]).resolve() == Path.cwd() != package.parent:
        del sys.path[0]
    from keima.cli.main import main

    sys.exit(main())
