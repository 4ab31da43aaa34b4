"""The models that a visitor of ``/play`` may choose: those of runs, and files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keima.base.reports.formats import game_title
from keima.data.ledger import read_ledger
from keima.networks.files.heading import read_heading
from keima.paths import SHIPPED
from keima.web.run_reader import UNREADABLE, RunReader

MOST_OF_A_RUN = 100  # the newest


@dataclass(frozen=True, kw_only=True)
class PlayableModel:
    """A model that can be chosen, by a name that never holds a path."""

    name: str  # such as "run-0-12" or "file-3"
    group: str  # the run, or empty for a file
    title: str
    game: str
    path: Path

    def as_dict(self) -> dict[str, Any]:
        """Return what the page needs to know."""
        return {"name": self.name, "group": self.group, "title": self.title, "game": self.game}


class Models:
    """The models of some runs, the newest first, and models in files."""

    def __init__(self, runs: Sequence[RunReader], files: Sequence[Path]) -> None:
        self._runs, self._files = runs, files

    def list_models(self) -> list[PlayableModel]:
        """Return all models that are there now."""
        found = [model for number, run in enumerate(self._runs) for model in list_run_models(run, number)]
        return found + [
            model for number, path in enumerate(self._files) if (model := describe_model_file(path, number))
        ]

    def find_model(self, name: str) -> PlayableModel | None:
        """Return the model of this name."""
        return next((model for model in self.list_models() if model.name == name), None)


def list_run_models(run: RunReader, number: int) -> list[PlayableModel]:
    """Return the models of a run that can be read; none if the run cannot be read."""
    try:
        with read_ledger(run.folder) as ledger:
            rows, game = ledger.models()[-MOST_OF_A_RUN:], game_title(ledger.game, ledger.options)
    except UNREADABLE:
        return []
    newest = max((row.version for row in rows if row.accepted), default=None)
    return [
        PlayableModel(
            name=f"run-{number}-{row.version}",
            group=run.name,
            title=f"model {row.version}{', the newest' if row.version == newest else ''}",
            game=game,
            path=run.folder / row.path,
        )
        for row in sorted(rows, key=lambda row: (row.version != newest, -row.version))
        if (run.folder / row.path).is_file()
    ]


def describe_model_file(path: Path, number: int) -> PlayableModel | None:
    """Describe the model in a file; None if it is not a model."""
    heading = read_heading(path)
    if heading is None:
        return None
    game = heading.game if heading.game == "openspiel" else game_title(heading.game, {})
    title = f"{path.stem}, model {heading.model_version}"
    return PlayableModel(name=f"file-{number}", group="", title=title, game=game, path=path.resolve())


def shipped_models() -> list[Path]:
    """Return the models that come with Keima."""
    return sorted((SHIPPED / "models").glob("*.safetensors"))
