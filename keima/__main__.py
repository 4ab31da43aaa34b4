"""``python -m keima``: the same as the command ``keima``."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # An interpreter started with -m searches the present folder first: a file there must not hide a package.
    if Path(sys.path[0]).resolve() == Path.cwd() and not Path(__file__).parent.parent.samefile(Path.cwd()):
        del sys.path[0]
    from keima.cli.main import main

    sys.exit(main())
