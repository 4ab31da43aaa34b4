"""What more time and more machines would make of a network, before a run or for one that has begun."""

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keima.coach.forecast import Forecast, Law, Measurement, forecast_strength, rate_versions
from keima.coach.proposal import Choice, CoreSpeeds, Proposal, points_of, propose_settings
from keima.config.load import load_settings
from keima.data.ledger import read_ledger
from keima.evaluation.strength import read_match_results

# A network beats the random player, who then scores 1 %, after so many positions per point of the board: 200 in Go and
# 450 in Hex on 7 x 7, 380 in Connect Four, 970 in Othello on 6 x 6; and the spread that this means.
POSITIONS_PER_POINT, BEATEN_ELO, BEATEN_SPREAD = 430, 800.0, 200.0
# What doubling the simulations and the size of the network adds, where doubling the positions adds 1: 97 and 48 Elo of
# 285 on average.
SIMULATIONS_EXPONENT, SIZE_EXPONENT = 0.35, 0.17
TIMES = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the time that is planned
LITTLE_ELO = 10.0  # from an hour that is hardly worth it


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """A run of so many hours: what is played, and the strength to expect."""

    hours: float
    proposal: Proposal
    games: float
    expected: Forecast  # Elo over the random player


def plan_run(choice: Choice, law: Law, *, known: Measurement | None = None) -> list[Outlook]:
    """Return what to expect of runs of several lengths, with the chosen one in the middle.

    Args:
        choice: of the settings; each length has its own.
        law: of Elo.
        known: when an earlier run of the game began to beat the random player; None: that is estimated by the board.
    """
    speeds, minutes = CoreSpeeds(choice.game), choice.proposal.minutes
    return [
        make_outlook(
            choice,
            propose_settings(
                choice.game,
                choice.report,
                minutes=minutes * time,
                given=choice.sections,
                players=choice.players,
                speeds=speeds,
            ),
            law,
            known=known,
        )
        for time in TIMES
    ]


def make_outlook(choice: Choice, proposal: Proposal, law: Law, *, known: Measurement | None) -> Outlook:
    """Return what to expect of a run with these settings; see ``plan_run``."""
    games, plies = proposal.games_per_second * proposal.minutes * 60, choice.report.mean_plies
    network, search = proposal.settings["network"], proposal.settings["search"]
    begins = known or Measurement(
        compute=count_compute(POSITIONS_PER_POINT * points_of(choice.game), network, search),
        share=0.0,
        strength=BEATEN_ELO,
        error=BEATEN_SPREAD,
    )
    return Outlook(
        hours=proposal.minutes / 60,
        proposal=proposal,
        games=games,
        expected=forecast_strength(law, [begins], compute=count_compute(games * plies, network, search), share=1.0),
    )


def count_compute(positions: float, network: Mapping[str, Any], search: Mapping[str, Any]) -> float:
    """Return the compute of so many positions by its effect, in a unit of its own."""
    size = network.get("blocks", 1) * network.get("channels", 1) ** 2
    return positions * search["num_simulations"] ** SIMULATIONS_EXPONENT * size**SIZE_EXPONENT


def find_first_beating(run: Path, game: str, options: Mapping[str, Any]) -> Measurement | None:
    """Return the compute after which a run had the version that first beat the random player; None: it has none, is of
    another game, or is damaged.
    """
    with suppress(ValueError, OSError), read_ledger(run) as ledger:
        rated = rate_versions(read_match_results(ledger))
        if (ledger.game, dict(ledger.options)) != (game, dict(options)) or not rated:
            return None
        positions = next(row["total_positions"] for row in ledger.iterations() if row["model_version"] >= rated[0][0])
        settings = load_settings(run / "config.yaml")
        compute = count_compute(positions, settings.network.model_dump(), settings.search.model_dump())
        return Measurement(compute=compute, share=0.0, strength=BEATEN_ELO, error=BEATEN_SPREAD / 2)
    return None


def list_remarks(law: Law, *, hours: float, machines: int) -> Iterator[str]:
    """Yield what another hour and another machine would add to a run of so many hours, and when time adds nothing."""
    another_hour = law.slope * math.log2((hours + 1) / hours)
    another_machine = law.slope * math.log2((machines + 1) / machines)
    yield f"Another hour would add about {another_hour:.0f} Elo, another machine of this kind {another_machine:.0f}."
    # An hour adds slope * log2(1 + 1 / hours), nearly slope / (hours * ln 2).
    little = law.slope / LITTLE_ELO / math.log(2)
    yield f"From about {little:.0f} hours on, another hour adds less than {LITTLE_ELO:.0f} Elo."
