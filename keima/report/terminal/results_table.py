"""The results of a benchmark of games for two and more players, as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from keima.base.reports.formats import Column, format_elo, format_rate, format_return, table_lines
from keima.evaluation.elo import Rating
from keima.play.arena.match_benchmark import Match
from keima.report.charts.rating_picture import RatedPlayer


@dataclass(frozen=True, kw_only=True)
class PlayerResult:
    """A player's row: its rating, and its games with the network, as the network sees them."""

    name: str
    rating: Rating | None
    match: Match | None  # None for the network itself
    move_seconds: float


def make_player_results(network: str, matches: Sequence[Match], ratings: Mapping[str, Rating]) -> list[PlayerResult]:
    """Return all players that have met the network, and the network itself, the strongest first."""
    mine = [match for match in matches if match.first == network]
    moves = sum(match.scores.size * match.mean_plies / 2 for match in mine)
    seconds = sum(match.move_seconds[0] * match.scores.size * match.mean_plies / 2 for match in mine) / max(1.0, moves)
    rows = [PlayerResult(name=network, rating=ratings.get(network), match=None, move_seconds=seconds)]
    rows += [
        PlayerResult(
            name=match.second, rating=ratings.get(match.second), match=match, move_seconds=match.move_seconds[1]
        )
        for match in mine
    ]
    return sorted(rows, key=lambda row: -row.rating.elo if row.rating else 0.0)


def rated_players(rows: Sequence[PlayerResult], anchor: str) -> list[RatedPlayer]:
    """Return the players of the picture."""
    return [
        RatedPlayer(
            name=row.name,
            elo=row.rating.elo,
            margin=0.0 if row.name == anchor else row.rating.margin,
            marked=row.match is None,
        )
        for row in rows
        if row.rating
    ]


def make_results_table(rows: Sequence[PlayerResult], *, anchor: str, width: int) -> list[Text]:
    """Return the lines of the table."""

    def elo(row: PlayerResult) -> str:
        if row.rating is None:
            return ""
        return format_elo(row.rating.elo) if row.name == anchor else format_elo(row.rating.elo, row.rating.margin)

    def count_column(key: str) -> Column[PlayerResult]:
        return Column(
            title=key.capitalize(), cell=lambda row: f"{getattr(row.match.result, key):,}" if row.match else ""
        )

    return table_lines(
        [
            Column[PlayerResult](
                title="Player", cell=lambda row: row.name, left=True, style=lambda row: "" if row.match else "bold"
            ),
            Column[PlayerResult](title="Elo", cell=elo),
            count_column("wins"),
            count_column("draws"),
            count_column("losses"),
            Column[PlayerResult](title="Score", cell=format_share_of_points),
            Column[PlayerResult](
                title="Plies", cell=lambda row: f"{row.match.mean_plies:.0f}" if row.match else "", rank=1
            ),
            Column[PlayerResult](title="ms/move", cell=lambda row: format_rate(1000 * row.move_seconds), rank=2),
        ],
        rows,
        width,
    )


def make_returns_table(matches: Sequence[Match], width: int) -> list[Text]:
    """Return the first player's mean return against each opponent in all other seats, as lines."""
    return table_lines(
        [
            Column[Match](title="Opponents", cell=lambda match: match.second, left=True),
            Column[Match](title="Games", cell=lambda match: f"{match.scores.size:,}"),
            Column[Match](title="Mean return", cell=lambda match: format_return(*match.mean_return)),
            Column[Match](title="Plies", cell=lambda match: f"{match.mean_plies:.0f}", rank=1),
            Column[Match](title="ms/move", cell=lambda match: format_rate(1000 * match.move_seconds[0]), rank=2),
        ],
        matches,
        width,
    )


def format_share_of_points(row: PlayerResult) -> str:
    """Return the network's share of the points, with its interval."""
    if row.match is None:
        return ""
    low, high = row.match.interval
    return f"{100 * row.match.score:.1f} % ({100 * low:.1f}–{100 * high:.1f})"
