"""Measure how far honest games of other processors are from their searches here: what a check of the crowd must allow.

    python benchmarks/strength/crowd_agreement.py [--games 48]

The shipped 7x7 network plays games in processes with fewer instructions or another number type. Then they are checked
as `keima/coach/crowd/` checks games: 0 says that every visit, value and move is what the seed and the network give
here, and 1 that nothing is. A check takes the nearer of two number types. The bound is `CheckLimits.mean_score`.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.harness import Parser, Report
from keima.coach.crowd.limits import CHECK_LIMITS
from keima.coach.crowd.scoring import score_game, search_games
from keima.config.flags import whole
from keima.config.sections.search import SearchSettings
from keima.data.records import decode_batch, encode_batch
from keima.games import load_game
from keima.networks.files.model import load_safetensors
from keima.networks.inference.evaluator import Evaluator, use_threads
from keima.paths import SHIPPED, with_code_on_path
from keima.self_play.parallel_games import SelfPlay
from keima.worker.batching import make_batch

NETWORK = SHIPPED / "models" / "go7.safetensors"
TOGETHER = 32  # games that are played, or searched again, side by side
PLAY = "--play"  # precedes the number type, the file and the number of games of a process
AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
AVX512 = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
WORKERS: dict[
    str, tuple[str, dict[str, str]]
] = {  # number type, and what limits the process to the instructions of another processor
    "float32, as here": ("float32", {}),
    "float32, AVX2": ("float32", AVX2),
    "bfloat16, as here": ("bfloat16", {}),
    "bfloat16, AVX-512": ("bfloat16", AVX512),
}


def make_search(*, quick: bool) -> SearchSettings:
    """Return the search of self-play."""
    full, cheap = (8, 4) if quick else (64, 16)
    return SearchSettings(num_simulations=full, cheap_simulations=cheap, opening_random_moves=2.0)


def play_games(number_type: str, path: Path, games: int, *, quick: bool) -> None:
    """Play games, and write them to a file."""
    model = load_safetensors(NETWORK)
    game = load_game(model.description.game, **model.description.options)
    evaluate = Evaluator(model.build(game), game, device="cpu", dtype=number_type, max_batch=TOGETHER)
    records = []
    for first in range(0, games, TOGETHER):
        seeds = range(1000 + first, 1000 + min(games, first + TOGETHER))
        self_play = SelfPlay(game, evaluate, make_search(quick=quick), parallel_games=len(seeds))
        self_play.begin(seeds)
        while self_play.num_playing:
            records += self_play.advance()
    batch = make_batch(
        records,
        run_id="run",
        worker="worker",
        game=game.name,
        options=game.options,
        rules_version=game.rules_version,
        first_game=0,
    )
    path.write_bytes(encode_batch(batch))


def score_games(path: Path, number_type: str, *, quick: bool) -> NDArray[np.float64]:
    """Return the score of each game, searched again here."""
    model = load_safetensors(NETWORK)
    game = load_game(model.description.game, **model.description.options)
    evaluate = Evaluator(model.build(game), game, device="cpu", dtype=number_type, max_batch=TOGETHER)
    batch = decode_batch(path.read_bytes())
    records = [batch.game_record(index) for index in range(batch.num_games)]
    found = []
    for first in range(0, len(records), TOGETHER):
        part = records[first : first + TOGETHER]
        found += search_games(game, evaluate, make_search(quick=quick), part)
    return np.array([score_game({1: differences}) for differences in found])


def main() -> None:
    """Play, search again and print; or be a process that plays."""
    use_threads(1)
    if PLAY in sys.argv:
        number_type, file, games, quick = sys.argv[sys.argv.index(PLAY) + 1 :]
        play_games(number_type, Path(file), int(games), quick=quick == "quick")
        return
    parser = Parser(__doc__)
    parser.option("--games", whole(), 48, quick=2, help="of each kind of worker")
    arguments = parser.parse()
    columns = ("worker", "by float32", "by bfloat16", "by the nearer", "90 %", "highest")
    with Report(arguments) as report, tempfile.TemporaryDirectory() as folder:
        table = report.table(f"Mean score of honest games; the bound is {CHECK_LIMITS.mean_score:g}", *columns)
        for name, (number_type, limits) in WORKERS.items():
            path, speed = Path(folder) / "games", "quick" if arguments.quick else "full"
            words = [sys.executable, __file__, PLAY, number_type, str(path), str(arguments.games), speed]
            subprocess.run(words, check=True, env=with_code_on_path({**os.environ, **limits}))
            single, half = (score_games(path, kind, quick=arguments.quick) for kind in ("float32", "bfloat16"))
            nearer = np.minimum(single, half)
            figures = (single.mean(), half.mean(), nearer.mean(), np.quantile(nearer, 0.9), nearer.max())
            table.add(name, *(float(figure) for figure in figures))


if __name__ == "__main__":
    main()
