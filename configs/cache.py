"""Where this machine keeps what it can make again: compiled code, measurements, and copies of users' files."""

import os
from pathlib import Path

CACHE = Path(os.environ.get("KEIMA_CACHE", Path.home() / ".cache" / "keima"))

OWN_PACKAGE = "keima_own"  # modules of users are called ``keima_own.othello_1a2b3c4d5e6f``
