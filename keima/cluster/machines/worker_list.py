"""Edit the workers in a settings file and keep everything else in it: comments, layout, order.

The file is edited as text, at the positions that YAML reports, and the result is parsed. If it differs from the file by
more than the wanted change, the file stays as it is.
"""

import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from keima.base.files import write_atomically
from keima.config.hosts import hosts_of, without_host
from keima.config.load import ConfigError, load_settings
from keima.config.schema import Settings
from keima.config.sections.types import listed
from keima.config.sections.workers import WorkerSettings

PLAIN_SCALAR = re.compile(r"(?!(?:true|false|null)$)(?:[a-z/]|~/)[\w.~/@-]*|\d+(\.\d+){3}", re.IGNORECASE | re.ASCII)
NULL = ("", "~", "null", "Null", "NULL")
Node = yaml.Node
Edit = Callable[[str], str]


class CannotEdit(ValueError):
    """The file's layout cannot be edited safely; the text says what to do by hand."""


def add_worker(path: Path, machine: WorkerSettings) -> None:
    """Append a machine to ``distributed.workers``, without settings that it has by default.

    Raises:
        ConfigError: the file is invalid, or would be with this machine.
        CannotEdit: see there.
        OSError: the file cannot be written.
    """
    defaults = load_settings(path).distributed.defaults
    without = WorkerSettings(host=machine.host).over(defaults).model_dump(mode="json")
    given = machine.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    values = {"host": machine.host} | {key: value for key, value in given.items() if value != without[key]}
    added = WorkerSettings.model_validate(values).over(defaults).model_dump(mode="json")

    def wanted(settings: dict[str, Any]) -> None:
        settings["distributed"]["workers"] += [added]

    _edit_file(
        path,
        lambda text: _add_entry(text, values),
        wanted,
        by_hand=f"add this line to distributed.workers: - {_flow_item(values)}",
    )


def remove_worker(path: Path, name: str) -> None:
    """Remove a machine from ``distributed.workers``, also out of a range of hosts, and its weight from
    ``distributed.worker_weights``.

    Raises:
        ValueError: there is no such machine.
        ConfigError: the file is invalid, or would be without this machine.
        CannotEdit: see there.
        OSError: the file cannot be written.
    """
    workers = load_settings(path).distributed.workers
    names = [worker.name for worker in workers]
    if name not in names:
        raise ValueError(f"{path} has no worker {name}; its workers are: {listed(names)}")
    index = names.index(name)
    host = workers[index].host

    def wanted(settings: dict[str, Any]) -> None:
        del settings["distributed"]["workers"][index]
        settings["distributed"]["worker_weights"].pop(name, None)

    _edit_file(
        path,
        lambda text: _remove_entry(text, index, name, host),
        wanted,
        by_hand=f"remove {name} from distributed.workers",
    )


def _edit_file(path: Path, edit: Edit, wanted: Callable[[dict[str, Any]], None], *, by_hand: str) -> None:
    """Make one change, if it is exactly the wanted one and the file has not changed meanwhile."""
    path = path.resolve()
    before = load_settings(path).model_dump(mode="json")
    content = path.read_bytes()
    after = json.loads(json.dumps(before))
    wanted(after)
    try:
        text = edit(content.decode("utf-8"))
    except CannotEdit as error:
        raise CannotEdit(f"{path}: {error}; by hand, {by_hand}") from None
    if _parse_settings(text, path).model_dump(mode="json") != after:
        raise CannotEdit(f"{path}: has a layout that cannot be edited safely; by hand, {by_hand}")
    if path.read_bytes() != content:
        raise CannotEdit(f"{path}: has just been changed by another program; try again")
    write_atomically(path, text.encode("utf-8"), mode=path.stat().st_mode & 0o777)


def _parse_settings(text: str, path: Path) -> Settings:
    """Return the settings in ``text``; errors name ``path``."""
    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder) / path.name
        trial.write_bytes(text.encode("utf-8"))
        try:
            return load_settings(trial, copy_of=path)
        except ConfigError as error:
            raise ConfigError(path, [f"would then be invalid: {problem}" for problem in error.problems]) from None


# Adding.


def _add_entry(text: str, values: dict[str, Any]) -> str:
    end = "\r\n" if "\r\n" in text else "\n"
    top = _check_mapping(yaml.compose(text, Loader=yaml.SafeLoader))
    distributed = next((pair for pair in top.value if pair[0].value == "distributed"), None)
    if distributed is None:
        body = f"distributed:{end}  workers:{end}" + _block_item(values, "    ", end)
        return text + ("" if text.endswith("\n") else end) + body
    section = _check_mapping(distributed[1])
    workers = next((pair for pair in section.value if pair[0].value == "workers"), None)
    if workers is None:
        if section.flow_style:
            raise CannotEdit("`distributed` has no `workers` and is written in braces")
        at = _line_start(text, section.value[0][0].start_mark.index)
        indent = " " * section.start_mark.column
        return text[:at] + f"{indent}workers:{end}" + _block_item(values, indent + "  ", end) + text[at:]
    key, node = workers
    if not isinstance(node, yaml.SequenceNode):
        raise CannotEdit("`workers` is not a list")
    if not node.flow_style:
        return _append_to_block(text, node, values, end)
    if (
        not node.value
        and not section.flow_style
        and re.fullmatch(r"\[[ \t]*\]", text[node.start_mark.index : node.end_mark.index])
    ):
        at = _line_end(text, node.end_mark.index)
        line = _replace_node(text[:at], node, "")
        return _with_line_end(line, end) + _block_item(values, " " * (key.start_mark.column + 2), end) + text[at:]
    if not node.value:
        at = node.start_mark.index + 1
        return text[:at] + _flow_item(values) + text[at:]
    at = node.value[-1].end_mark.index
    return text[:at] + ", " + _flow_item(values) + text[at:]


def _append_to_block(text: str, node: yaml.SequenceNode, values: dict[str, Any], end: str) -> str:
    last = node.value[-1]
    at = _line_end(text, _content_end(last))
    indent = " " * node.start_mark.column
    item = f"{indent}- {_flow_item(values)}{end}" if last.flow_style else _block_item(values, indent, end)
    return _with_line_end(text[:at], end) + item + text[at:]


def _block_item(values: dict[str, Any], indent: str, end: str) -> str:
    """Return a machine as a list item over several lines."""
    lines = [f"{key}: {_yaml_value(value)}" for key, value in values.items()]
    return "".join(f"{indent}{'  ' if number else '- '}{line}{end}" for number, line in enumerate(lines))


def _flow_item(values: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{key}: {_yaml_value(value)}" for key, value in values.items()) + "}"


def _yaml_value(value: Any) -> str:
    """Return a value as YAML: JSON, or plain text if YAML reads it as text."""
    if isinstance(value, str) and PLAIN_SCALAR.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=False)


# Removing.


def _remove_entry(text: str, index: int, name: str, host: str) -> str:
    entries = [_hosts_node(node) for node in _listed_workers(text)]
    counts = [len(hosts_of(hosts.value)) if hosts else 1 for hosts in entries]
    entry = next(number for number in range(len(counts)) if sum(counts[: number + 1]) > index)
    hosts = entries[entry]
    if hosts is None or counts[entry] == 1:
        text = _remove_chosen_entry(text, "workers", lambda number, key: number == entry)
    else:
        text = _remove_host(text, hosts, host)
    return _remove_chosen_entry(text, "worker_weights", lambda number, key: key == name)


def _listed_workers(text: str) -> list[Node]:
    section = _distributed_section(text)
    workers = next(pair[1] for pair in section.value if pair[0].value == "workers")
    assert isinstance(workers, yaml.SequenceNode)
    return workers.value


def _hosts_node(entry: Node) -> yaml.ScalarNode | None:
    """Return the range of hosts of an entry; None if it is for one ``host``."""
    pairs = entry.value if isinstance(entry, yaml.MappingNode) else []
    found = next((value for key, value in pairs if key.value == "hosts"), None)
    return found if isinstance(found, yaml.ScalarNode) and found.value not in NULL else None


def _remove_host(text: str, hosts: yaml.ScalarNode, host: str) -> str:
    shorter = without_host(hosts.value, host)
    if shorter is None:
        raise CannotEdit(f"{host} is one of {hosts.value}, which cannot be written without it")
    quote = hosts.style if hosts.style in ("'", '"') else ""
    return text[: hosts.start_mark.index] + quote + shorter + quote + text[hosts.end_mark.index :]


def _remove_chosen_entry(text: str, setting: str, chosen: Callable[[int, str], bool]) -> str:
    """Return the text without the list or mapping entry of the section ``distributed`` that ``chosen`` selects."""
    section = _distributed_section(text)
    node = next((pair[1] for pair in section.value if pair[0].value == setting), None)
    if not isinstance(node, yaml.CollectionNode):
        return text
    entries: list[tuple[Node, Node]] = [each if isinstance(each, tuple) else (each, each) for each in node.value]
    index = next((number for number, (key, _) in enumerate(entries) if chosen(number, str(key.value))), None)
    if index is None:
        return text
    if node.flow_style:
        return _remove_flow_entry(text, entries, index)
    begin = _line_start(text, entries[index][0].start_mark.index)
    beyond = _line_end(text, _content_end(entries[index][1]))
    shorter = text[:begin] + text[beyond:]
    if len(entries) > 1:
        return shorter
    key = next(pair[0] for pair in section.value if pair[0].value == setting)
    colon = text.index(":", key.end_mark.index) + 1
    return shorter[:colon] + (" []" if isinstance(node, yaml.SequenceNode) else " {}") + shorter[colon:]


def _remove_flow_entry(text: str, entries: list[tuple[Node, Node]], index: int) -> str:
    begin, beyond = entries[index][0].start_mark.index, entries[index][1].end_mark.index
    if index + 1 < len(entries):
        beyond = entries[index + 1][0].start_mark.index
    elif index:
        begin = entries[index - 1][1].end_mark.index
    else:
        comma = re.compile(r"\s*,").match(text, beyond)
        beyond = comma.end() if comma else beyond
    if "#" in _text_without_entry(text, entries, begin, beyond):
        raise CannotEdit("a comment stands between the entries")
    return text[:begin] + text[beyond:]


def _text_without_entry(text: str, entries: list[tuple[Node, Node]], begin: int, beyond: int) -> str:
    """Return the text there outside of the entries."""
    inside = [(key.start_mark.index, value.end_mark.index) for key, value in entries]
    return "".join(text[at] for at in range(begin, beyond) if not any(start <= at < end for start, end in inside))


# Positions.


def _distributed_section(text: str) -> yaml.MappingNode:
    """Return the section ``distributed``, which the text must have."""
    top = _check_mapping(yaml.compose(text, Loader=yaml.SafeLoader))
    return _check_mapping(next(pair[1] for pair in top.value if pair[0].value == "distributed"))


def _check_mapping(node: Node | None) -> yaml.MappingNode:
    if not isinstance(node, yaml.MappingNode):
        raise CannotEdit("`distributed` is not a mapping")
    return node


def _content_end(node: Node) -> int:
    """Return the position of the node's last character; YAML ends a block where the next thing begins."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _content_end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def _line_start(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1


def _line_end(text: str, at: int) -> int:
    """Return the position after the end of the line."""
    found = text.find("\n", at)
    return len(text) if found < 0 else found + 1


def _with_line_end(text: str, end: str) -> str:
    return text if text.endswith("\n") else text + end


def _replace_node(text: str, node: Node, by: str) -> str:
    """Return the text with the node replaced; a comment behind it stays in its column."""
    begin, beyond = node.start_mark.index, node.end_mark.index
    behind = text[beyond:]
    if re.match(r"[ \t]+#", behind):
        return text[:begin] + by + " " * (beyond - begin - len(by)) + behind
    return text[:begin].rstrip(" ") + by + behind
