import argparse
from collections.abc import Callable
from pathlib import Path

import pytest

from keima.config.flags import add_section, add_setting, as_setting, game_among, number, whole
from keima.config.own_modules import keep_module
from keima.learning.dataset_settings import BigLearnerSettings

BIG_LEARNER = "keima.learning.dataset_settings.BigExperiment"


def refusal(kind: Callable[[str], float], text: str) -> str:
    """Return the message for a flag of this type with that value."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--flag", type=kind)
    with pytest.raises(argparse.ArgumentError) as refused:
        parser.parse_args([f"--flag={text}"])
    return str(refused.value)


@pytest.mark.parametrize(
    ("kind", "taken", "refused", "expected"),
    [
        (whole(), ["1", "10000000"], ["0", "-1", "1.5", "", "many"], "a whole number from 1"),
        (whole(0, 65_535), ["0", "65535"], ["-1", "65536", "1e3"], "a whole number from 0 to 65,535"),
        (whole(None), ["-1", "0", "7"], ["one"], "a whole number"),
        (number(above=0), ["1e-9", "5"], ["0", "-1", "nan", "inf", "fast"], "a number above 0"),
        (number(above=0, most=10), ["10"], ["10.1", "0"], "a number above 0 and up to 10"),
        (number(least=0, below=1), ["0", "0.999"], ["1", "-0.1"], "a number from 0 and below 1"),
    ],
)
def test_a_value_out_of_range_is_refused_with_flag_and_range(
    kind: Callable[[str], float], taken: list[str], refused: list[str], expected: str
) -> None:
    for text in taken:
        assert kind(text) == float(text)
    for text in refused:
        assert refusal(kind, text) == f"argument --flag: expected {expected}, found {text or 'nothing'}"


@pytest.mark.parametrize(
    ("key", "taken", "refused", "expected"),
    [
        ("training.batch_size", ["2", "65536"], ["1", "65537"], "a whole number from 2 to 65,536"),
        ("training.learning_rate", ["0.001", "10"], ["0", "11"], "a number above 0 and up to 10"),
        ("self_play.workers", ["1"], ["0", "auto"], "a whole number from 1"),
        ("run.minutes", ["0.5"], ["0"], "a number above 0"),
        ("run.seed", ["0"], ["-1"], "a whole number from 0 to 9,223,372,036,854,775,807"),
        ("distributed.workers.port", ["22"], ["0", "65536"], "a whole number from 1 to 65,535"),
    ],
)
def test_a_flag_accepts_the_values_that_its_setting_accepts(
    key: str, taken: list[str], refused: list[str], expected: str
) -> None:
    for text in taken:
        assert as_setting(key)(text) == float(text)
    for text in refused:
        assert f"expected {expected}, found" in refusal(as_setting(key), text)


def test_a_game_is_a_shipped_name_or_a_file_which_is_named_by_its_content(tmp_path: Path) -> None:
    read = game_among(["go", "chess"])
    path = tmp_path / "othello.py"
    path.write_text("answer = 42\n", encoding="utf-8")
    assert read("go") == "go" and read(str(path)) == keep_module(path)
    with pytest.raises(argparse.ArgumentTypeError, match=r"one of chess, go, or a file such as my_game\.py, found hex"):
        read("hex")
    with pytest.raises(argparse.ArgumentTypeError, match="there is no file"):
        read(str(tmp_path / "hex.py"))


def help_of(add: Callable[[argparse.ArgumentParser], None]) -> dict[str, str]:
    """Return the help of each flag that ``add`` adds to a parser."""
    parser = argparse.ArgumentParser(add_help=False)
    add(parser)
    return {action.option_strings[0]: action.help or "" for action in parser._actions}


def test_the_help_leaves_out_what_null_and_auto_mean_as_no_flag_can_be_these() -> None:
    shown = help_of(lambda parser: add_setting(parser.add_argument, "--workers", "self_play.workers", usual="two"))
    assert shown == {"--workers": "worker processes (default: two)"}


def test_every_setting_of_a_section_gets_a_flag_with_its_default() -> None:
    shown = help_of(lambda parser: add_section(parser.add_argument, "big_learner", BIG_LEARNER))
    assert shown.keys() == {f"--{name.replace('_', '-')}" for name in BigLearnerSettings.model_fields}
    assert shown["--warmup-steps"] == "steps of linear warmup (default: training.warmup_steps)"
    assert shown["--mixed-precision"].endswith("(default: no)")
    assert shown["--shuffle-positions"].endswith("(default: 500,000)")


def test_a_flag_of_a_section_takes_what_its_setting_takes() -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_section(parser.add_argument, "big_learner", BIG_LEARNER)
    given = parser.parse_args(["--data", "games", "--schedule", "constant", "--norm-batch", "2", "--mixed-precision"])
    assert (given.data, given.schedule, given.norm_batch, given.mixed_precision) == (Path("games"), "constant", 2, True)
    assert given.epochs is None
    for words, expected in ((["--norm-batch", "1"], "a whole number from 2"), (["--schedule", "linear"], "constant")):
        with pytest.raises(argparse.ArgumentError, match=expected):
            parser.parse_args(words)
