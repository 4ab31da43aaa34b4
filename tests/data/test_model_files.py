"""A run keeps some of its models, however long it lasts, and its books say which."""

from itertools import pairwise
from pathlib import Path

import pytest

from keima.base.files import write_atomically
from keima.cli.reports.audit import audit
from keima.data.ledger import Ledger, open_ledger
from keima.data.ledger_rows import make_model_row, model_path
from keima.data.model_files import thin_models
from keima.networks.files.heading import find_run_model
from tests.small_run import GAME


def publish(ledger: Ledger, version: int, *, accepted: bool = True) -> None:
    data = f"model {version}".encode()
    path = model_path(ledger.folder, version)
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, data, durable=False)
    ledger.add_model(make_model_row(ledger.folder, version, iteration=version, data=data, accepted=accepted))


def versions_here(folder: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("model-")) for path in (folder / "models").iterdir())


def test_the_newest_stay_and_others_lie_evenly_over_the_run(tmp_path: Path) -> None:
    with open_ledger(tmp_path, GAME) as ledger:
        for version in range(1, 201):
            publish(ledger, version)
            thin_models(ledger, 20)
            assert len(versions_here(tmp_path)) < 22
        here = versions_here(tmp_path)
        assert here[0] == 1 and set(range(191, 201)) <= set(here)
        steps = [after - before for before, after in pairwise(here) if after < 190]
        assert max(steps) <= 40
        assert [row.version for row in ledger.models() if row.path] == here and len(ledger.models()) == 200
    assert not audit(tmp_path).problems
    with pytest.raises(ValueError, match=r"no longer has the file of model 2: run\.keep_models"):
        find_run_model(tmp_path, 2)


def test_the_model_that_plays_stays_however_many_were_rejected_since(tmp_path: Path) -> None:
    with open_ledger(tmp_path, GAME) as ledger:
        for version in range(1, 101):
            publish(ledger, version, accepted=version == 37)
            thin_models(ledger, 10)
    assert 37 in versions_here(tmp_path)


def test_zero_keeps_all_and_what_a_kill_left_is_removed_later(tmp_path: Path) -> None:
    with open_ledger(tmp_path, GAME) as ledger:
        for version in range(1, 31):
            publish(ledger, version)
        thin_models(ledger, 0)
        assert len(versions_here(tmp_path)) == 30
        ledger.forget_model_files([3])  # a kill came before its file was removed
        assert not audit(tmp_path).problems
        thin_models(ledger, 10)
        assert 3 not in versions_here(tmp_path) and len(versions_here(tmp_path)) == 10
