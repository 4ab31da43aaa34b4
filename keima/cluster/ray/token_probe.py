"""Try to use a Ray cluster without its token.

    RAY_AUTH_MODE=disabled python -m keima.cluster.ray.token_probe HOST:PORT

It is a process of its own, since Ray reads the mode once. The exit code is 0 if anybody may use the cluster,
``REFUSED`` if it asks for a token, and 1 if it does not answer.
"""

import sys

from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError, RayError

REFUSED = 3


def main(argv: list[str]) -> int:
    """Run the program."""
    try:
        GcsClient(address=argv[0])
    except AuthenticationError:
        return REFUSED
    except RayError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
