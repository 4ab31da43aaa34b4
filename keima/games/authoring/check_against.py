"""Compare a game's rules with OpenSpiel's, move by move over random games."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from keima.config.own_modules import describe_error, is_own, load_module, stem_of
from keima.games import load_game
from keima.games.authoring.kept_errors import raise_kept_error
from keima.games.game import CHANCE, Game, States

NAMES, NUMBERS, GIVEN_ACTION = "names", "numbers", "openspiel_action"  # how moves are paired
PASS = "pass"
GIVEN_OUTCOME = "openspiel_outcome"  # the same for chance outcomes
ROUNDING = 1e-4  # by which probabilities and returns may differ
MAX_SHOWN = 8  # moves that a message lists

Renumber = Callable[[int], int]


class GamesDiffer(AssertionError):
    """The game differs from OpenSpiel's; the text has the first difference, the moves to it, and both boards."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The extent of a comparison that found no difference."""

    games: int
    positions: int
    paired_by: str  # how the players' moves were paired: "names", "numbers" or "openspiel_action"
    passes: int  # forced passes that are moves in one of the games alone


def check_against(
    game: Game,
    openspiel: str,
    *,
    games: int = 100,
    seed: int = 0,
    openspiel_action: Renumber | None = None,
    openspiel_outcome: Renumber | None = None,
) -> Comparison:
    """Play random games of ``game`` and of OpenSpiel's beside each other, and compare every position.

    Compared are the player to move, the legal moves, the chance outcomes with their probabilities, the end, and the
    returns there. Moves are paired by name if both games call the first moves alike, else by number if these agree.
    Where one game skips a player who cannot move and the other has a pass as the only legal move, the pass is played.

    Args:
        game: the game to check.
        openspiel: OpenSpiel's game, such as ``hex(board_size=5)``.
        games: how many games are played.
        seed: of the random moves.
        openspiel_action: OpenSpiel's number of each action, where neither names nor numbers agree.
        openspiel_outcome: the same for chance outcomes.

    Raises:
        ValueError: OpenSpiel is not installed, or has no such game, or one that does not fit the contract.
        GamesDiffer: the games are not the same.
    """
    theirs = load_game("openspiel", game=openspiel)
    if game.num_players != theirs.num_players:
        raise GamesDiffer(f"{game.name} has {game.num_players} players, OpenSpiel's {openspiel} {theirs.num_players}")
    random = np.random.default_rng(seed)
    sides = _PairedGames(game, theirs, {False: openspiel_action, True: openspiel_outcome})
    counts = [_compare_one_game(sides, random) for _ in range(games)]
    positions, passes = (sum(column) for column in zip(*counts, strict=True))
    return Comparison(games=games, positions=positions, paired_by=sides.paired_by.get(False, NUMBERS), passes=passes)


def compare_named_game(
    name: str, options: dict[str, Any], openspiel: str, *, games: int = 100, seed: int = 0
) -> Comparison:
    """Load a game, by its name or a user's file, and compare it with OpenSpiel's; see ``check_against``.

    A user's file may define ``openspiel_action(action)`` and ``openspiel_outcome(outcome)``.

    Raises:
        ValueError: the game cannot be loaded, or one of its functions fails.
    """
    game = load_game(name, **options)
    module = load_module(game.name) if is_own(game.name) else None
    given = {function: getattr(module, function, None) for function in (GIVEN_ACTION, GIVEN_OUTCOME)}
    try:
        return check_against(game, openspiel, games=games, seed=seed, **given)
    except (GamesDiffer, ValueError):
        raise
    except Exception as error:
        if module is None:
            raise
        raise ValueError(describe_error(error, game.name)) from error


@dataclass(frozen=True)
class _PairedGames:
    """The two games, and how moves (False) and chance outcomes (True) are paired."""

    ours: Game
    theirs: Game
    given: dict[bool, Renumber | None]
    paired_by: dict[bool, str] = field(default_factory=dict)


@dataclass
class _PairedPosition:
    """The same position in both games, and the moves that lead to it."""

    ours: States
    theirs: States
    moves: list[str] = field(default_factory=list)
    passes: int = 0


def _compare_one_game(sides: _PairedGames, random: np.random.Generator) -> tuple[int, int]:
    """Compare all positions of one game; return their number, and the passes of one game alone."""
    pair = _PairedPosition(sides.ours.initial_state(), sides.theirs.initial_state())
    while True:
        over = sides.ours.terminal(pair.ours)
        ends = "the game is over, OpenSpiel's is not" if over else "the game goes on, OpenSpiel's is over"
        _require_same(sides, pair, over == sides.theirs.terminal(pair.theirs), ends)
        if over:
            _compare_returns(sides, pair)
            raise_kept_error()
            return len(pair.moves) + 1, pair.passes
        _play_lone_pass(sides, pair)
        _compare_mover(sides, pair)
        paired = _pair_moves(sides, pair)
        raise_kept_error()
        ours = int(random.choice(list(paired)))
        pair.moves.append(_move_name(sides.ours, ours, chance=_is_chance_to_move(sides, pair)))
        sides.ours.play(pair.ours, ours)
        sides.theirs.play(pair.theirs, paired[ours])


def _is_chance_to_move(sides: _PairedGames, pair: _PairedPosition) -> bool:
    return sides.ours.current_player(pair.ours) == CHANCE


def _compare_returns(sides: _PairedGames, pair: _PairedPosition) -> None:
    ours, theirs = sides.ours.returns(pair.ours), sides.theirs.returns(pair.theirs)
    same = np.allclose(ours, theirs, rtol=ROUNDING, atol=ROUNDING)
    _require_same(sides, pair, same, f"the returns are {ours.tolist()}, OpenSpiel's {theirs.tolist()}")


def _play_lone_pass(sides: _PairedGames, pair: _PairedPosition) -> None:
    """Play a pass that is the only legal move in one of the games where their players to move differ."""
    for game, state in ((sides.ours, pair.ours), (sides.theirs, pair.theirs)):
        same = sides.ours.current_player(pair.ours) == sides.theirs.current_player(pair.theirs)
        legal = game.legal_actions(state)
        if not same and len(legal) == 1 and _describe_move(game, int(legal[0]), chance=False) == PASS:
            game.play(state, int(legal[0]))
            pair.passes += 1


def _compare_mover(sides: _PairedGames, pair: _PairedPosition) -> None:
    ours, theirs = sides.ours.current_player(pair.ours), sides.theirs.current_player(pair.theirs)
    _require_same(
        sides,
        pair,
        ours == theirs,
        f"{_describe_mover(ours)} is to move, in OpenSpiel's game {_describe_mover(theirs)}",
    )


def _describe_mover(player: int) -> str:
    return "chance" if player == CHANCE else f"player {player}"


def _pair_moves(sides: _PairedGames, pair: _PairedPosition) -> dict[int, int]:
    """Return OpenSpiel's number of each of our legal moves or possible outcomes; raise if the moves differ."""
    chance = _is_chance_to_move(sides, pair)
    ours, theirs = (
        _move_probabilities(sides.ours, pair.ours, chance=chance),
        _move_probabilities(sides.theirs, pair.theirs, chance=chance),
    )
    paired_by = sides.paired_by.setdefault(chance, _choose_pairing(sides, list(ours), list(theirs), chance=chance))
    known = _label_moves(sides, list(theirs), paired_by, chance=chance, mine=False)
    wanted = _label_moves(sides, list(ours), paired_by, chance=chance, mine=True)
    missing, added = sorted(set(known) - set(wanted)), sorted(set(wanted) - set(known))
    what = "chance outcomes" if chance else "legal moves"
    text = f"there are {len(ours)} {what}, in OpenSpiel's game {len(theirs)}"
    text += f"; only OpenSpiel has {_join_labels(missing)}" if missing else ""
    text += f"; OpenSpiel does not have {_join_labels(added)}" if added else ""
    text += f" (paired by {paired_by}; if that is wrong, define "
    text += f"{_renumber_function_name(chance)}(number) -> OpenSpiel's number)"
    _require_same(sides, pair, not missing and not added and len(wanted) == len(ours), text)
    paired = {number: known[label] for label, number in wanted.items()}
    for number, other in paired.items():
        same = abs(ours[number] - theirs[other]) <= ROUNDING
        name = _move_name(sides.ours, number, chance=chance)
        _require_same(
            sides, pair, same, f"outcome {name} has probability {ours[number]:.4f}, OpenSpiel's {theirs[other]:.4f}"
        )
    return paired


def _renumber_function_name(chance: bool) -> str:
    return GIVEN_OUTCOME if chance else GIVEN_ACTION


def _move_probabilities(game: Game, state: States, *, chance: bool) -> dict[int, float]:
    """Return the legal moves, or the possible outcomes with their probabilities."""
    if chance:
        outcomes, probabilities = game.chance_outcomes(state)
        return dict(zip(outcomes.tolist(), probabilities.tolist(), strict=True))
    return dict.fromkeys(game.legal_actions(state).tolist(), 1.0)


def _choose_pairing(sides: _PairedGames, ours: list[int], theirs: list[int], *, chance: bool) -> str:
    """Choose how the moves are paired, by the first position that has any."""
    if sides.given[chance] is not None:
        return GIVEN_ACTION
    names = {_describe_move(sides.ours, number, chance=chance) for number in ours}
    return NAMES if names == {_describe_move(sides.theirs, number, chance=chance) for number in theirs} else NUMBERS


def _label_moves(
    sides: _PairedGames, numbers: list[int], paired_by: str, *, chance: bool, mine: bool
) -> dict[str, int]:
    """Return the moves by the labels that pair them with moves of the other game."""
    renumber = sides.given[chance] if mine else None
    if paired_by == NAMES:
        return {
            _describe_move(sides.ours if mine else sides.theirs, number, chance=chance): number for number in numbers
        }
    return {str(number if renumber is None else renumber(number)): number for number in numbers}


def _describe_move(game: Game, number: int, *, chance: bool) -> str:
    return _move_name(game, number, chance=chance).strip().lower()


def _move_name(game: Game, number: int, *, chance: bool) -> str:
    return game.outcome_name(number) if chance else game.action_name(number)


def _join_labels(labels: list[str]) -> str:
    more = len(labels) - MAX_SHOWN
    return ", ".join(labels[:MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _require_same(sides: _PairedGames, pair: _PairedPosition, same: bool, text: str) -> None:
    """Raise the first difference.

    Raises:
        GamesDiffer: with the text, unless ``same``; or the error by which OpenSpiel failed.
    """
    raise_kept_error()
    if not same:
        after = f"after the moves {' '.join(pair.moves)}" if pair.moves else "at the start"
        name, boards = stem_of(sides.ours.name), (sides.ours.render(pair.ours), sides.theirs.render(pair.theirs))
        raise GamesDiffer(f"{name}: {after}, {text}\n{name}:\n{boards[0]}\nOpenSpiel:\n{boards[1]}")
