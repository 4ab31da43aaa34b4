"""The settings' own rules: what is frozen, what goes together, how workers are named."""

from typing import Any

import pytest
from pydantic import ValidationError

from keima.config.commands import cluster
from keima.config.schema import Settings
from keima.config.sections.cluster import DistributedSettings
from keima.config.sections.slurm import slurm_seconds
from keima.config.sections.workers import WorkerSettings, first_label


def settings(**sections: Any) -> Settings:
    return Settings.model_validate({"run": {"name": "test"}, "game": {"name": "go"}} | sections)


def worker(host: str, **more: Any) -> dict[str, Any]:
    return {"host": host, "user": "keima", "key_path": "~/.ssh/id_ed25519"} | more


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        settings().run.seed = 2  # type: ignore[misc]


@pytest.mark.parametrize("name", ["", "..", ".hidden", "-rf", "a/b", "a b", "a\n", "ä", "a" * 65])
def test_a_run_name_is_safe_as_a_file_name(name: str) -> None:
    with pytest.raises(ValidationError, match=r"run\.name"):
        settings(run={"name": name})


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        ("network", {"time_steps": 4}, "only for networks of type spiking"),
        ("network", {"type": "spiking", "squeeze_excitation": True}, "type spiking has no such blocks"),
        ("search", {"num_simulations": 8}, "cheap_simulations"),
        ("search", {"temperature": 0.1}, "temperature_final"),
        ("training", {"window": {"min_positions": 10, "max_positions": 9}}, "min_positions"),
        ("training", {"window": {"min_positions": 10}}, "batch_size"),
        ("training", {"learning_rate_schedule": "cosine"}, "run.iterations"),
        ("evaluation", {"sprt": {"elo0": 5, "elo1": 5}}, "elo0"),
        ("distributed", {"enabled": True}, f"add a machine with {cluster('add HOST USER')}"),
        ("distributed", {"workers": [worker("a", gpu_ids=[])]}, "gpu_ids"),
        ("distributed", {"workers": [worker("a"), worker("a-2")]}, "could have the name of machine a-2"),
        (
            "distributed",
            {"workers": [worker("a-2"), worker("a", gpu_ids=[0, 1])]},
            "could have the name of machine a-2",
        ),
        ("distributed", {"workers": [worker("ray-1")], "ray": {}}, "ray-1 looks like a name of Ray's workers"),
        ("distributed", {"ray": {"num_gpus": 1.5}}, "num_gpus"),
        ("distributed", {"ray": {"num_cpus": 0.0}}, "num_cpus"),
        ("distributed", {"ray": {"slots": 0}}, "slots"),
        ("distributed", {"ray": {"address": "ray://head:10001"}}, "'auto' or host:port of the head node"),
        ("distributed", {"offline_seconds": 2.0}, "heartbeat_seconds"),
        ("distributed", {"worker_class": "Worker"}, "module.Class"),
        ("distributed", {"worker_class": "os; import x.Y"}, "module.Class"),
        ("distributed", {"host_key_policy": "none"}, "host_key_policy"),
        ("distributed", {"slurm": {}}, "count"),
        ("distributed", {"slurm": {"count": 1, "time": "4h"}}, "a time as Slurm writes it, such as 4:00:00"),
        ("distributed", {"slurm": {"count": 1, "time": "1:00"}}, "at least twice warning_seconds (60)"),
        ("distributed", {"slurm": {"count": 1, "gpu_type": "a100"}}, "needs gpus: 1"),
        ("distributed", {"slurm": {"count": 1, "memory": "4 GB"}}, "memory as Slurm writes it, such as 4G"),
        ("distributed", {"slurm": {"count": 1, "partition": "-x"}}, "one word"),
        ("distributed", {"slurm": {"count": 1, "options": ["nice=5"]}}, "an option of sbatch, such as --nice=100"),
        ("distributed", {"slurm": {"count": 1, "options": ["--array=1-9"]}}, "--array cannot be set here"),
        ("distributed", {"slurm": {"count": 1, "options": ["-Jname"]}}, "-J cannot be set here"),
        (
            "distributed",
            {"slurm": {"count": 1}, "workers": [worker("slurm-3")]},
            "looks like a name of Slurm's workers",
        ),
    ],
)
def test_contradictory_settings_are_refused(section: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        settings(**{section: values})
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5400), ("90:30", 5430), ("4:00:00", 14_400), ("2-12", 216_000), ("2-12:30", 217_800), ("0-0:0:1", 1)],
)
def test_a_time_is_read_as_slurm_reads_it(text: str, seconds: int) -> None:
    assert slurm_seconds(text) == seconds


def test_workers_of_slurm_are_enough_for_a_distributed_run_and_may_have_weights() -> None:
    values = {"enabled": True, "slurm": {"count": 2}, "worker_weights": {"slurm": 2.0}}
    distributed = DistributedSettings.model_validate(values)
    assert distributed.has_machines and distributed.unused_weights == ""
    assert distributed.slurm and distributed.slurm.names == ("slurm-1", "slurm-2")


def test_workers_in_a_ray_cluster_are_enough_and_may_have_weights() -> None:
    distributed = settings(distributed={"enabled": True, "ray": {}, "worker_weights": {"ray-7": 2.0}}).distributed
    assert distributed.has_machines and not distributed.unused_weights
    assert "ray-7" in settings(distributed={"worker_weights": {"ray-7": 2.0}}).distributed.unused_weights


def test_a_removed_worker_may_leave_its_weight_behind() -> None:
    two = DistributedSettings.model_validate(
        {"workers": [worker("a"), worker("b")], "worker_weights": {"a": 1.0, "b": 2.0}}
    )
    assert two.unused_weights == ""
    one = DistributedSettings.model_validate({"workers": [worker("a")], "worker_weights": {"a": 1.0, "b": 2.0}})
    assert one.unused_weights == "distributed.worker_weights: no worker is called b; the workers are: a"


@pytest.mark.parametrize("keep", [0, 100, 500])
def test_a_run_that_others_join_keeps_the_models_that_their_games_are_checked_with(keep: int) -> None:
    run, crowd = {"name": "a", "keep_models": keep}, {"enabled": True, "crowd": {}}
    if keep != 100:
        assert settings(run=run, distributed=crowd).run.keep_models == keep
        return
    assert settings(run=run).run.keep_models == keep
    with pytest.raises(ValidationError, match=r"run\.keep_models: .* at least 500"):
        settings(run=run, distributed=crowd)


@pytest.mark.parametrize("bound", [{"iterations": 10}, {"minutes": 10.0}])
def test_a_falling_learning_rate_needs_a_run_that_ends(bound: dict[str, Any]) -> None:
    assert (
        settings(
            run={"name": "a", **bound}, training={"learning_rate_schedule": "cosine"}
        ).training.learning_rate_schedule
        == "cosine"
    )


def test_cheap_searches_are_not_limited_if_there_are_none() -> None:
    assert settings(search={"num_simulations": 8, "full_search_probability": 1.0}).search.num_simulations == 8


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("worker1", "worker1"),
        ("worker1.example.org", "worker1"),
        ("192.168.1.5", "192.168.1.5"),
        ("fe80::1", "fe80--1"),
        ("fe80::1%eth0", "fe80--1-eth0"),
        ("::1", "1"),
    ],
)
def test_a_worker_without_a_name_is_named_after_its_host(host: str, name: str) -> None:
    assert first_label(host) == name
    assert WorkerSettings.model_validate(worker(host)).name == name


@pytest.mark.parametrize("user", ["alice", "CORP\\alice", "alice+ml", "alice@corp.example", "a.b-c_d"])
def test_accounts_may_have_the_names_that_directories_give_them(user: str) -> None:
    assert WorkerSettings(host="worker1", user=user).user == user


@pytest.mark.parametrize("user", ["-oProxyCommand=x", "a b", "a;b", "", "a\nb", "\\alice"])
def test_an_invalid_account_is_refused(user: str) -> None:
    with pytest.raises(ValidationError):
        WorkerSettings(host="worker1", user=user)


@pytest.mark.parametrize("key", ["host", "user"])
@pytest.mark.parametrize("text", ["-oProxyCommand=x", "", "a b", "a\nb", "$(x)"])
def test_a_host_or_user_that_ssh_could_take_for_an_option_is_refused(key: str, text: str) -> None:
    with pytest.raises(ValidationError, match="expected a"):
        WorkerSettings.model_validate(worker("a") | {key: text})


def test_a_worker_needs_only_a_host() -> None:
    found = WorkerSettings.model_validate({"host": "worker1.example.com"})
    assert (found.name, found.user, found.key_path, found.port, found.processes) == (
        "worker1",
        None,
        None,
        None,
        "auto",
    )


def test_a_machine_with_one_process_leaves_the_numbered_names_to_others() -> None:
    pair = [worker("a", processes=1), worker("a-2"), worker("a-02"), worker("a-b")]
    assert len(DistributedSettings.model_validate({"workers": pair}).workers) == 4


def test_no_setting_accepts_a_password() -> None:
    with pytest.raises(ValidationError, match="password"):
        WorkerSettings.model_validate(worker("a", password="secret"))


def test_two_workers_with_the_same_name_are_refused_until_they_get_different_names() -> None:
    pair = [worker("box.a"), worker("box.b")]
    with pytest.raises(ValidationError, match="several are called box"):
        DistributedSettings.model_validate({"workers": pair})
    named = DistributedSettings.model_validate(
        {"workers": [pair[0], pair[1] | {"name": "box2"}], "worker_weights": {"box2": 2.0}}
    )
    assert [each.name for each in named.workers] == ["box", "box2"]
