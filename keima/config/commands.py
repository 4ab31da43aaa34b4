"""Commands as users type them, for messages."""

import functools
import os
import shlex
import shutil
import sys
from pathlib import Path

from keima.paths import workspace

CONFIG = workspace() / "configs" / "config.yaml"


def keima(words: str) -> str:
    """Return a command such as ``keima audit runs/go9``, as it can be typed here."""
    return f"{_program(os.environ.get('PATH', ''))} {words}"


def cluster(words: str, config: Path | None = None) -> str:
    """Return a command that manages the machines of a settings file; it names the file unless that is the default."""
    default = config is None or config.resolve() == CONFIG
    return keima(f"cluster {words}" if default else f"cluster {words} --config {shlex.quote(str(config))}")


@functools.cache
def _program(path: str) -> str:
    """Return how the command of this interpreter's environment is called; without one, the package is."""
    own, found = Path(sys.executable).with_name("keima"), shutil.which("keima", path=path)
    if not own.is_file():
        return f"{Path(sys.executable).name} -m keima"
    if found and own.samefile(found):
        return "keima"
    return str(own.relative_to(Path.cwd()) if own.is_relative_to(Path.cwd()) else own)
