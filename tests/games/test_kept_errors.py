"""What Python code under compiled code could not raise is raised later, once."""

import pytest

from keima.games.authoring.kept_errors import keep_error, raise_kept_error


def test_without_an_error_nothing_is_raised() -> None:
    raise_kept_error()


def test_the_first_error_is_raised_once_and_its_consequences_are_forgotten() -> None:
    keep_error(ValueError("the cause"))
    keep_error(KeyError("a consequence"))
    with pytest.raises(ValueError, match="the cause"):
        raise_kept_error()
    raise_kept_error()
