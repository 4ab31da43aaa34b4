"""What more time and more machines would make of a network, before a run or for one that has begun."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keima.coach.forecast import (
    UNREADABLE,
    Forecast,
    Law,
    Measurement,
    count_compute,
    find_gains,
    forecast_strength,
    gain_of,
    is_of_game,
    rate_versions,
    read_elo_results,
)
from keima.coach.proposal import Choice, CoreSpeeds, Proposal, points_of, propose_settings
from keima.config.load import load_settings
from keima.data.ledger import read_ledger
from keima.games import Game

BEATEN_ELO = 800.0  # over the random player, who then scores 1 %
BEATEN_SPREAD = 300.0  # what the estimate of when that is means in Elo: root mean square of the five games
# Twice the simulations count as 2^(0.45 +- 0.28) times the positions, twice the network's size as 2^(0.14 +- 0.10)
# times (docs/results/learning_techniques.md). The simulations and the network for which a law holds:
SIMULATIONS_EXPONENT, SIZE_EXPONENT = 0.45, 0.14
USUAL_SIMULATIONS, USUAL_SIZE = 64, 3 * 32**2
TIMES = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the time that is planned
LITTLE_ELO = 10.0  # from an hour that is hardly worth it


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """A run of so many hours: what is played, and the strength to expect."""

    hours: float
    proposal: Proposal
    games: float
    compute: float
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
    begins = known or Measurement(compute=1.0, share=0.0, strength=BEATEN_ELO, error=BEATEN_SPREAD)
    compute = count_compute(weigh_positions(games * plies, network, search), points_of(choice.game))
    return Outlook(
        hours=proposal.minutes / 60,
        proposal=proposal,
        games=games,
        compute=compute,
        expected=forecast_strength(law, [begins], compute=compute, share=1.0),
    )


def weigh_positions(positions: float, network: Mapping[str, Any], search: Mapping[str, Any]) -> float:
    """Return how many positions with the usual simulations and network are worth as much as these."""
    simulations = search["num_simulations"] / USUAL_SIMULATIONS
    size = network.get("blocks", 1) * network["channels"] ** 2 / USUAL_SIZE if "channels" in network else 1.0
    return float(positions * simulations**SIMULATIONS_EXPONENT * size**SIZE_EXPONENT)


def find_first_beating(run: Path, game: Game) -> Measurement | None:
    """Return the compute after which a run had the version that first beat the random player; None: it has none, is of
    another game or began on smaller boards, or is damaged.
    """
    with suppress(*UNREADABLE), read_ledger(run) as ledger:
        if not is_of_game(ledger, game) or not (rated := rate_versions(read_elo_results(ledger, game))):
            return None
        settings = load_settings(run / "config.yaml")
        if settings.game.smaller:  # its network had learned before
            return None
        versions = {row["model_version"]: row["total_positions"] for row in reversed(ledger.iterations())}
        positions = versions[min(version for version in versions if version >= rated[0][0])]
        weighed = weigh_positions(positions, settings.network.model_dump(), settings.search.model_dump())
        return Measurement(
            compute=count_compute(weighed, points_of(game)), share=0.0, strength=BEATEN_ELO, error=BEATEN_SPREAD / 2
        )
    return None


def list_remarks(law: Law, *, hours: float, compute: float, machines: int | None) -> Iterator[str]:
    """Yield what another hour and another machine would add to a run of so many hours, and when time adds nothing."""
    of_hour, of_machine = find_gains(law, compute, hours=hours, machines=machines)
    machine = "" if of_machine is None else f", another machine of this kind {of_machine:.0f}"
    yield f"Another hour would add about {of_hour:.0f} Elo{machine}."
    little = hours * max(1.0, 1.0 / compute)  # not before it beats a random player
    while gain_of(law, compute * little / hours, (little + 1) / little) > LITTLE_ELO:
        little *= 1.1
    if little > hours:
        about = max(2.0, float(f"{little:.1g}"))
        yield f"From about {about:g} hours on, another hour adds less than {LITTLE_ELO:.0f} Elo."
    else:
        yield f"Another hour adds less than {LITTLE_ELO:.0f} Elo from now on."
