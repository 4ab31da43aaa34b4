"""How users call the programs, as messages say it: with the settings file where it is not the one that is meant by
itself.
"""

import shlex
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
CONFIG = CHECKOUT / "configs" / "config.yaml"


def settings_file(name: str | Path) -> Path:
    """The settings file of that name; where there is none, the checkout's, so that ``configs/go9.yaml`` is found from
    any folder.
    """
    path = Path(name)
    return CHECKOUT / path if (CHECKOUT / path).is_file() and not path.exists() else path


def shipped(name: str | Path) -> Path:
    """The file or folder of that name; where there is none, the checkout's: a model's, or games', as for
    ``settings_file``.
    """
    path = Path(name)
    return CHECKOUT / path if (CHECKOUT / path).exists() and not path.exists() else path


def connector(config: Path | None = None) -> str:
    """The command that looks after the machines of a settings file."""
    program = "python distributed/ssh_connector.py"
    return program if config is None or config.resolve() == CONFIG else f"{program} --config {shlex.quote(str(config))}"
