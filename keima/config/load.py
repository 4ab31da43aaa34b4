"""Read settings from YAML, report all errors at once, and save the settings of a run.

Plain scalars follow YAML 1.2: ``1e-3`` is a number, ``no`` is text. Anchors and repeated keys are rejected, and
environment variables are not read.
"""

import difflib
import importlib.metadata
import json
import logging
import platform
import re
import subprocess
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from keima.config.older_options import LEFT, RENAMED, with_older_options, without_left_settings
from keima.config.own_modules import FOLDER, copy_modules, is_own, stem_of
from keima.config.schema import Settings

log = logging.getLogger(__name__)

VERSIONS = "versions.json"  # in a run's folder, beside its copy of the settings
SIZE_LIMIT = 256 * 1024  # bytes of YAML
DEEP = re.compile(r"([\[{]\s*){50}")  # the YAML library takes quadratic time for these
PRIVATE = {"key_path", "env"}  # of a worker
SECRET: Any = {  # left out of a run's folder
    "distributed": {"defaults": PRIVATE, "workers": {"__all__": PRIVATE}, "pip": True}
}
OWN_NAMES = (("game", "name"), ("network", "type"))  # settings that can name a user's own file
Keys = tuple[str | int, ...]  # the keys that lead to a setting
S = TypeVar("S", bound=BaseModel)

FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?$|[-+]?\.inf$|\.nan$")

# Wording of pydantic's error types; other types keep pydantic's message.
EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "tuple_type": "a list",
    "invalid_key": "keys that are text",
    "literal_error": "{expected}",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le:g}",
}


class ConfigError(ValueError):
    """A settings file or an override is invalid; the message names the file, each key and what was expected."""

    def __init__(self, path: Path, problems: list[str]) -> None:
        """List ``problems`` under the name of the file."""
        self.path, self.problems = path, problems
        heading = (
            f"{path}: {problems[0]}"
            if len(problems) == 1
            else "\n  ".join([f"{path}: {len(problems)} problems", *problems])
        )
        super().__init__(heading)


def error_at_setting(path: Path, keys: Keys, text: str) -> ConfigError:
    """Return an error about the setting at ``keys`` in the file at ``path``, with its line."""
    _, node = _read(path)
    return ConfigError(path, [f"line {_find_line(node, keys)}: {_dotted_key(keys)}: {text}"])


class _Loader(yaml.SafeLoader):
    """The safe loader without YAML 1.1's implicit types, anchors, tags and repeated keys."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        mark = event.start_mark
        if isinstance(event, yaml.AliasEvent):
            raise yaml.MarkedYAMLError(None, None, "aliases are not supported; write the value out", mark)
        if event.tag is not None:
            raise yaml.MarkedYAMLError(None, None, "tags are not supported; write the value without !", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(None, None, "a key must be text", key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(None, None, f"the key {key.value!r} is repeated", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


_Loader.yaml_implicit_resolvers = {}
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"(~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(0|[1-9][0-9_]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+.0123456789"))


class _Dumper(yaml.SafeDumper):
    """The safe dumper; it also quotes text that ``_Loader`` would read as a number."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+.0123456789"))


def load_settings(path: Path, *, overrides: Mapping[str, Any] | None = None, copy_of: Path | None = None) -> Settings:
    """Read the settings of a run from the YAML file at ``path``; see ``load_section``."""
    return load_section(path, Settings, overrides=overrides, copy_of=copy_of)


def load_section(
    path: Path, kind: type[S], *, overrides: Mapping[str, Any] | None = None, copy_of: Path | None = None
) -> S:
    """Read settings of a ``kind`` from the YAML file at ``path``.

    Args:
        path: the file.
        kind: the class of its top level.
        overrides: values that replace those of the file, by dotted key: ``{"run.seed": 7}``.
        copy_of: the file in whose place this one is read, so that relative paths are relative to that one.

    Raises:
        ConfigError: the file is missing, too large or not YAML, or any setting is unknown, missing, ill-typed or out of
            bounds.
    """
    overrides = {RENAMED.get(key, key): value for key, value in (overrides or {}).items()}
    document, node = _read(path)
    if (path.parent / VERSIONS).exists():
        _complete_copy(document)
    try:
        apply_overrides(document, overrides)
    except ValueError as error:
        raise ConfigError(path, [f"command line: {error}"]) from None
    try:
        return kind.model_validate(document, context={"config": copy_of or path})
    except ValidationError as error:
        raise ConfigError(path, list(_list_problems(error, document, node, overrides, kind))) from None


def _complete_copy(document: dict[Any, Any]) -> None:
    """Give a run's copy of its settings the options that it is too old to have, and take out those that have left."""
    game = document.get("game")
    if isinstance(game, dict) and isinstance(game.get("name"), str) and isinstance(game.get("options"), dict):
        game["options"] = with_older_options(game["name"], game["options"])
    for name, section in document.items():
        if isinstance(section, dict):
            document[name] = without_left_settings(name, section)


def _read(path: Path) -> tuple[dict[Any, Any], yaml.Node]:
    """Return the top-level mapping of a file, as data and as nodes with line numbers."""
    try:
        with path.open("rb") as file:
            data = file.read(SIZE_LIMIT + 1)
    except OSError as error:
        raise ConfigError(path, [f"cannot be read: {error.strerror}"]) from None
    if len(data) > SIZE_LIMIT:
        raise ConfigError(path, [f"is larger than {SIZE_LIMIT:,} bytes; is it a settings file?"])
    try:
        text = data.decode("utf-8")
        if DEEP.search(text):
            raise ValueError("brackets are nested too deeply")
        loader = _Loader(text)
        node = loader.get_single_node()
        _rename_older_keys(path, node)
        document = loader.construct_document(node) if node else None
    except UnicodeDecodeError as error:
        raise ConfigError(path, [f"is not UTF-8 text (byte {error.start})"]) from None
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ConfigError(path, [f"{where}{error.problem}"]) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(path, [f"is not YAML: {str(error).splitlines()[0]}"]) from None
    if node is None or not isinstance(document, dict):
        raise ConfigError(path, ["expected sections such as `run:` and `game:`, each with its keys"])
    return document, node


def _rename_older_keys(path: Path, node: yaml.Node | None) -> None:
    """Give settings in the file's nodes the names that they have now."""
    for older, name in RENAMED.items():
        key = _key_node(node, older.split("."))
        if key is not None:
            key.value = name.rpartition(".")[2]
            if not (path.parent / VERSIONS).exists():  # a run's copy is nobody's to edit
                _note_renamed(path, key.start_mark.line + 1, older, name)


@cache  # a file is read several times, and again whenever it changes
def _note_renamed(path: Path, line: int, older: str, name: str) -> None:
    log.warning("%s: line %d: %s is called %s now; the older name still works", path, line, older, name)


def read_given_settings(path: Path) -> dict[str, Any]:
    """Return the settings that the file at ``path`` gives, as it gives them, by dotted key.

    Raises:
        ConfigError: the file is missing, too large or not YAML.
    """
    document, _ = _read(path)
    return dict(flatten(document))


def flatten(sections: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each setting in nested sections by its dotted key."""
    for key, value in sections.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def read_value(text: str) -> Any:
    """Read the value of one setting as a config has it after the colon: ``200``, ``1e-3``, ``[1, 2]``, ``null``.

    Raises:
        ValueError: it is not YAML.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"{text} is not YAML: {str(error).splitlines()[0]}") from None


def apply_overrides(document: dict[Any, Any], overrides: Mapping[str, Any]) -> None:
    """Set values by dotted key in nested mappings, which are made where there are none or null; where one is something
    else, leave that to the validation.

    Raises:
        ValueError: a key leads into a list.
    """
    for dotted, value in overrides.items():
        section: Any = document
        *names, key = dotted.split(".")
        for name in names:
            if section.get(name) is None:
                section[name] = {}
            section = section[name]
            if isinstance(section, list):
                raise ValueError(f"{dotted}: {name} is a list; give all of it, or change the file")
            if not isinstance(section, dict):
                break
        else:
            section[key] = value


def _list_problems(
    error: ValidationError,
    document: dict[Any, Any],
    node: yaml.Node,
    overrides: Mapping[str, Any],
    kind: type[BaseModel],
) -> Iterator[str]:
    """Yield one line per invalid setting: its place, its dotted key and what was expected."""
    found: dict[Keys, list[Any]] = {}
    for details in error.errors(include_url=False):
        found.setdefault(_find_setting(details, document), []).append(details)
    for path, several in found.items():
        name = _dotted_key(path)
        where = "command line" if name in overrides else f"line {_find_line(node, path)}"
        yield f"{where}: {_describe_problem(path, several, kind)}"


def _find_setting(details: Any, document: Any) -> Keys:
    """Return the keys of an invalid setting, without pydantic's names for the members of a union."""
    path: list[str | int] = []
    for key in details["loc"]:
        inside = (isinstance(document, dict) and key in document) or (
            isinstance(document, list) and isinstance(key, int)
        )
        if not inside:
            return (*path, key) if details["type"] == "missing" else tuple(path)
        path.append(key)
        document = document[key]
    return tuple(path)


def _describe_problem(path: Keys, several: list[Any], kind: type[BaseModel]) -> str:
    """Describe one problem; a union type has an error for each of its members."""
    name, first = _dotted_key(path), several[0]
    if first["type"] == "missing":
        return f"{name} is missing"
    if first["type"] == "extra_forbidden" and len(path) == 2 and path[1] in LEFT.get(str(path[0]), {}):
        return f"{name} is no longer a setting, since it did not help; see docs/results/learning_techniques.md"
    if first["type"] == "extra_forbidden":
        return f"{name} is not a setting; {_nearest(path, kind)}"
    if first["type"] == "value_error":
        return f"{name}: {first['ctx']['error']}" if name else str(first["ctx"]["error"])
    expected = [EXPECTED.get(each["type"], each["msg"]).format(**each.get("ctx", {})) for each in several]
    return f"{name}: expected {' or '.join(dict.fromkeys(expected))}, found {_shorten_value(first['input'])}"


def _shorten_value(value: Any) -> str:
    """Return a value as text, shortened."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _nearest(path: Keys, kind: type[BaseModel]) -> str:
    """Return a suggestion: a similar key of this section, else of another one, else all keys of this section."""
    key, section = str(path[-1]), _section_at(path[:-1], kind)
    close = difflib.get_close_matches(key, section.model_fields, n=1)
    if close:
        return f"did you mean {_dotted_key((*path[:-1], close[0]))}?"
    everywhere = {name.rsplit(".", 1)[-1]: name for name in reversed(list(known_keys(kind)))}
    close = difflib.get_close_matches(key, everywhere, n=1)
    if close:
        return f"did you mean {everywhere[close[0]]}?"
    return f"the keys here are {', '.join(section.model_fields)}"


def _section_at(path: Keys, section: type[BaseModel]) -> type[BaseModel]:
    """Return the section at ``path`` in ``section``, also inside lists of sections, and below names of the user's."""
    for key in path:
        if isinstance(key, str) and key in section.model_fields:
            annotation = section.model_fields[key].annotation
            named = typing.get_args(annotation)[-1] if typing.get_origin(annotation) is dict else annotation
            section = section_in(named) or section
    return section


def section_in(annotation: Any) -> type[BaseModel] | None:
    """Return the section in a field's type, also inside a list; None for sections by names of the user's."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) is dict:
        return None
    return next(filter(None, map(section_in, typing.get_args(annotation))), None)


def known_keys(section: type[BaseModel] = Settings, prefix: str = "") -> Iterator[str]:
    """Yield the dotted key of every setting, sections included: ``training.window.min_positions``,
    ``distributed.workers.host``.
    """
    for name, field in section.model_fields.items():
        yield prefix + name
        inner = section_in(field.annotation)
        if inner:
            yield from known_keys(inner, f"{prefix}{name}.")


def number_schema(key: str, kind: type[BaseModel] = Settings) -> dict[str, Any]:
    """Return the JSON schema of the numeric setting with this dotted key: its ``type``, and its bounds if any."""
    *section, name = key.split(".")
    schema = _section_at(tuple(section), kind).model_json_schema()["properties"][name]
    number: dict[str, Any] = next(
        form for form in schema.get("anyOf", [schema]) if form["type"] in ("integer", "number")
    )
    return number


def _dotted_key(path: Keys) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")


def _key_node(node: yaml.Node | None, keys: list[str]) -> yaml.Node | None:
    """Return the node of the last of ``keys``, which lead through mappings; None if the file does not have it."""
    found = None
    for key in keys:
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        found, node = next((pair for pair in pairs if pair[0].value == key), (None, None))
    return found


def _find_line(node: yaml.Node, path: Keys) -> int:
    """Return the line number of the deepest existing key of ``path``, from 1."""
    line: int = node.start_mark.line + 1
    for key in path:
        if isinstance(node, yaml.SequenceNode) and isinstance(key, int):
            node = node.value[key]
            line = node.start_mark.line + 1
            continue
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        pair = next((pair for pair in pairs if pair[0].value == str(key)), None)
        if pair is None:
            return line
        line, node = pair[0].start_mark.line + 1, pair[1]
    return line


def shrink(settings: Settings, *, iterations: int | None = None, minutes: float | None = None) -> Settings:
    """Shrink a run to a smoke test of two iterations: the same code with a tiny network, little search and few games.

    It has another name, so that it never writes into the folder of the real run.
    """
    new = settings.model_dump()
    search, training, evaluation = new["search"], new["training"], new["evaluation"]
    new["run"] |= {"name": f"{settings.run.name[:58]}-smoke", "iterations": iterations or 2, "minutes": minutes}
    new["run"]["auto"] = False  # what it would choose is shrunk here
    new["game"]["smaller"] = ()  # they are by shares of a time
    new["network"] |= {"blocks": 1, "channels": min(settings.network.channels, 8), "growth": ()}
    _cap_settings(search, num_simulations=8, cheap_simulations=4, leaves_per_tree=4)
    _cap_settings(search["gumbel"], considered_actions=4)
    _cap_settings(
        new["self_play"], games_per_worker=8, parallel_games=4, workers=2, cache_positions=1000, flush_seconds=1.0
    )
    _cap_settings(training, batch_size=16, warmup_steps=2, games_per_iteration=8, checkpoint_every=1, threads=1)
    _cap_settings(training["window"], min_positions=16, max_positions=10_000)
    _cap_settings(training["learner"], ranks=2)
    training["window"]["seed_games"] = ()  # reading them may take hours
    _cap_settings(evaluation, every=1, num_simulations=4, positions=16, rating_games=4, score_games=4, gating_games=4)
    _cap_settings(new["distributed"], batch_size=4, sync_interval=4)
    return Settings.model_validate(new)


def _cap_settings(section: dict[str, Any], **limits: float) -> None:
    """Cap the settings at ``limits``; "auto" becomes the limit."""
    for key, limit in limits.items():
        section[key] = limit if section[key] == "auto" else min(section[key], limit)


def save_resolved(settings: Settings, run_dir: Path, *, write: Callable[[Path, bytes], Any] = Path.write_bytes) -> None:
    """Save the settings of a run and the versions of its packages in ``run_dir``.

    ``config.yaml`` holds every setting, including defaults and overrides, and loads to the same settings. People share
    run folders, so it leaves out the paths of keys and the environment of workers (``env``); a resumed run has these
    from the file it was started with. Users' own games and networks are copied to ``modules/``. ``versions.json`` holds
    the versions.

    Args:
        settings: of the run.
        run_dir: the run's folder.
        write: writes bytes to a path; pass ``keima.base.files.write_atomically`` to write atomically.

    Raises:
        OSError: the folder is missing or cannot be written.
    """
    copy_modules(settings.own_modules, run_dir / FOLDER)
    document = settings.model_dump(mode="json", exclude=SECRET)
    for section, key in OWN_NAMES:
        if is_own(document[section][key]):
            document[section]["module"] = f"{FOLDER}/{document[section][key]}.py"
    text = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    write(run_dir / "config.yaml", text.encode("utf-8"))
    write(run_dir / VERSIONS, (json.dumps(versions(), indent=2) + "\n").encode("utf-8"))


def with_begun_modules(settings: Settings, run_dir: Path) -> tuple[Settings, list[str]]:
    """Return the settings of a resumed run with the users' own files that it began with, and a sentence for each that
    differs.

    Raises:
        ConfigError: the run's own settings cannot be read.
    """
    path = run_dir / "config.yaml"
    if not settings.own_modules or not path.is_file():
        return settings, []
    begun, said = load_settings(path), []
    for section, key in OWN_NAMES:
        present, before = (getattr(getattr(each, section), key) for each in (settings, begun))
        if present != before and is_own(present) and stem_of(present) == stem_of(before):
            settings = settings.model_copy(update={section: getattr(begun, section)})
            said.append(
                f"{stem_of(present)}.py has changed since this run began: the run continues with its copy, "
                f"{run_dir / FOLDER / before}.py; to train with the new file, start another run"
            )
    return settings, said


def versions() -> dict[str, str]:
    """Return what the results of a run depend on besides its settings; "unknown" where it cannot be found out."""
    packages = {name: _package_version(name) for name in ("torch", "numpy", "numba")}
    return {"keima": _revision(), "python": platform.python_version(), **packages, "platform": platform.platform()}


def _package_version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _revision() -> str:
    """Return the commit of the checkout, with "-dirty" if files differ."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        answer = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return answer.stdout.strip()
