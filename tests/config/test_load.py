"""Reading settings: what is refused, and the messages."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from keima.config.load import SIZE_LIMIT, ConfigError, load_settings, save_resolved, versions
from keima.config.schema import Settings

SMALLEST = "run: {name: test}\ngame: {name: go}\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def problems(folder: Path, text: str, **overrides: Any) -> list[str]:
    """Return the problems reported for the settings in ``text``."""
    with pytest.raises(ConfigError) as refused:
        load_settings(write(folder, text), overrides=overrides)
    assert "settings.yaml" in str(refused.value)
    assert all(problem in str(refused.value) for problem in refused.value.problems)
    return refused.value.problems


def only_problem(folder: Path, text: str, **overrides: Any) -> str:
    (problem,) = problems(folder, text, **overrides)
    return problem


def test_a_run_needs_only_a_name_and_a_game(tmp_path: Path) -> None:
    settings = load_settings(write(tmp_path, SMALLEST))
    assert (settings.run.name, settings.game.name, settings.search.num_simulations) == ("test", "go", 64)
    assert problems(tmp_path, "run: {}\n") == ["line 1: run.name is missing", "line 1: game is missing"]


def test_an_unknown_key_is_refused_with_its_line_and_the_nearest_key_of_its_section(tmp_path: Path) -> None:
    text = SMALLEST + "search:\n  num_simulation: 3\n"
    assert (
        only_problem(tmp_path, text)
        == "line 4: search.num_simulation is not a setting; did you mean search.num_simulations?"
    )


def test_a_key_in_the_wrong_section_is_refused_with_the_right_one(tmp_path: Path) -> None:
    text = SMALLEST + "network: {learning_rate: 1e-3}\n"
    assert only_problem(tmp_path, text).endswith(
        "network.learning_rate is not a setting; did you mean training.learning_rate?"
    )


def test_a_key_unlike_any_other_is_refused_with_the_keys_of_its_section(tmp_path: Path) -> None:
    text = SMALLEST + "game: {name: go}\n".replace("game", "network") + "zzz: 1\n"
    assert "the keys here are run, game, network" in problems(tmp_path, text)[-1]


def test_all_problems_are_listed_at_once(tmp_path: Path) -> None:
    text = SMALLEST + "search: {c_puct: -1, algorithm: alphabeta}\ntraining: {window: 3, momentum: a}\nworker: 1\n"
    assert len(problems(tmp_path, text)) == 5


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("num_simulations: '64'", 'search.num_simulations: expected a whole number, found "64"'),
        ("num_simulations: 64.0", "search.num_simulations: expected a whole number, found 64.0"),
        ("num_simulations: true", "search.num_simulations: expected a whole number, found true"),
        ("num_simulations: 0", "search.num_simulations: expected at least 1, found 0"),
        ("num_simulations:", "search.num_simulations: expected a whole number, found null"),
        ("full_search_probability: 1.5", "search.full_search_probability: expected at most 1, found 1.5"),
        ("c_puct: .nan", "search.c_puct: expected a finite number, found NaN"),
        ("c_puct: .inf", "search.c_puct: expected a finite number, found Infinity"),
        ("forced_playouts: yes", 'search.forced_playouts: expected true or false, found "yes"'),
        ("algorithm: minimax", "search.algorithm: expected 'puct' or 'gumbel', found \"minimax\""),
        ("dirichlet_alpha: 0", "search.dirichlet_alpha: expected 'auto' or more than 0, found 0"),
        ("dirichlet_alpha: automatic", "search.dirichlet_alpha: expected 'auto' or a number, found \"automatic\""),
        ("resignation: true", "search.resignation: expected a mapping of keys to values, found true"),
        ("cheap_simulations: 65", "search: cheap_simulations (65) must not exceed num_simulations (64)"),
    ],
)
def test_a_wrong_value_is_refused_with_the_expected_type(tmp_path: Path, setting: str, message: str) -> None:
    assert only_problem(tmp_path, f"{SMALLEST}search:\n  {setting}\n").split(": ", 1)[1] == message


def test_a_long_wrong_value_is_shortened_in_the_message(tmp_path: Path) -> None:
    assert len(only_problem(tmp_path, f"{SMALLEST}search: {{c_puct: {'x' * 10_000}}}\n")) < 200


def test_a_problem_in_a_list_names_the_element(tmp_path: Path) -> None:
    text = (
        SMALLEST
        + "distributed:\n  workers:\n    - {host: a, user: u, key_path: k}\n"
        + "    - {host: b, user: u, key_path: k, port: 0}\n"
    )
    assert only_problem(tmp_path, text) == "line 6: distributed.workers[1].port: expected at least 1, found 0"


def test_the_guide_s_cluster_loads_unchanged(tmp_path: Path) -> None:
    guide = """distributed:
  enabled: true
  workers:
    - {host: worker1.example.com, user: username, key_path: ~/.ssh/id_ed25519, gpu_id: 0}     # also: name, port
    - {host: worker2.example.com, user: username, gpu_id: 1}
  compression: true
  batch_size: 100        # games per transfer
  sync_interval: 50      # games between model syncs
  load_balancing: true
  worker_weights: {worker1: 1.0, worker2: 2.0}
"""
    distributed = load_settings(write(tmp_path, SMALLEST + guide)).distributed
    assert [(each.name, each.gpu_id, each.key_path) for each in distributed.workers] == [
        ("worker1", 0, "~/.ssh/id_ed25519"),
        ("worker2", 1, None),
    ]
    assert distributed.worker_weights == {"worker1": 1.0, "worker2": 2.0}


def test_overrides_replace_values_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, SMALLEST + "search: {num_simulations: 32}\n")
    settings = load_settings(
        path, overrides={"search.num_simulations": 48, "run.seed": 7, "training.window.max_positions": 30_000}
    )
    assert (settings.search.num_simulations, settings.run.seed, settings.training.window.max_positions) == (
        48,
        7,
        30_000,
    )


def test_an_override_makes_a_section_that_is_null(tmp_path: Path) -> None:
    path = write(tmp_path, SMALLEST + "distributed: {crowd: null}\n")
    crowd = load_settings(path, overrides={"distributed.crowd.port": 18_555}).distributed.crowd
    assert crowd and crowd.port == 18_555


def test_a_wrong_override_is_attributed_to_the_command_line(tmp_path: Path) -> None:
    assert (
        only_problem(tmp_path, SMALLEST, **{"run.seed": -1}) == "command line: run.seed: expected at least 0, found -1"
    )
    assert (
        only_problem(tmp_path, SMALLEST, **{"run.sed": 1})
        == "command line: run.sed is not a setting; did you mean run.seed?"
    )
    assert (
        only_problem(tmp_path, SMALLEST, **{"search.num_simulations": "many"})
        == 'command line: search.num_simulations: expected a whole number, found "many"'
    )


def test_an_override_inside_a_value_that_is_no_section_is_refused(tmp_path: Path) -> None:
    assert "search: expected a mapping" in only_problem(tmp_path, SMALLEST + "search: 3\n", **{"search.c_puct": 1.0})


def test_an_override_inside_a_list_is_refused(tmp_path: Path) -> None:
    text = SMALLEST + "distributed: {workers: [{host: a}]}\n"
    problem = only_problem(tmp_path, text, **{"distributed.workers.nice": 19})
    assert problem == "command line: distributed.workers.nice: workers is a list; give all of it, or change the file"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected sections"),
        ("- run\n", "expected sections"),
        ("run: {name: a\n\ngame: b\n", "line 3: "),
        ("run: a: b\n", "line 1: mapping values are not allowed here"),
        ("run:\n  name: a\n  seed: 1\n  name: b\n", "line 4: the key 'name' is repeated"),
        ("run: &a {name: b}\ngame: *a\n", "line 2: aliases are not supported"),
        ("? [a]\n: 1\n", "line 1: a key must be text"),
        ("run: !!python/object/apply:os.getcwd []\n", "line 1: tags are not supported"),
        ("run:\n  seed: !!timestamp 2001\n", "line 2: tags are not supported"),
        ("run: {seed: !!bool perhaps}\n", "line 1: tags are not supported"),
        ("run: !!map {name: a}\n", "line 1: tags are not supported"),
        ("run: {name: a}\n---\ngame: {name: b}\n", "line 2: "),
        ("run: \x07\n", "is not YAML: "),
        ("[" * 50_000, "is not YAML: "),
        ("run: {seed: " + "9" * 5000 + "}\n", "is not YAML: "),
        ("#" * (SIZE_LIMIT + 1), f"is larger than {SIZE_LIMIT:,} bytes"),
    ],
)
def test_yaml_beyond_plain_settings_is_refused(tmp_path: Path, text: str, message: str) -> None:
    assert message in only_problem(tmp_path, text)


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file"):
        load_settings(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_settings(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"run: {name: \xe9}")
    with pytest.raises(ConfigError, match=r"is not UTF-8 text \(byte 12\)"):
        load_settings(tmp_path / "latin.yaml")


@pytest.mark.medium
@given(st.binary(max_size=200))
def test_any_bytes_either_load_or_are_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    path.write_bytes(data)
    with pytest.raises(ConfigError):
        load_settings(path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1_000", 1000),
        ("no", "no"),
        ("010", 10.0),
        ("0x10", "0x10"),
        ("12:30", "12:30"),
        ("True", True),
        ("-.5", -0.5),
    ],
)
def test_plain_words_mean_what_they_seem_to_mean(tmp_path: Path, text: str, value: Any) -> None:
    settings = load_settings(write(tmp_path, f"run: {{name: a}}\ngame: {{name: b, options: {{it: {text}}}}}\n"))
    assert settings.game.options["it"] == value
    assert type(settings.game.options["it"]) is type(value)


def test_environment_variables_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = load_settings(write(tmp_path, SMALLEST))
    for name in ("RUN_SEED", "RUN__SEED", "KEIMA_RUN_SEED", "SEED"):
        monkeypatch.setenv(name, "99")
    assert load_settings(write(tmp_path, SMALLEST)) == before


text = st.text(st.characters(min_codepoint=32, exclude_categories=["C", "Zl", "Zp"]), min_size=1, max_size=20)
tricky = st.sampled_from(
    ["1e-3", "no", "010", "null", "~", "1_0", ".5", "12:30", "2020-01-01", "<<", "=", "- a", "a: b", "#", "true"]
)


@pytest.mark.medium
@given(
    st.dictionaries(
        text | tricky, st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text | tricky
    )
)
def test_resolved_settings_load_again_unchanged(
    tmp_path_factory: pytest.TempPathFactory, options: dict[str, Any]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    worker = {"host": "a.b", "user": "u", "gpu_ids": [0, 1]}
    values = {"run": {"name": "1e3"}, "game": {"name": "go", "options": options}, "distributed": {"workers": [worker]}}
    settings = Settings.model_validate(values)
    save_resolved(settings, folder)
    assert load_settings(folder / "config.yaml") == settings


@pytest.mark.parametrize(("game", "options"), [("connect_four", {"planes": "threats"}), ("chess", {"history": 8})])
def test_a_run_s_copy_that_does_not_name_an_option_is_of_before_there_was_a_choice(
    tmp_path: Path, game: str, options: dict[str, Any]
) -> None:
    settings = Settings.model_validate({"run": {"name": "r"}, "game": {"name": game}})
    save_resolved(settings, tmp_path)
    assert load_settings(tmp_path / "config.yaml").game.options == options
    (tmp_path / "versions.json").unlink()
    assert load_settings(tmp_path / "config.yaml").game.options == {}


def test_settings_that_have_left_are_refused_by_name_unless_a_run_s_copy_has_them_switched_off(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    left = {"network": {"predict_soft_policy": False}, "training": {"soft_policy_weight": 8.0}}
    path.write_text(yaml.safe_dump({"run": {"name": "r"}, "game": {"name": "go"}} | left))
    with pytest.raises(ConfigError) as refused:
        load_settings(path)
    assert [problem.split(": ", 1)[1] for problem in refused.value.problems] == [
        f"{name} is no longer a setting, since it did not help; see docs/results/learning_techniques.md"
        for name in ("network.predict_soft_policy", "training.soft_policy_weight")
    ]
    (tmp_path / "versions.json").write_text("{}")
    assert load_settings(path) == Settings.model_validate({"run": {"name": "r"}, "game": {"name": "go"}})
    path.write_text(path.read_text().replace("predict_soft_policy: false", "predict_soft_policy: true"))
    with pytest.raises(ConfigError, match=r"network\.predict_soft_policy is no longer a setting"):
        load_settings(path)


OLDER_NAME = SMALLEST + "distributed:\n  ray:\n    seats: "


def test_a_setting_still_goes_by_its_older_name_and_the_file_is_said_to_have_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, f"{OLDER_NAME}5\n")
    for _ in range(2):
        ray = load_settings(path).distributed.ray
        assert ray is not None and ray.slots == 5
    assert caplog.messages == [
        f"{path}: line 5: distributed.ray.seats is called distributed.ray.slots now; the older name still works"
    ]
    ray = load_settings(path, overrides={"distributed.ray.seats": 7}).distributed.ray
    assert ray is not None and ray.slots == 7


def test_a_run_s_copy_with_an_older_name_is_read_in_silence_and_written_with_today_s(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, f"{OLDER_NAME}5\n")
    (tmp_path / "versions.json").touch()
    settings = load_settings(path)
    assert not caplog.messages
    save_resolved(settings, tmp_path)
    saved = yaml.safe_load((tmp_path / "config.yaml").read_text(encoding="utf-8"))
    assert saved["distributed"]["ray"]["slots"] == 5 and "seats" not in saved["distributed"]["ray"]


def test_a_problem_with_a_setting_of_an_older_name_has_its_line(tmp_path: Path) -> None:
    assert only_problem(tmp_path, f"{OLDER_NAME}0\n").startswith("line 5: distributed.ray.slots: expected ")
    both = f"{OLDER_NAME}5\n    slots: 6\n"
    assert only_problem(tmp_path, both) == "line 6: the key 'slots' is repeated"


def test_a_run_s_folder_reveals_neither_key_paths_nor_variables(tmp_path: Path) -> None:
    worker = {"host": "a.b", "user": "u", "key_path": "~/hidden/k", "env": {"TOKEN": "hidden"}}
    save_resolved(
        Settings.model_validate({"run": {"name": "r"}, "game": {"name": "go"}, "distributed": {"workers": [worker]}}),
        tmp_path,
    )
    assert "hidden" not in "".join(path.read_text() for path in tmp_path.iterdir())
    assert [worker.host for worker in load_settings(tmp_path / "config.yaml").distributed.workers] == ["a.b"]


def test_a_run_records_its_settings_and_versions(tmp_path: Path) -> None:
    written: dict[str, bytes] = {}
    settings = load_settings(write(tmp_path, SMALLEST), overrides={"run.seed": 7})
    save_resolved(settings, tmp_path / "run", write=lambda path, data: written.update({path.name: data}))
    assert yaml.safe_load(written["config.yaml"])["run"]["seed"] == 7
    assert json.loads(written["versions.json"]) == versions()
    assert versions().keys() == {"keima", "python", "torch", "numpy", "numba", "platform"}
    assert versions()["torch"].startswith("2.")


def test_without_git_the_revision_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert versions()["keima"] == "unknown"
