"""A match with Elo: three players of Connect Four, every pair from random openings with swapped colours."""

from itertools import combinations

import keima

PAIRS = 20  # of games, for each two players


def main() -> dict[str, keima.Rating]:
    """Play the matches, and print the ratings with their 95 % margins; the random player is at 0."""
    game = keima.load_game("connect_four")
    players: dict[str, keima.Player] = {
        "random": keima.RandomPlayer(game, seed=1),
        "uct 20": keima.UctPlayer(game, playouts=20, seed=2),
        "uct 200": keima.UctPlayer(game, playouts=200, seed=3),
    }
    results = []
    for first, second in combinations(players, 2):
        match = keima.play_match(game, players[first], players[second], pairs=PAIRS, opening_plies=2, seed=1)
        print(f"{first} against {second}: {match.wins} won, {match.draws} drawn, {match.losses} lost")
        games = {"wins": match.wins, "draws": match.draws, "losses": match.losses}
        results.append(keima.PairResult(first=first, second=second, **games))
    ratings = keima.rate_players(results, anchor="random")
    for name, rating in ratings.items():
        print(f"{name:8} {rating.elo:+6.0f} ± {rating.margin:.0f} Elo")
    return ratings


if __name__ == "__main__":
    main()
