"""Where things are: the code and what is shipped with it, the user's workspace, and what this machine keeps.

The *workspace* is the folder in which a user works: ``configs/``, ``games/``, ``distributed/``, ``logs/`` and ``runs/``
are there. Code that runs from a checkout has the checkout as its workspace; installed code has the current folder.

Imports only the standard library, so that programs start fast.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
SOURCE = PACKAGE.parent  # the folder by which an interpreter finds the package: a checkout, site-packages, a release
CHECKOUT = SOURCE if (SOURCE / "start_main.py").is_file() else None
SHIPPED = PACKAGE / "shipped"  # networks, games and configs that come with the code
CACHE = Path(os.environ.get("KEIMA_CACHE", Path.home() / ".cache" / "keima"))  # all of it can be made again


def workspace() -> Path:
    """Return the folder in which the user works."""
    return CHECKOUT or Path.cwd()


def find_file(name: str | Path) -> Path:
    """Return the file or folder of that name: the user's own, or else the one in the workspace or shipped with the
    code.

    ``configs/go9.yaml`` and ``models/go9.safetensors`` are found from any folder. A name that is nowhere is returned as
    it is.
    """
    path = Path(name)
    places = (path, workspace() / path, SHIPPED / path)
    return next((place for place in places if place.exists()), path)


def program_of(module: str) -> list[str]:
    """Return the words that run a module of ours with this interpreter; files in the present folder hide none of it."""
    return [sys.executable, "-P", "-m", module]


def with_code_on_path(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process of this interpreter that imports this code, whatever its folder."""
    if str(SOURCE) not in sys.path or SOURCE.name == "site-packages":  # it is installed
        return dict(environment)
    path = os.pathsep.join([str(SOURCE), *filter(None, [environment.get("PYTHONPATH")])])
    return {**environment, "PYTHONPATH": path}
