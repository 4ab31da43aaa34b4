"""Exports a network with a model card: what it plays, how it was trained and how strong it is."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from keima.base.files import write_atomically
from keima.base.reports.formats import format_duration, game_title
from keima.base.reports.run_reports import IterationReport
from keima.config.load import load_settings
from keima.config.own_modules import FOLDER as MODULES
from keima.config.own_modules import copy_modules
from keima.config.public import public_settings
from keima.config.sections.training import SEED_ACCOUNTS
from keima.data.ledger import read_ledger
from keima.networks.files.model import save_safetensors
from keima.play.network_loader import SETTINGS, PlayableNetwork, load_network_from_run
from keima.report.strength import strength_sentences

ENDING = ".safetensors"
PROTOCOLS = {"go": "gtp", "chess": "uci"}  # of graphical programs

Rows = Sequence[IterationReport]


def export_model(run: Path, path: Path, rows: Rows, benchmarks: Sequence[Path] = ()) -> Path:
    """Write a run's newest accepted model to ``path`` and its card next to it; returns the card's path.

    Args:
        run: its folder.
        path: ends in .safetensors; its folder is made.
        rows: the run's iterations, at least one.
        benchmarks: files that ``keima benchmark`` has written of this model.

    Raises:
        ValueError: it has no model, the settings or a benchmark cannot be read, or a benchmark is of another model.
        OSError: the files cannot be read or written.
    """
    if path.suffix != ENDING:
        raise ValueError(f"{path}: an exported model is called NAME{ENDING}")
    playable = load_network_from_run(run)
    measured = [line for file in benchmarks for line in benchmark_lines(file, playable)]
    path.parent.mkdir(parents=True, exist_ok=True)
    save_safetensors(path, playable.model, compact=True)
    copy_modules((playable.game.name, str(playable.model.description.network.get("type"))), path.parent / MODULES)
    card_path = path.with_suffix(".md")
    write_atomically(card_path, make_card(run, path, playable, rows, measured).encode(), mode=0o644)
    return card_path


def make_card(run: Path, path: Path, playable: PlayableNetwork, rows: Rows, measured: Sequence[str]) -> str:
    """Return the card of the model in ``path``; ``measured`` are lines on its strength."""
    game, model = playable.game, playable.model
    numbers, version = sum(tensor.numel() for tensor in model.weights.values()), model.model_version
    title = game_title(game.name, game.options)
    options = ", ".join(f"{key} {value}" for key, value in game.options.items())
    shape = ", ".join(f"{key} {value}" for key, value in model.description.network.items())
    settings = public_settings(load_settings(run / SETTINGS), defaults=False)
    lines = [
        f"# {path.stem}",
        "",
        f"A network for {title} ({options}): {shape}; {numbers:,} parameters in {path.stat().st_size:,} bytes.",
        f"It plays only by these rules. Model {version:,} of the run {run.resolve().name}.",
        "",
        "## Play",
        "",
        *("```", f"keima {PROTOCOLS.get(game.name, 'play')} {path}", "```"),
        "",
        "## How it was trained",
        "",
        *(f"- {line}" for line in training_lines(run, version, rows)),
        "",
        "The settings; all others are the defaults:",
        "",
        *("```yaml", yaml.safe_dump(settings, sort_keys=False).rstrip(), "```"),
        "",
        "## How strong it is",
        "",
        *(f"- {line}" for line in [*measured, *strength_lines(version, rows)] or ["Not measured yet."]),
    ]
    return "\n".join([*lines, ""])


def training_lines(run: Path, version: int, rows: Rows) -> list[str]:
    """Return the training up to the model's publication, as lines."""
    row = next((row for row in rows if row.model_version >= version), rows[-1])
    with read_ledger(run) as ledger:
        from_files = sum(ledger.account(account).received for account in SEED_ACCOUNTS.values())
    origin = (
        f"{from_files:,} human games from files, and self-play"
        if from_files
        else "From self-play alone, without human games"
    )
    steps = sum(each.learner.steps for each in rows if each.learner and each.iteration <= row.iteration)
    games = f"{row.total_games:,} games with {row.total_positions:,} positions in {format_duration(row.seconds)}"
    return [f"{origin}: {games}, {row.iteration:,} iterations.", f"{steps:,} steps of the learner."]


def strength_lines(version: int, rows: Rows) -> list[str]:
    """Return the run's own last measurement up to this model, as lines."""
    found = [row.evaluation for row in rows if row.evaluation and row.evaluation.model_version <= version]
    if not found:
        return []
    return [
        f"{line} (model {found[-1].model_version:,}, {found[-1].num_simulations:,} simulations a move)."
        for line in strength_sentences(found[-1])
    ]


def benchmark_lines(file: Path, playable: PlayableNetwork) -> list[str]:
    """Return a benchmark's results of this model in two-player games, as lines.

    Raises:
        ValueError: it is not such a benchmark, or is of another model.
        OSError: it cannot be read.
    """
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        described, matches, simulations = content["model"], content["matches"], content["arguments"]["simulations"]
        lines = [_match_line(match, simulations) for match in matches if match["first"] == matches[0]["first"]]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{file} is not a result of keima benchmark --save for two players: {error!r}") from error
    if described != playable.model.description.model_dump():
        raise ValueError(f"{file} measures another model than model {playable.model.model_version} of this run")
    return lines


def _match_line(match: dict[str, Any], simulations: int) -> str:
    low, high = (100 * end for end in match["interval"])
    games = match["wins"] + match["draws"] + match["losses"]
    return (
        f"Against {match['second']}: {100 * match['score']:.1f} % ({low:.1f} to {high:.1f}, 95 %) of {games:,} games "
        "with colours swapped, "
        f"{simulations:,} simulations a move."
    )
