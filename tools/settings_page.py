"""Make docs/settings.md and the configs that explain settings, from the descriptions below the settings.

python tools/settings_page.py
"""

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from keima.config.descriptions import declared_settings, describe_setting
from keima.config.load import section_in
from keima.config.schema import Settings
from keima.config.sections.crowd import CrowdSettings
from keima.config.sections.ray import RaySettings
from keima.config.sections.slurm import SlurmSettings
from keima.config.sections.workers import WorkerSettings
from keima.learning.dataset_settings import BigExperiment, BigLearnerSettings
from keima.play.rating.ladder_file import Ladder, LadderEngine, PlayedMatch, RungSettings
from keima.play.speedrun.target import Target
from keima.ppo.settings import TraderSettings

ROOT = Path(__file__).resolve().parent.parent
CONFIG, PPO, BIG = (ROOT / "configs" / name for name in ("config.yaml", "ppo_lstm.yaml", "20x256.yaml"))
PAGE = ROOT / "docs" / "settings.md"
SHORT = {1e-3: "1e-3", 3e-4: "3e-4", 1e-4: "1e-4"}  # numbers as people write them
COLUMN, WIDTH = 35, 120  # where comments begin, and where lines end
FIRST = (  # the settings that people change
    "game.name",
    "run.minutes",
    "network.blocks",
    "network.channels",
    "search.num_simulations",
    "training.games_per_iteration",
    "training.learning_rate",
    "training.device",
    "self_play.workers",
    "distributed.workers",
)
HEADING = """\
All settings with their defaults, unless a comment says otherwise. The run is 9x9 Go, spread over several machines. With
distributed.enabled: false, as here, everything runs on this machine. Copy this file to define your own run, and keep
only the keys that you change. `keima train CONFIG --set KEY=VALUE` changes a setting for one run.

Made by tools/settings_page.py from keima/config/sections. People change these most:
"""
PPO_HEADING = """\
A trader with a memory: keima ppo --config configs/ppo_lstm.yaml
All values are the defaults, so your own file only needs the keys that it changes.
Flags of the same names override the file.

Made by tools/settings_page.py from keima/ppo/settings.py.
"""
BIG_HEADING = """\
A 20x256 network for chess, trained on files of games: keima big-learner --config configs/20x256.yaml
keima big-learner takes any experiment, such as configs/go9.yaml, and adds the section big_learner.
Its values here are the defaults. Flags of the same names override them. Checkpoints go to --save-dir.

Made by tools/settings_page.py from keima/learning/dataset_settings.py and keima/config/sections.
"""
BIG_EXAMPLE: dict[str, dict[str, Any]] = {  # what this file has besides the section big_learner
    "run": {"name": "20x256"},
    "game": {"name": "chess"},
    "network": {"type": "resnet", "blocks": 20, "channels": 256},
    "training": {"optimizer": "adamw", "learning_rate": 1e-3, "warmup_steps": 100, "weight_decay": 1e-4},
}
EXAMPLE = {"run.name": "go-cluster", "run.iterations": 200, "game.name": "go"}  # values that are no defaults
OPTIONS = (
    ("size", 9, "points per side"),
    ("komi", 7.0, "points that White gets for moving second; at 7.0 a game can be drawn"),
)
WORKERS: tuple[Mapping[str, Any], ...] = (
    {"host": "worker1.example.com", "user": "username", "key_path": "~/.ssh/id_ed25519", "gpu_id": 0},
    {
        "host": "192.168.1.102",
        "user": "username",
        "key_path": "~/.ssh/id_ed25519",
        "gpu_ids": [0, 1],
        "name": "worker2",
        "processes": "auto",
        "port": 22,
        "directory": "~/keima",
        "python": "python3",
        "proxy_jump": "me@gateway",
        "nice": 0,
        "bandwidth": None,
        "quiet_hours": None,
        "parallel_games": "auto",
        "env": {"OMP_NUM_THREADS": "1"},
    },
    {"hosts": "node[01-40].lab", "group": "lab"},
)
COMMENTED: dict[
    str, tuple[type[BaseModel], dict[str, Any]]
] = {  # sections that the file has as comments, with values that are no defaults
    "distributed.slurm": (SlurmSettings, {"count": 16, "partition": "gpu", "time": "4:00:00"}),
    "distributed.ray": (RaySettings, {}),
    "distributed.crowd": (CrowdSettings, {}),
}
APART = ("distributed.defaults", "distributed.workers", "engines", "rungs", "matches")  # with tables of their own
PAGE_START = """\
# Settings

Every setting, with its default and its meaning. A config is a YAML file with the keys that differ from the defaults;
`keima train CONFIG --set KEY=VALUE` changes one for a run. [configs/config.yaml](../configs/config.yaml) has them all
in one file. This page is made by `tools/settings_page.py` from the descriptions in the sources.
"""
PPO_START = "These are the settings of `keima ppo --config FILE`. Each has a flag, such as `--learning-rate-actor`.\n"
BIG_START = "`keima big-learner` adds this section to an experiment. Each setting has a flag, such as `--batch-size`.\n"
LADDER_START = """\
A ladder for `keima rate --ladder FILE` says which engines rate a network, how each is started, and how strong it is, as
the [shipped ones](../keima/shipped/ladders) do. `tools/measure_ladder.py FILE` has the engines play each other, for the
file's `matches`.
"""
TARGET_START = """\
A target for `keima speedrun FILE` says what is trained and how strong it must become, as the
[shipped ones](../keima/shipped/targets) do.
"""


def main() -> None:
    """Write the files."""
    for path, text in made_files().items():
        path.write_text(text, encoding="utf-8")


def made_files() -> dict[Path, str]:
    """Return the text of each file."""
    return {CONFIG: config_text(), PPO: ppo_text(), BIG: big_learner_text(), PAGE: page_text()}


def config_text() -> str:
    """Return the text of configs/config.yaml."""
    first = [f"#   {key:30} {describe_setting(key)}" for key in FIRST]
    return joined([*heading_lines(HEADING), *first, *settings_lines(Settings)])


def ppo_text() -> str:
    """Return the text of configs/ppo_lstm.yaml."""
    return joined([*heading_lines(PPO_HEADING), *settings_lines(TraderSettings)])


def big_learner_text() -> str:
    """Return the text of configs/20x256.yaml."""
    lines = heading_lines(BIG_HEADING)
    for name, values in BIG_EXAMPLE.items():
        section = section_of(BigExperiment.model_fields[name])
        lines += ["", *with_comment(f"{name}:", meaning(BigExperiment, name))]
        for key, value in values.items():
            lines += with_comment(f"  {key}: {yaml_value(value)}", meaning(section, key))
    lines += ["", *with_comment("big_learner:", meaning(BigExperiment, "big_learner"))]
    return joined([*lines, *section_lines(BigLearnerSettings, "big_learner.", "  ")])


def joined(lines: Iterable[str]) -> str:
    """Return lines as the text of a file."""
    return "".join(f"{line}\n" for line in lines)


def heading_lines(heading: str) -> list[str]:
    """Return the lines of a heading, as comments."""
    return [f"# {line}".rstrip() for line in heading.rstrip().splitlines()]


def settings_lines(settings: type[BaseModel]) -> Iterator[str]:
    """Yield the lines of all sections, each after an empty line."""
    for name, field in settings.model_fields.items():
        yield ""
        yield from with_comment(f"{name}:", meaning(settings, name))
        yield from section_lines(section_of(field), f"{name}.", "  ")


def section_lines(section: type[BaseModel], above: str, indent: str) -> Iterator[str]:
    """Yield the lines of a section, whose keys begin with ``above``."""
    for name, field in section.model_fields.items():
        key = above + name
        inner = section_in(field.annotation)
        if key == "game.options":
            yield from with_comment(f"{indent}{name}:", meaning(section, name))
            for option, number, text in OPTIONS:
                yield from with_comment(f"{indent}  {option}: {yaml_value(number)}", text)
        elif key == "distributed.workers":
            yield from with_comment(f"{indent}{name}: []", f"{meaning(section, name)}; instead of the brackets:")
            yield from worker_lines()
        elif key in COMMENTED:
            yield from with_comment(f"{indent}{name}: null", f"{meaning(section, name)}; instead of null:")
            kind, values = COMMENTED[key]
            for each, part in kind.model_fields.items():
                value = values.get(each, default_of(part))
                yield from with_comment(f"  #  {each}: {yaml_value(value)}", meaning(kind, each), mark="  #")
        elif inner and name != "defaults":
            yield from with_comment(f"{indent}{name}:", meaning(section, name))
            yield from section_lines(inner, f"{key}.", f"{indent}  ")
        else:
            value = EXAMPLE.get(key, default_of(field))
            yield from with_comment(f"{indent}{name}: {yaml_value(value)}", meaning(section, name))


def worker_lines() -> Iterator[str]:
    """Yield the examples of workers, each of whose keys is explained once."""
    explained: set[str] = set()
    for entry in WORKERS:
        for at, (name, value) in enumerate(entry.items()):
            start = f"  #  {'-' if at == 0 else ' '} {name}: {yaml_value(value)}"
            text = "" if name in explained else meaning(WorkerSettings, name)
            explained.add(name)
            yield from with_comment(start, text, mark="  #")


def with_comment(start: str, text: str, *, mark: str = "") -> Iterator[str]:
    """Yield a line with a comment, which continues on lines of its own that begin with ``mark``."""
    if not text:
        yield start
        return
    room = WIDTH - max(COLUMN, len(start) + 2) - 2
    first, *more = textwrap.wrap(text, room)
    yield f"{start:{COLUMN - 2}}  # {first}" if len(start) <= COLUMN - 2 else f"{start}  # {first}"
    for line in more:
        yield f"{mark:{max(COLUMN, len(start) + 2)}}# {line}"


def page_text() -> str:
    """Return the text of docs/settings.md."""
    lines = [PAGE_START]
    for name, field in Settings.model_fields.items():
        lines += [f"## {name}", "", sentence(Settings, name), "", *table_of(section_of(field), f"{name}.")]
    machines: dict[str, type[BaseModel]] = {
        "workers": WorkerSettings,
        "slurm": SlurmSettings,
        "ray": RaySettings,
        "crowd": CrowdSettings,
    }
    for title, kind in machines.items():
        lines += [f"### distributed.{title}", "", *table_of(kind, "")]
    lines += ["## keima ppo", "", PPO_START, *table_of(TraderSettings, "")]
    lines += ["## keima big-learner", "", BIG_START]
    lines += table_of(BigLearnerSettings, "big_learner.")
    lines += ["## keima rate", "", LADDER_START, *table_of(Ladder, "")]
    parts: dict[str, type[BaseModel]] = {"engines": LadderEngine, "engines.rungs": RungSettings, "matches": PlayedMatch}
    for title, kind in parts.items():
        lines += [f"### {title}", "", *table_of(kind, "")]
    lines += ["## keima speedrun", "", TARGET_START, *table_of(Target, "")]
    return "\n".join(lines).rstrip() + "\n"


def table_of(section: type[BaseModel], above: str) -> list[str]:
    """Return a table of a section's settings, those of inner sections included, and an empty line."""
    return ["| key | default | values | meaning |", "|---|---|---|---|", *table_rows(section, above), ""]


def table_rows(section: type[BaseModel], above: str) -> Iterator[str]:
    """Yield the rows."""
    properties = section.model_json_schema()["properties"]
    for name, field in section.model_fields.items():
        key = above + name
        inner = section_in(field.annotation)
        if inner and key not in (*APART, *COMMENTED):
            yield from table_rows(inner, f"{key}.")
        elif not field.exclude or name == "hosts":
            default = "required" if field.is_required() else f"`{yaml_value(default_of(field))}`"
            values = values_of(properties[name]) if name in properties else ""
            cells = (f"`{key}`", default, values, sentence(section, name).replace("<", "&lt;"))
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def values_of(schema: Mapping[str, Any]) -> str:
    """Return in words what a setting may be."""
    forms = [form for form in schema.get("anyOf", [schema]) if form.get("type") != "null"]
    words = [form_of(form) for form in forms]
    return " or ".join(dict.fromkeys(word for word in words if word))


def form_of(form: Mapping[str, Any]) -> str:
    """Return one of the forms of a value in words."""
    if "enum" in form:
        return ", ".join(f"`{value}`" for value in form["enum"])
    if "const" in form:
        return f"`{form['const']}`"
    kind = {"integer": "whole number", "number": "number", "boolean": "true, false", "string": "text", "array": "list"}
    low = f"from {form['minimum']:g}" if "minimum" in form else ""
    low = f"above {form['exclusiveMinimum']:g}" if "exclusiveMinimum" in form else low
    high = f"to {form['maximum']:,g}" if "maximum" in form else ""
    high = f"below {form['exclusiveMaximum']:g}" if "exclusiveMaximum" in form else high
    return " ".join(filter(None, (kind.get(form.get("type", ""), ""), low, high)))


def section_of(field: FieldInfo) -> type[BaseModel]:
    """Return the section that a field is."""
    found = section_in(field.annotation)
    assert found
    return found


def sentence(section: type[BaseModel], name: str) -> str:
    """Return the description of a setting on one line."""
    return declared_settings(settings=f"{section.__module__}.{section.__name__}")[name].text


def meaning(section: type[BaseModel], name: str) -> str:
    """Return the description of a setting as a comment: without a full stop."""
    return sentence(section, name).rstrip(".")


def default_of(field: FieldInfo) -> Any:
    """Return the default of a field; None if it is required."""
    return None if field.is_required() else field.get_default(call_default_factory=True)


def yaml_value(value: Any) -> str:
    """Return a value as a config has it."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int():
            return f"{value:_}" if value >= 10_000 else str(value)
        case float():
            return SHORT.get(value, str(value))
        case BaseModel():
            return "{}"
        case dict():
            return "{" + ", ".join(f"{key}: {yaml_value(each)}" for key, each in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(yaml_value, value)) + "]"
        case str() if ":" in value or value.isdecimal():
            return f'"{value}"'
    return str(value)


if __name__ == "__main__":
    main()
