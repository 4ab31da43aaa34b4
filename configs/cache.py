"""Where this machine keeps what it can make again: compiled code, measurements, and copies of users' files."""

import os
from pathlib import Path

CACHE = Path(os.environ.get("KEIMA_CACHE", Path.home() / ".cache" / "keima"))
