"""Changes of the workers in a settings file: everything else stays, letter for letter."""

import difflib
from pathlib import Path
from typing import Any

import pytest

from keima.cluster.machines.worker_list import CannotEdit, add_worker, remove_worker
from keima.config.load import ConfigError, load_settings
from keima.config.sections.workers import WorkerSettings
from tests.sources import EXPERIMENTS

TOP = "run: {name: cluster, iterations: 1}\ngame: {name: tic_tac_toe}  # the game\n"


def settings_file(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_bytes((TOP + text).encode())
    return path


def machine(host: str = "new.example.com", **values: Any) -> WorkerSettings:
    return WorkerSettings.model_validate({"host": host, **values})


def names(path: Path) -> list[str]:
    return [worker.name for worker in load_settings(path).distributed.workers]


def difference(before: str, after: str) -> list[str]:
    """Return the removed and the added lines."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return [line for line in list(lines)[2:] if not line.startswith("@@")]


BLOCK = """\
distributed:
  enabled: true
  # the cellar
  workers:  # all of them
    - host: worker1.example.com  # the old one
      user: me

    # the attic
    - host: worker2.example.com
      gpu_ids:
        - 0
        - 1  # new

  # how much each
  worker_weights: {worker1: 1.0, worker2: 2.0}  # by machine
  batch_size: 50
"""


def test_a_machine_is_added_after_the_last_one(tmp_path: Path) -> None:
    path = settings_file(tmp_path, BLOCK)
    add_worker(path, machine(user="me", port=2222))
    assert path.read_text() == TOP + BLOCK.replace(
        "        - 1  # new\n", "        - 1  # new\n    - host: new.example.com\n      user: me\n      port: 2222\n"
    )


def test_a_machine_is_added_to_the_settings_of_a_users_own_game(tmp_path: Path) -> None:
    (tmp_path / "othello.py").write_text("answer = 42\n", encoding="utf-8")
    path = tmp_path / "othello.yaml"
    path.write_text("run: {name: mine}\ngame:\n  module: othello.py\n", encoding="utf-8")
    add_worker(path, machine(host="worker1"))
    settings = load_settings(path)
    assert [worker.host for worker in settings.distributed.workers] == ["worker1"]
    assert settings.game.module == str(tmp_path / "othello.py")


def test_a_machine_is_removed_with_its_weight_and_nothing_else(tmp_path: Path) -> None:
    path = settings_file(tmp_path, BLOCK)
    remove_worker(path, "worker2")
    assert difference(TOP + BLOCK, path.read_text()) == [
        "-    - host: worker2.example.com",
        "-      gpu_ids:",
        "-        - 0",
        "-        - 1  # new",
        "-  worker_weights: {worker1: 1.0, worker2: 2.0}  # by machine",
        "+  worker_weights: {worker1: 1.0}  # by machine",
    ]


LAYOUTS = {
    "lines": "distributed:\n  workers:\n    - host: a\n    - host: b\n  batch_size: 7\n",
    "not indented": "distributed:\n  workers:\n  - host: a\n  - host: b\n  batch_size: 7\n",
    "braces in lines": "distributed:\n  workers:\n    - {host: a}\n    - {host: b, user: me}  # two\n  batch_size: 7\n",
    "brackets": "distributed:\n  workers: [{host: a}, {host: b}]  # all\n  batch_size: 7\n",
    "brackets over lines": "distributed:\n  workers: [\n    {host: a},\n    {host: b},\n  ]\n  batch_size: 7\n",
    "braces everywhere": "distributed: {workers: [{host: a}, {host: b}], batch_size: 7}\n",
    "at the end": "distributed:\n  batch_size: 7\n  workers:\n    - host: a\n    - host: b\n",
    "at the end without a newline": "distributed:\n  batch_size: 7\n  workers:\n    - host: a\n    - host: b",
    "nested deeper": "distributed:\n    batch_size: 7\n"
    "    workers:\n        -   host: a\n            user: me\n        -   host: b\n",
    "quoted": 'distributed:\n  workers:\n    - "host": "a"\n'
    "      'user': \"me\" # [x]\n"
    '    - host: "b"\n  batch_size: 7\n',
}


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_machines_can_be_added_to_and_removed_from_every_layout(tmp_path: Path, layout: str, line_end: str) -> None:
    text = LAYOUTS[layout].replace("\n", line_end)
    path = settings_file(tmp_path, text)
    add_worker(path, machine(user="me"))
    assert names(path) == ["a", "b", "new"]
    remove_worker(path, "a")
    remove_worker(path, "new")
    assert names(path) == ["b"]
    remove_worker(path, "b")
    assert names(path) == []
    add_worker(path, machine())
    assert names(path) == ["new"]
    assert b"\r\r" not in path.read_bytes()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_adding_and_removing_leaves_the_file_unchanged(tmp_path: Path, layout: str) -> None:
    path = settings_file(tmp_path, LAYOUTS[layout])
    before = path.read_text()
    add_worker(path, machine(user="me"))
    remove_worker(path, "new")
    assert path.read_text().rstrip("\n") == before.rstrip("\n")


@pytest.mark.parametrize("shipped", EXPERIMENTS, ids=lambda path: path.name)
def test_a_machine_can_be_added_to_the_shipped_settings_with_all_their_comments(tmp_path: Path, shipped: Path) -> None:
    path = tmp_path / shipped.name
    path.write_bytes(shipped.read_bytes())
    there = names(path)
    add_worker(path, machine(user="me", key_path="~/.ssh/id_ed25519"))
    assert names(path) == [*there, "new"]
    gone = [line for line in difference(shipped.read_text(), path.read_text()) if line.startswith("-")]
    assert all("workers: []" in line for line in gone)
    for line in gone:
        assert line[1:].replace("[]", "  ").rstrip() in path.read_text()
    remove_worker(path, "new")
    assert names(path) == there


def test_a_file_without_the_section_gets_one(tmp_path: Path) -> None:
    path = settings_file(tmp_path, "")
    add_worker(path, machine())
    assert path.read_text() == TOP + "distributed:\n  workers:\n    - host: new.example.com\n"


def test_a_section_without_workers_gets_them(tmp_path: Path) -> None:
    path = settings_file(tmp_path, "distributed:\n  # games\n  batch_size: 7  # few\n")
    add_worker(path, machine())
    assert (
        path.read_text()
        == TOP + "distributed:\n  # games\n  workers:\n    - host: new.example.com\n  batch_size: 7  # few\n"
    )


@pytest.mark.parametrize(
    "values",
    [
        {"host": "192.168.1.5"},
        {"host": "fe80::1"},
        {"user": "no"},
        {"user": "null"},
        {"user": "1e3"},
        {"user": "007"},
        {"key_path": "~/my keys/id: #1"},
        {"key_path": "/schlüssel/囲碁"},
        {
            "name": "other",
            "gpu_ids": [0, 3],
            "proxy_jump": "me@gateway:22",
            "env": {"A_B": "x: y, {z}"},
            "processes": 4,
        },
        {"python": "/opt/python 3/bin/python3", "directory": "~", "parallel_games": 12},
    ],
)
@pytest.mark.parametrize("layout", ["lines", "brackets", "braces in lines"])
def test_all_settings_of_a_machine_arrive(tmp_path: Path, values: dict[str, Any], layout: str) -> None:
    path = settings_file(tmp_path, LAYOUTS[layout])
    new = machine(**values)
    add_worker(path, new)
    assert load_settings(path).distributed.workers[-1] == new


def test_a_weight_on_its_own_line_is_also_removed(tmp_path: Path) -> None:
    weights = "  worker_weights:\n    # slow\n    a: 1.0\n    b: 2.0  # fast\n"
    path = settings_file(tmp_path, LAYOUTS["lines"] + weights)
    remove_worker(path, "b")
    assert path.read_text().endswith("  worker_weights:\n    # slow\n    a: 1.0\n")
    remove_worker(path, "a")
    assert load_settings(path).distributed.worker_weights == {}


RANGES = """\
distributed:
  defaults: {user: me, processes: 4}
  workers:
    # the lab
    - hosts: node[01-40].lab  # all of them
      group: lab
    - {hosts: "gpu[1-2]", port: 2222}  # with GPUs
    - host: attic.lab
"""


def test_machines_can_be_removed_from_a_range(tmp_path: Path) -> None:
    path = settings_file(tmp_path, RANGES)
    for name in ("node07", "gpu1", "attic", "node40"):
        remove_worker(path, name)
    assert path.read_text() == TOP + RANGES.replace("[01-40]", "[01-06,08-39]").replace("[1-2]", "[2]").replace(
        "    - host: attic.lab\n", ""
    )
    remove_worker(path, "gpu2")
    assert "gpu" not in path.read_text()


def test_a_machine_is_added_without_what_the_defaults_say(tmp_path: Path) -> None:
    path = settings_file(tmp_path, RANGES)
    add_worker(path, machine(user="me", port=22))
    add_worker(path, machine("other", user="you", processes="auto"))
    added = "    - host: new.example.com\n      port: 22\n    - host: other\n      user: you\n      processes: auto\n"
    assert path.read_text() == TOP + RANGES + added
    new, other = load_settings(path).distributed.workers[-2:]
    assert (new.user, new.processes, other.user, other.processes) == ("me", 4, "you", "auto")


def test_a_host_that_a_range_cannot_leave_out_is_removed_by_hand(tmp_path: Path) -> None:
    path = settings_file(tmp_path, "distributed:\n  workers:\n    - hosts: r[1-2]n[1-2]\n")
    refused(path, CannotEdit, lambda: remove_worker(path, "r1n2"), r"r1n2 is one of r\[1-2\]n\[1-2\].*by hand")


def refused(path: Path, kind: type[Exception], change: Any, match: str) -> None:
    before = path.read_bytes()
    with pytest.raises(kind, match=match) as caught:
        change()
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before
    assert sorted(path.parent.iterdir()) == [path]


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    path = settings_file(tmp_path, LAYOUTS["lines"])
    refused(path, ConfigError, lambda: add_worker(path, machine("a.example.com")), "give each a `name`")


def test_the_last_worker_stays_while_workers_are_to_play(tmp_path: Path) -> None:
    path = settings_file(tmp_path, "distributed:\n  enabled: true\n  workers:\n    - host: a\n")
    refused(path, ConfigError, lambda: remove_worker(path, "a"), "the list is empty, but enabled is true")


def test_an_unknown_worker_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    path = settings_file(tmp_path, LAYOUTS["lines"])
    refused(path, ValueError, lambda: remove_worker(path, "c"), "no worker c; its workers are: a, b")


def test_an_invalid_file_is_left_alone(tmp_path: Path) -> None:
    path = settings_file(tmp_path, "distributed: {wokers: []}\n")
    refused(path, ConfigError, lambda: add_worker(path, machine()), "did you mean")


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("distributed: {batch_size: 7}\n", lambda path: add_worker(path, machine())),
        (
            "distributed:\n  workers: [\n    {host: a},  # one\n    {host: b},  # two\n  ]\n",
            lambda path: remove_worker(path, "b"),
        ),
    ],
)
def test_a_layout_that_cannot_be_changed_safely_is_named_with_what_to_do_by_hand(
    tmp_path: Path, text: str, change: Any
) -> None:
    path = settings_file(tmp_path, text)
    refused(path, CannotEdit, lambda: change(path), "by hand, ")


def test_a_file_that_changes_meanwhile_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = settings_file(tmp_path, LAYOUTS["lines"])
    theirs = path.read_bytes() + b"# theirs\n"

    def loaded(text: str, where: Path) -> Any:
        where.write_bytes(theirs)
        monkeypatch.undo()
        from keima.cluster.machines.worker_list import _parse_settings

        return _parse_settings(text, where)

    monkeypatch.setattr("keima.cluster.machines.worker_list._parse_settings", loaded)
    with pytest.raises(CannotEdit, match="try again"):
        add_worker(path, machine())
    assert path.read_bytes() == theirs


def test_a_link_stays_a_link_and_permissions_are_kept(tmp_path: Path) -> None:
    path = settings_file(tmp_path, LAYOUTS["lines"])
    path.chmod(0o640)
    link = tmp_path / "link.yaml"
    link.symlink_to(path)
    add_worker(link, machine())
    assert link.is_symlink()
    assert names(path) == ["a", "b", "new"]
    assert path.stat().st_mode & 0o777 == 0o640
