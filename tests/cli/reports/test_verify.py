"""``keima speedrun`` records a run that meets a target, and ``keima verify`` refuses what was forged."""

import json
import re
import shutil
import sqlite3
import zipfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from keima.base.files import sha256_hex
from keima.base.run_folder import FOLLOWED, RECORD_NAME
from keima.cli.reports.verify import main as verify
from keima.cli.training.speedrun import judge_model
from keima.cli.training.speedrun import main as speedrun
from keima.config.load import load_settings
from keima.data.ledger import read_ledger
from keima.data.packs import games_path
from keima.data.records import decode_batch, encode_batch
from keima.networks.files.container import decode_content, encode_content
from keima.networks.files.model import encode_model
from keima.paths import CACHE
from keima.play.speedrun.judge import Judgement
from keima.play.speedrun.record import hash_config, hash_ledger, read_record
from keima.play.speedrun.target import load_target
from keima.play.speedrun.verify import check_clock, check_strength
from keima.trainers.run import local_backend_maker, train_run
from tests.small_run import GAME, new_model, small_settings

TARGET = """
title: a target that every network meets
config: tic_tac_toe
simulations: 2
errors: {most: 0.9}
"""
NEVER = TARGET.replace("0.9", "0.0001")

pytestmark = pytest.mark.trial


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run and two targets."""
    folder = tmp_path_factory.mktemp("race")
    settings = small_settings(
        folder, run={"iterations": 8}, training={"games_per_iteration": 40, "samples_per_position": 0.5}
    )
    train_run(folder / "run", settings, make_backend=local_backend_maker(), observers=[])
    (folder / "easy.yaml").write_text(TARGET)
    (folder / "never.yaml").write_text(NEVER)
    return folder


@pytest.fixture(scope="module")
def recorded(folder: Path) -> Path:
    """The run with its record, of a model in the middle."""
    with read_ledger(folder / "run") as ledger:
        middle = ledger.iterations()[5]["model_version"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "keima.cli.training.speedrun.find_first_that_meets",
            lambda found, judge: (middle, {middle: judge(middle)}),
        )
        assert speedrun([str(folder / "easy.yaml"), "--run-dir", str(folder / "run"), "--processes", "1"]) == 0
    return folder / "run"


@pytest.fixture
def copy(recorded: Path, tmp_path: Path) -> Path:
    """A copy of it to be forged."""
    return shutil.copytree(recorded, tmp_path / "run")


def checked(
    run: Path, folder: Path, capsys: pytest.CaptureFixture[str], *, strength: bool = False
) -> tuple[int, dict[str, list[str]]]:
    """Return the exit code of the check, and the reasons for which it refuses the record, by subject; without
    ``strength``, the network is taken to be as strong as it should be.
    """
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        if not strength:
            met = Judgement(value=0.0, low=0.0, high=0.0, count=1, met=True)
            patch.setattr("keima.cli.reports.verify.judge_model", lambda *arguments, **options: met)
        code = verify([str(run), "--target", str(folder / "easy.yaml"), "--json", "--games", "24", "--processes", "1"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    return code, {found["subject"]: found["problems"] for found in findings if found["problems"]}


def forge(run: Path, **changes: Any) -> None:
    """Change the record, and let it fit the books again, as a careful forger does."""
    record = json.loads((run / RECORD_NAME).read_text()) | changes
    with read_ledger(run) as ledger:
        record |= {"ledger_sha256": hash_ledger(ledger), "config_sha256": hash_config(run)}
    (run / RECORD_NAME).write_text(json.dumps(record))


def sql(run: Path, text: str, *values: Any) -> None:
    with closing(sqlite3.connect(run / "run.db")) as db, db:
        db.execute(text, values)


def change_times(run: Path, factor: float) -> None:
    """Stretch the times at which the books were written."""
    with closing(sqlite3.connect(run / "run.db")) as db:
        ((begin,),) = db.execute("SELECT MIN(time) FROM models")
    for table in ("models", "batches", "iterations"):
        sql(run, f"UPDATE {table} SET time = ? + (time - ?) * ?", begin, begin, factor)


def change_reports(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    with read_ledger(run) as ledger:
        reports = ledger.iterations()
    for report in reports:
        change(report)
        sql(run, "UPDATE iterations SET report = ? WHERE number = ?", json.dumps(report), report["iteration"])


@pytest.mark.slow
def test_an_honest_record_holds(recorded: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(recorded, folder, capsys, strength=True) == (0, {})
    assert verify([str(recorded), "--target", str(folder / "easy.yaml"), "--processes", "1"]) == 0
    said = capsys.readouterr().out
    # Of a game without a policy target nothing is compared.
    assert re.search(r"(\d+) played again: (\d+) of \2 by the same search, \1 to the last move", said), said
    assert "The record holds." in said


@pytest.mark.slow
def test_a_record_is_packed_into_one_file_that_holds_as_well(
    recorded: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed, words = tmp_path / "record.zip", ["--target", str(folder / "easy.yaml"), "--processes", "1"]
    assert verify([str(recorded), *words, "--pack", str(packed)]) == 0
    assert checked(packed, folder, capsys, strength=True) == (0, {})
    assert list(tmp_path.iterdir()) == [packed]


def test_code_that_comes_with_a_record_is_not_executed(
    copy: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = f"open({str(copy / 'executed')!r}, 'w')"
    name = f"evil-{sha256_hex(source.encode())[:12]}"
    (copy / "modules").mkdir(exist_ok=True)
    (copy / "modules" / f"{name}.py").write_text(source)
    version = read_record(copy).model_version
    content = decode_content((copy / f"models/model-{version:06d}.model").read_bytes())
    description = content.header.model.model_copy(update={"network": {"type": name}})
    header = content.header.model_copy(update={"model": description})
    content = replace(content, header=header, raw_header=header.model_dump_json().encode())
    (copy / f"models/model-{version:06d}.model").write_bytes(encode_content(content))
    assert verify([str(copy), "--target", str(folder / "easy.yaml")]) == 2
    assert "which is code and not executed" in capsys.readouterr().err
    assert not (copy / "executed").exists() and not (CACHE / "modules" / f"{name}.py").exists()


def test_a_network_that_the_settings_name_is_not_executed(
    copy: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (copy / "models/evil.py", folder / "evil.py"):
        path.write_text(f"open({str(copy / 'executed')!r}, 'w')")
    config = copy / "config.yaml"
    honest = config.read_text()
    for name in ("models/evil.py", str(folder / "evil.py")):
        document = yaml.safe_load(honest)
        document["network"] = {"module": name}
        config.write_text(yaml.safe_dump(document))
        forge(copy)
        assert verify([str(copy), "--target", str(folder / "easy.yaml")]) == 2
    errors = capsys.readouterr().err
    assert "there is no file" in errors and "is code and not executed" in errors
    assert not (copy / "executed").exists()


def test_a_ledger_with_a_view_is_not_read(copy: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sql(copy, "DROP TABLE matches")
    sql(copy, "CREATE VIEW matches AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT i FROM n")
    assert verify([str(copy), "--target", str(folder / "easy.yaml")]) == 2
    assert "has what no ledger of this version has: CREATE VIEW matches" in capsys.readouterr().err


def test_a_clock_that_is_no_number_is_named(copy: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change_reports(copy, lambda report: report.update(seconds=float("nan")))
    forge(copy)
    assert verify([str(copy), "--target", str(folder / "easy.yaml")]) == 2
    assert "the report of iteration 1 is damaged" in capsys.readouterr().err


def test_a_clock_that_stood_still_while_games_were_entered_is_refused(
    copy: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Of 150 seconds the clock counts 16, as if the run was interrupted; but games and models came all the time.
    with closing(sqlite3.connect(copy / "run.db")) as db:
        entered = {
            table: [row for (row,) in db.execute(f"SELECT rowid FROM {table} ORDER BY time")]
            for table in ("models", "batches", "iterations")
        }
    for table, rows in entered.items():
        for number, row in enumerate(rows, 1):
            sql(copy, f"UPDATE {table} SET time = ? WHERE rowid = ?", 1e9 + 150 * number / len(rows), row)
    change_reports(copy, lambda report: report.update(seconds=2.0 * report["iteration"]))
    forge(copy, seconds=12.0)
    code, reasons = checked(copy, folder, capsys)
    assert code == 1 and "games and models were entered for" in " ".join(reasons["clock"])


def test_a_network_that_began_elsewhere_is_refused(
    copy: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = encode_model(new_model(GAME, 1), GAME)
    (copy / "models/model-000001.model").write_bytes(data)
    sql(copy, "UPDATE models SET sha256 = ?, bytes = ? WHERE version = 1", sha256_hex(data), len(data))
    forge(copy)
    code, reasons = checked(copy, folder, capsys)
    assert code == 1 and "not the one that the run's seed gives" in reasons["network"][0]


def test_a_record_on_another_board_is_none_of_the_target(
    copy: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copy / "other.yaml").write_text(TARGET.replace("tic_tac_toe", "connect_four"))
    assert verify([str(copy), "--target", str(copy / "other.yaml")]) == 2
    assert "and the target's game is connect_four" in capsys.readouterr().err
    assert verify([str(copy)]) == 2  # a target of its own that is not given is not looked for


def test_the_judge_searches_as_the_target_says_and_not_as_the_run_does(copy: Path, folder: Path) -> None:
    config = copy / "config.yaml"
    config.write_text(re.sub("match_lookahead_plies: .*", "match_lookahead_plies: 9", config.read_text()))
    found = judge_model(
        copy, 1, load_target(folder / "easy.yaml"), seed=1, processes=1, title="", console=Console(quiet=True)
    )
    assert found.value > 0.02, "the rules alone make no error"


@pytest.mark.parametrize("name", ["../run.db", "games/../../run.db", "/run.db", "network.py", "games/a/b"])
def test_a_packed_record_with_files_that_belong_elsewhere_is_not_unpacked(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with zipfile.ZipFile(tmp_path / "record.zip", "w") as archive:
        archive.writestr(name, b"")
    assert verify([str(tmp_path / "record.zip")]) == 2
    assert "does not belong there" in capsys.readouterr().err


def test_a_packed_record_that_unpacks_to_more_or_is_damaged_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = tmp_path / "record.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("run.db", bytes(1_000_000))
    assert verify([str(packed)]) == 2
    packed.write_bytes(packed.read_bytes()[:-30])
    assert verify([str(packed)]) == 2
    errors = capsys.readouterr().err
    assert "does not belong there" in errors and "is damaged" in errors


def test_a_refused_record_is_not_packed(
    copy: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forge(copy, games=7)
    words = ["--target", str(folder / "easy.yaml"), "--processes", "1", "--games", "4"]
    assert verify([str(copy), *words, "--pack", str(tmp_path / "record.zip")]) == 1
    assert not (tmp_path / "record.zip").exists()


@pytest.mark.slow
def test_the_clock_is_that_of_the_first_model_that_meets_the_target(
    copy: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert speedrun([str(folder / "easy.yaml"), "--run-dir", str(copy), "--processes", "1"]) == 0
    record = read_record(copy)
    assert record.model_version == 1 and "Met after" in capsys.readouterr().out
    assert speedrun([str(folder / "never.yaml"), "--run-dir", str(copy), "--processes", "1"]) == 1
    assert "not met: give more --minutes" in capsys.readouterr().out


def test_edited_times_are_refused(copy: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change_times(copy, 200)  # a long run
    change_reports(copy, lambda report: report.update(seconds=report["seconds"] * 100))
    forge(copy, seconds=read_record(copy).seconds * 100)
    code, reasons = checked(copy, folder, capsys)
    assert code == 1 and "times as much time passed" in reasons["clock"][0]


def test_times_that_were_edited_everywhere_are_refused(
    copy: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def shorten(report: dict[str, Any]) -> None:
        report["seconds"] /= 1000
        for worker in report["workers"]:
            worker["core_hours"] /= 1000

    change_reports(copy, shorten)
    change_times(copy, 1 / 1000)
    record = read_record(copy)
    here = record.machine | {"gpus": "0"}
    forge(copy, seconds=record.seconds / 1000, core_hours=record.core_hours / 1000, machine=here)
    code, reasons = checked(copy, folder, capsys)
    assert code == 1 and "times as fast as this machine" in reasons["games"][0]
    forge(copy, machine=here | {"gpus": "1"})
    assert "games" not in checked(copy, folder, capsys)[1], "nothing is known of its speed"


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("DELETE FROM iterations WHERE number = 2", "iterations are missing"),
        ("UPDATE iterations SET report = json_set(report, '$.seconds', 0.001) WHERE number = 3", "clock goes back"),
        ("UPDATE iterations SET report = json_set(report, '$.seconds', number * 60.0)", "more than passed between its"),
        ("UPDATE iterations SET time = time + 8 * number", "passed that the run's clock does not count"),
        ("UPDATE models SET time = time + 1000 WHERE version = {model}", "was published after the record's clock"),
        ("UPDATE models SET time = time + 1000 WHERE version < {model}", "was received before the model"),
        ("UPDATE batches SET time = time + 1000 WHERE sequence = 1", "batches were not received in their order"),
    ],
)
def test_a_clock_that_contradicts_the_books_is_refused(copy: Path, statement: str, reason: str) -> None:
    sql(copy, statement.format(model=read_record(copy).model_version))
    assert reason in clock_problems(copy)


def test_core_hours_that_the_books_or_the_machine_contradict_are_refused(copy: Path) -> None:
    hours = read_record(copy).core_hours
    forge(copy, core_hours=2 * hours)
    assert "and the ledger" in clock_problems(copy, core_hours=hours)
    forge(copy, core_hours=1000 * hours, machine={"cores": "1"})
    assert "more than its cores have in that time" in clock_problems(copy, core_hours=1000 * hours)
    forge(copy, core_hours=hours, machine={})
    assert "the record's machine has no cores" in clock_problems(copy)


def test_a_record_without_core_hours_has_no_speed_and_is_refused(
    copy: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forge(copy, core_hours=0.0)
    assert verify([str(copy), "--target", str(folder / "easy.yaml")]) == 2
    assert "record.json: core_hours: " in capsys.readouterr().err


def test_positions_that_no_batches_have_are_refused(
    copy: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change_reports(copy, lambda report: report.update(total_positions=report["total_positions"] // 2))
    forge(copy, positions=read_record(copy).positions // 2)
    code, reasons = checked(copy, folder, capsys)
    assert code == 1 and "no batch of the ledger is the last of" in reasons["books"][0]


def test_models_whose_files_the_settings_let_go_are_missed(
    copy: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, last = copy / "config.yaml", read_record(copy).model_version
    config.write_text(config.read_text().replace("keep_models: 500", "keep_models: 2"))
    for path in (copy / "models").glob("*.model"):
        if path.stem not in ("model-000001", f"model-{last:06d}"):
            path.unlink()
    sql(copy, "UPDATE models SET path = '' WHERE version NOT IN (1, ?)", last)
    forge(copy)
    code, reasons = checked(copy, folder, capsys)
    assert code == 1 and "versions of the network have files" in reasons["network"][0]


@pytest.mark.parametrize(
    ("report", "reason"),
    [({"workers": [{}]}, "each worker must have name and core_hours"), ({"total_games": "9"}, "must be numbers")],
)
def test_damaged_books_are_named(
    report: dict[str, Any], reason: str, copy: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change_reports(copy, lambda each: each.update(report))
    forge(copy)
    assert verify([str(copy), "--target", str(folder / "easy.yaml")]) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("goal", "said", "again", "reason"),
    [
        ("errors: {most: 0.05}", 0.040, (0.040, 0.049), ""),
        ("errors: {most: 0.05}", 0.040, (0.042, 0.051), ""),  # another kind of processor
        ("errors: {most: 0.05}", 0.040, (0.049, 0.059), "does not reach the target"),
        ("errors: {most: 0.05}", 0.020, (0.040, 0.049), "weaker than the record says"),
        ('match: {opponent: "mcts:9", least: 0.5}', 0.61, (0.52, 0.59), ""),
        ('match: {opponent: "mcts:9", least: 0.5}', 0.61, (0.49, 0.56), "does not reach the target"),
    ],
)
def test_a_network_must_be_as_strong_as_the_record_says(
    goal: str, said: float, again: tuple[float, float], reason: str, copy: Path, tmp_path: Path
) -> None:
    path = tmp_path / "target.yaml"
    path.write_text(TARGET.replace("errors: {most: 0.9}", goal))
    judged = {"value": said, "low": said - 0.05, "high": said + 0.05, "count": 100, "seed": 1}
    forge(copy, target=load_target(path).model_dump(mode="json"), judgement=judged)
    value, high = again
    found = Judgement(value=value, low=2 * value - high, high=high, count=200, met=True)
    problems = check_strength(read_record(copy), found).problems
    assert reason in " ".join(problems) and bool(problems) == bool(reason)


def test_a_race_that_has_begun_goes_on_only_with_its_own_settings(
    copy: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, before = [str(folder / "easy.yaml"), "--run-dir", str(copy)], (copy / RECORD_NAME).read_text()
    assert speedrun([*words, "--seed", "2"]) == 2
    assert "is a race with another run.seed: name another folder with --run-dir" in capsys.readouterr().err
    (copy / FOLLOWED).write_text("elsewhere.yaml")
    assert speedrun([*words, "--config", "tic_tac_toe"]) == 2
    assert "is a race by the settings of another file" in capsys.readouterr().err
    assert (copy / RECORD_NAME).read_text() == before


def test_a_judgement_is_not_made_twice(copy: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[int]()

    def judge(run: Path, version: int, *arguments: Any, **options: Any) -> Judgement:
        made.append(version)
        if len(made) == 2:
            raise KeyboardInterrupt
        return Judgement(value=0.1, low=0.1, high=0.2, count=10, met=True)

    monkeypatch.setattr("keima.cli.training.speedrun.judge_model", judge)
    words = [str(folder / "easy.yaml"), "--run-dir", str(copy)]
    assert speedrun(words) == 130, "interrupted in the second one"
    assert speedrun(words) == 0
    assert made.count(made[0]) == 1 and made.count(made[1]) == 2


def clock_problems(run: Path, core_hours: float | None = None) -> str:
    record = read_record(run)
    hours = record.core_hours if core_hours is None else core_hours
    with read_ledger(run) as ledger:
        return " ".join(check_clock(record, ledger, load_settings(run / "config.yaml"), core_hours=hours).problems)


@pytest.mark.slow
def test_a_foreign_network_is_refused(copy: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    version = read_record(copy).model_version
    forge(copy, model_sha256="0" * 64)
    assert "is another network than the record's" in checked(copy, folder, capsys)[1]["books"][0]
    data = encode_model(new_model(GAME, version), GAME)
    (copy / f"models/model-{version:06d}.model").write_bytes(data)
    sql(copy, "UPDATE models SET sha256 = ?, bytes = ? WHERE version = ?", sha256_hex(data), len(data), version)
    forge(copy, model_sha256=sha256_hex(data))
    code, reasons = checked(copy, folder, capsys)
    assert code == 1 and "games of the record's network have the visits" in " ".join(reasons["games"])


@pytest.mark.parametrize(("batch", "subject"), [(3, "books"), (-1, "ledger")], ids=["before", "after"])
def test_games_that_are_missing_before_and_after_the_record_s_time_are_refused(
    batch: int, subject: str, copy: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with read_ledger(copy) as ledger:
        row = ledger.received_batches()[batch]
    games_path(copy, row.id).unlink()
    sql(copy, "DELETE FROM batches WHERE id = ?", row.id)
    forge(copy)
    code, reasons = checked(copy, folder, capsys)
    assert code == 1 and subject in reasons


def test_copied_games_are_refused(copy: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with read_ledger(copy) as ledger:
        rows = ledger.received_batches()
    first, row = next((one, two) for two in reversed(rows) for one in rows[2:] if one.games == two.games and one != two)
    shutil.rmtree(copy / "checkpoints")  # which count positions
    source = decode_batch(games_path(copy, first.id).read_bytes())
    forged = type(source)(**{**vars(source), "batch_id": row.id, "first_game": row.first_game})
    data = encode_batch(forged)
    games_path(copy, row.id).write_bytes(data)
    sql(
        copy,
        "UPDATE batches SET sha256 = ?, bytes = ?, positions = ?, first_model = ?, last_model = ? WHERE id = ?",
        sha256_hex(data), len(data), forged.num_positions, first.first_model, first.last_model, row.id,
    )  # fmt: skip
    forge(copy)
    code, reasons = checked(copy, folder, capsys)
    assert code == 1 and "games that another batch has too" in " ".join(reasons["seeds"])


def test_games_by_other_settings_than_those_of_the_run_are_refused(
    copy: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = copy / "config.yaml"
    config.write_text(config.read_text().replace("num_simulations: 8", "num_simulations: 64"))
    forge(copy)
    code, reasons = checked(copy, folder, capsys)
    assert code == 1 and "others played them, or with other settings" in reasons["games"][0]


@pytest.mark.slow
def test_games_of_another_seed_are_refused(copy: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = copy / "config.yaml"
    config.write_text(config.read_text().replace("seed: 1\n", "seed: 2\n"))
    forge(copy)
    code, reasons = checked(copy, folder, capsys)
    assert code == 1 and "seeds that this run does not give" in reasons["seeds"][0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"games": 7}, "number of games"), ({"run_id": "0" * 16}, "the record is of run"), ({"model_version": 99}, "99")],
)
def test_what_the_books_do_not_say_is_refused(
    changes: dict[str, Any], reason: str, copy: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forge(copy, **changes)
    code, reasons = checked(copy, folder, capsys)
    assert code == 1 and reason in " ".join(reasons["books"])


@pytest.mark.slow
def test_books_that_have_changed_since_are_refused(
    copy: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sql(copy, "UPDATE iterations SET time = time + 1 WHERE number = 3")
    assert "something else than when the record was made" in checked(copy, folder, capsys)[1]["books"][0]


def test_a_damaged_record_is_named(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / RECORD_NAME).write_text("{}")
    assert verify([str(copy)]) == 2
    assert RECORD_NAME in capsys.readouterr().err


def test_a_race_without_an_end_or_of_another_game_does_not_begin(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    endless = tmp_path / "endless.yaml"
    endless.write_text("run: {name: endless}\ngame: {name: tic_tac_toe}\n")
    words = [str(folder / "easy.yaml"), "--run-dir", str(tmp_path / "race"), "--config"]
    assert speedrun([*words, str(endless)]) == 2
    assert "sets no run.minutes: give --minutes" in capsys.readouterr().err
    assert speedrun([*words, "connect_four"]) == 2
    assert "trains another game than the target's experiment" in capsys.readouterr().err
    assert not (tmp_path / "race").exists()
