"""How users call the programs, as messages say it: with the settings file where it is not the one that is meant by itself."""

import shlex
from pathlib import Path

CONFIG = Path(__file__).resolve().parent / "config.yaml"


def connector(config: Path | None = None) -> str:
    """The command that looks after the machines of a settings file."""
    program = "python distributed/ssh_connector.py"
    return program if config is None or config.resolve() == CONFIG else f"{program} --config {shlex.quote(str(config))}"
