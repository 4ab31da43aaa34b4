"""Ranges of hosts, and entries of the list of workers that stand for many machines."""

import re
from pathlib import Path

import pytest

from keima.config.hosts import hosts_of, without_host
from keima.config.load import ConfigError, load_settings, save_resolved
from keima.config.sections.cluster import DistributedSettings

TOP = "run: {name: cluster, iterations: 1}\ngame: {name: tic_tac_toe}\ndistributed:\n"


def load(folder: Path, section: str) -> DistributedSettings:
    path = folder / "config.yaml"
    path.write_text(TOP + section)
    return load_settings(path).distributed


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node[1-3].lab", ["node1.lab", "node2.lab", "node3.lab"]),
        ("node[08-10].lab", ["node08.lab", "node09.lab", "node10.lab"]),
        ("node[1-2,7]", ["node1", "node2", "node7"]),
        ("node[099-101]", ["node099", "node100", "node101"]),
        ("node[99-100]", ["node99", "node100"]),
        ("10.0.0.[9-10]", ["10.0.0.9", "10.0.0.10"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("node[7]", ["node7"]),
        ("alone.lab", ["alone.lab"]),
    ],
)
def test_a_range_stands_for_its_hosts_in_order(text: str, hosts: list[str]) -> None:
    assert list(hosts_of(text)) == hosts


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("node[]", "expected a range of hosts"),
        ("node[1-]", "expected a range of hosts"),
        ("node[a-c]", "expected a range of hosts"),
        ("node[1,,2]", "expected a range of hosts"),
        ("node[1-2", "expected hosts such as"),
        ("node1-2]", "expected hosts such as"),
        ("node[10-08].lab", "the range 10-08 in node[10-08].lab runs backwards"),
        ("node[1-3,2]", "node[1-3,2] has node2 twice"),
        ("node[1-1001]", "stands for 1,001 hosts, and at most 1,000"),
        ("n[1-999999999]n[1-999999999]", "at most 1,000"),
    ],
)
def test_what_is_no_range_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        hosts_of(text)


def test_a_range_may_have_a_thousand_hosts() -> None:
    assert len(hosts_of("node[0001-1000]")) == 1000


@pytest.mark.parametrize(
    ("text", "host", "shorter"),
    [
        ("node[01-40].lab", "node07.lab", "node[01-06,08-40].lab"),
        ("node[01-40].lab", "node01.lab", "node[02-40].lab"),
        ("node[1-3,7]", "node7", "node[1-3]"),
        ("node[098-102]", "node100", "node[098-099,101-102]"),
        ("node[9-11]", "node10", "node[9,11]"),
        ("node[7]", "node7", None),
        ("r[1-2]n[1-2]", "r1n1", None),
    ],
)
def test_a_host_can_be_left_out_of_a_range(text: str, host: str, shorter: str | None) -> None:
    assert without_host(text, host) == shorter


def test_one_entry_stands_for_many_machines_each_named_after_its_host(tmp_path: Path) -> None:
    section = "  workers:\n    - hosts: node[01-40].lab\n      port: 2222\n      group: lab\n    - host: attic.lab\n"
    *nodes, attic = load(tmp_path, section).workers
    assert [worker.name for worker in nodes] == [f"node{number:02}" for number in range(1, 41)]
    assert {(worker.port, worker.group) for worker in nodes} == {(2222, "lab")}
    assert (attic.name, attic.port, attic.group) == ("attic", None, None)


def test_workers_have_the_defaults_unless_they_say_otherwise(tmp_path: Path) -> None:
    section = (
        "  defaults: {user: me, port: 2222, gpu_ids: [0, 1]}\n"
        "  workers: [{host: a}, {host: b, user: you}, {hosts: 'c[1-2]', port: 22}, {host: d, gpu_id: 1}]\n"
    )
    found = [(each.name, each.user, each.port, each.gpu_ids) for each in load(tmp_path, section).workers]
    assert found == [
        ("a", "me", 2222, (0, 1)),
        ("b", "you", 2222, (0, 1)),
        ("c1", "me", 22, (0, 1)),
        ("c2", "me", 22, (0, 1)),
        ("d", "me", 2222, None),
    ]


def test_the_settings_of_a_group_are_those_of_its_workers_unless_their_entries_say_otherwise(tmp_path: Path) -> None:
    section = (
        "  defaults: {user: ann, nice: 1}\n"
        "  groups: {lab: {nice: 19, quiet_hours: mon-fri 09:00-18:00}}\n"
        "  workers:\n    - hosts: node[01-02].lab\n      group: lab\n      nice: 5\n"
        "    - {host: desk, group: lab}\n    - host: attic\n"
    )
    workers = load(tmp_path, section).workers
    assert [(worker.user, worker.nice, worker.quiet_hours) for worker in workers] == [
        *[("ann", 5, "mon-fri 09:00-18:00")] * 2,
        ("ann", 19, "mon-fri 09:00-18:00"),
        ("ann", 1, None),
    ]


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("  defaults: {prot: 1}\n", ["line 4: distributed.defaults.prot is not a setting", "port"]),
        ("  defaults: {port: 0}\n  workers: [{host: a}]\n", ["line 4: distributed.defaults.port: expected at least 1"]),
        ("  workers:\n    - {host: a}\n    - hosts: node[3-1]\n", ["line 6: distributed.workers[1]: ", "backwards"]),
        ("  workers:\n    - hosts: node[1-2]\n      port: 0\n", ["line 6: distributed.workers[0].port: expected"]),
        ("  workers:\n    - hosts: [a, b]\n", ["line 5: distributed.workers[0]: expected hosts such as"]),
        ("  workers:\n    - {hosts: a, host: b}\n", ["line 5", "`host` does not go with `hosts`"]),
        ("  workers:\n    - {hosts: a, name: b}\n", ["line 5", "`name` does not go with `hosts`"]),
        ("  workers:\n    - host: node[1-2]\n", ["line 5", "hosts: node[1-2]"]),
        ("  workers:\n    - {user: me}\n", ["line 5: distributed.workers[0].host is missing"]),
        ("  workers: [{hosts: 'a[1-3].x'}, {hosts: 'a[3-9].y'}]\n", ["line 3", "several are called a3; give"]),
        ("  groups: {lab: {nicee: 5}}\n  workers: [{host: a}]\n", ["line 4", "lab.nicee", "did you mean"]),
        ("  groups: {lab: {nice: 5}}\n  workers: [{host: a}]\n", ["groups: no worker is in lab"]),
        ("  workers: [{host: a, group: b}, {host: b}]\n", ["line 3", "b is the name of a group and of a worker"]),
    ],
)
def test_an_invalid_entry_is_refused_with_its_line(tmp_path: Path, section: str, said: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, section)
    assert [part for part in said if part not in str(refused.value)] == []
    assert len(refused.value.problems) == 1


def test_of_many_names_an_error_lists_the_first(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"called a01, .*, a12 and 28 more; give"):
        load(tmp_path, "  workers: [{hosts: 'a[01-40].x'}, {hosts: 'a[01-40].y'}]\n")


def test_a_run_s_folder_lists_each_machine_and_keeps_defaults_private(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    section = "  defaults: {user: me, key_path: ~/hidden, env: {TOKEN: hidden}}\n  workers: [{hosts: 'a[1-2]'}]\n"
    workers = load(tmp_path, section).workers
    save_resolved(load_settings(tmp_path / "config.yaml"), tmp_path / "run")
    assert "hidden" not in (tmp_path / "run" / "config.yaml").read_text()
    saved = load_settings(tmp_path / "run" / "config.yaml").distributed.workers
    assert saved == tuple(worker.model_copy(update={"key_path": None, "env": {}}) for worker in workers)
