import json
from pathlib import Path
from typing import Any

import pytest

from keima.base.reports.run_reports import EvaluationReport
from keima.base.run_folder import STATS_NAME
from keima.base.system.command_line import program_name
from keima.cli.reports.results import main
from keima.report.charts.png import COLOURS
from keima.report.files.run_files import StatsFile
from tests.example_reports import evaluation, iteration, progress
from tests.ppo.ppo_run import leave_a_run
from tests.programs import printed
from tests.report.pictures import count_of, pixels


def write(run_dir: Path, evaluations: list[EvaluationReport | None]) -> None:
    """Leave a run in ``run_dir`` that has had an iteration with each of these evaluations."""
    observer = StatsFile(run_dir / STATS_NAME)
    observer.progress(progress(1, iterations=200))
    for number, measured in enumerate(evaluations, start=1):
        observer.iteration(iteration(number, measured=measured))


def contained(page: str) -> Any:
    """Return what a page draws."""
    return json.loads(page.split('id="drawn">')[1].split("</script>")[0])


def lines(capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    assert main(options) == 0
    return capsys.readouterr().out.splitlines()


def table_numbers(lines: list[str]) -> list[str]:
    """Return the first column below the titles."""
    start = next(i for i, line in enumerate(lines) if line.startswith("Iter."))
    return [line.split()[0] for line in lines[start + 1 : lines.index("", start)]]


def value(lines: list[str], title: str) -> str:
    """Return what the summary says under ``title``."""
    return next(line.removeprefix(title).strip() for line in lines if line.startswith(title))


def test_the_table_shows_every_iteration_and_the_summary_the_whole_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, [evaluation(number) for number in range(1, 6)])
    shown = lines(capsys, str(tmp_path))
    assert table_numbers(shown) == ["1", "2", "3", "4", "5"]
    assert value(shown, "Iterations") == "5 of 200 in 5 min 00 s"
    assert value(shown, "Games") == "500, 1.67 a second over the whole time"
    assert value(shown, "Positions") == "11,500, of which 11.5k in the window"


def test_only_the_last_iterations_are_shown_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, [None] * 30)
    shown = lines(capsys, "--training", str(tmp_path / STATS_NAME), "--last", "5")
    assert shown[0] == "The last 5 of 30 iterations:"
    assert table_numbers(shown) == ["26", "27", "28", "29", "30"]
    assert value(shown, "Iterations").startswith("30 of 200")


def test_a_long_run_shows_its_end_unless_more_is_requested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, [None] * 50)
    assert len(table_numbers(lines(capsys, str(tmp_path)))) == 20
    assert len(table_numbers(lines(capsys, str(tmp_path), "--last", "1000"))) == 50


def test_the_best_model_is_the_one_with_the_least_search_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, [evaluation(4, elo=50.0), evaluation(8, elo=20.0), None, evaluation(2, elo=90.0)])
    model = tmp_path / "models" / "model-000008.model"
    model.parent.mkdir()
    model.touch()
    shown = lines(capsys, str(tmp_path))
    assert value(shown, "Least search error") == "6.2 ± 1.2 %, by model 8"
    assert value(shown, "Least policy error") == "10.0 %, by model 8"
    assert value(shown, "Highest Elo") == "90 ± 40, by model 2"
    assert value(shown, "Best model") == str(model)


def test_without_a_solver_the_best_model_is_the_one_with_the_highest_elo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, [evaluation(1, solved=False, elo=-5.0), evaluation(2, solved=False, elo=-20.0)])
    shown = lines(capsys, str(tmp_path))
    assert value(shown, "Best model") == f"model 1, whose file is no longer in {tmp_path / 'models'}"
    assert not any("search error" in line for line in shown)


def test_a_run_without_measurements_has_no_best_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, [None, None])
    assert not any(line.startswith(("Best", "Least", "Highest")) for line in lines(capsys, str(tmp_path)))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(None, "is not there"), ("[]", "holds no iterations yet"), ("[1", "is not a list of iterations")],
)
def test_unusable_input_is_refused_with_its_name(
    tmp_path: Path, content: str | None, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / STATS_NAME).write_text(content)
    assert main([str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"{program_name()}: {tmp_path / STATS_NAME}") and complaint in captured.err
    assert not captured.out


def test_fewer_than_one_iteration_cannot_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path), "--last", "0"])
    assert "argument --last: expected a whole number from 1, found 0" in capsys.readouterr().err


@pytest.mark.medium
def test_the_output_can_be_drawn_as_a_picture_of_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, [evaluation(number) for number in range(1, 6)])
    path = tmp_path / "run.svg"
    assert lines(capsys, "--training", str(tmp_path / STATS_NAME), "--svg", str(path)) == [
        f"{path}: this output as a picture"
    ]
    drawn = path.read_text(encoding="utf-8")
    assert "Least search error" in drawn.replace("&#160;", " ")
    assert "<script" not in drawn and "url(http" not in drawn


@pytest.mark.medium
def test_the_curves_can_be_drawn_as_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, [evaluation(number) for number in range(1, 6)])
    path = tmp_path / "curves.png"
    assert lines(capsys, "--training", str(tmp_path / STATS_NAME), "--png", str(path)) == [f"{path}: the run's curves"]
    picture = pixels(path.read_bytes())
    assert picture.shape[1] > 1500
    assert all(count_of(colour, picture) > 100 for colour in COLOURS[:3]), "there is a curve for each loss"


@pytest.mark.medium
def test_page_and_picture_are_written_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, [None] * 3)
    assert main([str(tmp_path), "--html", str(tmp_path / "page.html"), "--png", str(tmp_path / "curves.png")]) == 0
    assert (tmp_path / "page.html").exists() and (tmp_path / "curves.png").exists()


@pytest.mark.medium
@pytest.mark.parametrize(
    ("count", "name", "words"), [(1, "curves.png", "curves need two iterations"), (2, "no/curves.png", "curves.png")]
)
def test_an_impossible_picture_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int, name: str, words: str
) -> None:
    write(tmp_path, [None] * count)
    assert main([str(tmp_path), "--png", str(tmp_path / name)]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / name).exists()


@pytest.mark.medium
@pytest.mark.parametrize(("script", "verb"), [("view_results", "results"), ("watch_training", "watch")])
def test_a_script_explains_itself_from_any_folder(tmp_path: Path, script: str, verb: str) -> None:
    assert f"keima {verb} runs/connect_four" in printed(f"scripts/{script}.py", "--help", cwd=tmp_path)


def test_a_ppo_run_is_shown_as_rounds_with_its_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave_a_run(tmp_path, episodes=16)
    shown = lines(capsys, str(tmp_path), "--last", "3")
    assert shown[0] == "The last 3 of 4 rounds:"
    assert shown[1].split()[:3] == ["Round", "Episodes", "Steps"] and [line.split()[0] for line in shown[2:5]] == [
        "2",
        "3",
        "4",
    ]
    assert value(shown, "Episodes").startswith("16 in ") and value(shown, "Steps") == "256 of all worlds"
    assert "buy and hold: " in value(shown, "Last whole episode")


@pytest.mark.medium
def test_a_ppo_run_becomes_a_page_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave_a_run(tmp_path)
    page, picture = tmp_path / "report.html", tmp_path / "curves.png"
    assert lines(capsys, str(tmp_path), "--html", str(page), "--png", str(picture)) == [
        f"{page}: open it in a browser",
        f"{picture}: the run's curves",
    ]
    text = page.read_text()
    sections = [chart["section"] for chart in contained(text)["runs"][0]["charts"]]
    assert sections[0] == "The last whole episode" and sections[-1] == "Speed and time" and "<h2>Rounds" in text
    drawn = pixels(picture.read_bytes())
    assert count_of(COLOURS[2], drawn) or count_of(COLOURS[4], drawn), "trades are marked"


def test_a_ppo_run_without_its_episode_still_has_its_curves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave_a_run(tmp_path)
    (tmp_path / "last_episode.json").unlink()
    page = tmp_path / "report.html"
    lines(capsys, str(tmp_path), "--html", str(page))
    titles = [chart["title"] for chart in contained(page.read_text())["runs"][0]["charts"]]
    assert "Account value" not in titles and "Entropy of the policy" in titles


@pytest.mark.medium
@pytest.mark.slow
def test_several_runs_are_compared_on_one_page_and_in_one_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, count in (("first", 3), ("second", 5)):
        (tmp_path / name).mkdir()
        write(tmp_path / name, [evaluation(number) for number in range(1, count + 1)])
    page, picture = tmp_path / "report.html", tmp_path / "curves.png"
    said = lines(capsys, str(tmp_path / "first"), str(tmp_path / "second"), "--html", str(page), "--png", str(picture))
    assert said == [f"{page}: open it in a browser", f"{picture}: the run's curves"]
    runs = contained(page.read_text())["runs"]
    assert [(run["name"], len(run["metrics"]["learner/loss"])) for run in runs] == [("first", 3), ("second", 5)]
    assert "<th scope=row>Games</th><td>300, " in page.read_text()
    assert count_of(COLOURS[5], pixels(picture.read_bytes())), "the second run's losses have the next colours"


def test_runs_of_the_same_name_are_told_apart_by_their_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [tmp_path / place / "run" for place in "ab"]
    for folder in folders:
        folder.mkdir(parents=True)
        write(folder, [None] * 2)
    page = tmp_path / "report.html"
    lines(capsys, *map(str, folders), "--html", str(page))
    assert [run["name"] for run in contained(page.read_text())["runs"]] == list(map(str, folders))


def test_runs_that_cannot_be_compared_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "games").mkdir()
    write(tmp_path / "games", [None] * 2)
    leave_a_run(tmp_path / "ppo")
    games, ppo, page = str(tmp_path / "games"), str(tmp_path / "ppo"), str(tmp_path / "report.html")
    assert main([games, ppo, "--html", page]) == 2
    assert "is a PPO run: compare it only with other PPO runs" in capsys.readouterr().err
    assert main([games, str(tmp_path / "none"), "--html", page]) == 2
    assert str(tmp_path / "none") in capsys.readouterr().err
    for options in ([games, ppo], [games, ppo, "--html", page, "--game", "1"]):
        with pytest.raises(SystemExit, match="2"):
            main(options)
        assert "several runs are compared with" in (said := capsys.readouterr().err) or "are for one run" in said
    assert not Path(page).exists()


@pytest.mark.medium
def test_ppo_runs_are_compared_over_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("first", "second"):
        leave_a_run(tmp_path / name)
    page = tmp_path / "report.html"
    lines(capsys, str(tmp_path / "first"), str(tmp_path / "second"), "--html", str(page))
    drawn = contained(page.read_text())
    assert drawn["axes"][0] == {"metric": "run/total_steps", "name": "steps"}
    assert [run["name"] for run in drawn["runs"]] == ["first", "second"]
