"""Workers in a Ray cluster: slots, which are actors, and what reaches the workers through them.

Ray starts the slots and carries bytes. Everything else is as over SSH. ``import ray`` means Ray's package here too.
Nothing else imports this room unless ``distributed.ray`` is set, and only this room imports Ray.
"""

import sys
from importlib.util import find_spec

PACKAGE = "ray[default]"  # as pip is told


def require_ray() -> None:
    """Check that Ray is installed.

    Raises:
        ValueError: it is not.
    """
    if find_spec("ray") is None:
        remedy = f"{sys.executable} -m pip install '{PACKAGE}'"
        raise ValueError(f"distributed.ray: Ray is not installed here: run `{remedy}`")
