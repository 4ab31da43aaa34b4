"""Commands as users type them: messages name the settings file unless it is the default."""

import shlex
from pathlib import Path

from keima.paths import workspace

CONFIG = workspace() / "configs" / "config.yaml"


def connector(config: Path | None = None) -> str:
    """The command that manages the machines of a settings file."""
    program = "python distributed/ssh_connector.py"
    return program if config is None or config.resolve() == CONFIG else f"{program} --config {shlex.quote(str(config))}"
