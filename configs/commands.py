"""Files and commands as users type them: shipped files are found from any folder, and messages name the settings file
unless it is the default.
"""

import shlex
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
CONFIG = CHECKOUT / "configs" / "config.yaml"


def settings_file(name: str | Path) -> Path:
    """The settings file of that name, here or in the checkout: ``configs/go9.yaml`` is found from any folder."""
    path = Path(name)
    return CHECKOUT / path if (CHECKOUT / path).is_file() and not path.exists() else path


def shipped(name: str | Path) -> Path:
    """The file or folder of that name, here or in the checkout, such as a shipped model."""
    path = Path(name)
    return CHECKOUT / path if (CHECKOUT / path).exists() and not path.exists() else path


def connector(config: Path | None = None) -> str:
    """The command that manages the machines of a settings file."""
    program = "python distributed/ssh_connector.py"
    return program if config is None or config.resolve() == CONFIG else f"{program} --config {shlex.quote(str(config))}"
