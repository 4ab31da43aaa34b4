"""What the engine of /play answers."""

from pathlib import Path
from typing import Any

import pytest

from keima.games import load_game
from keima.web.engine import MOST_NODES, NetworkThinker, answer_or_error
from tests.web.small_models import GAMES, before_a_promotion, small_model

RARE = ("corner_four.py", "three_player_connect_four.py")  # half a minute of compiling

pytestmark = pytest.mark.medium
GAME: dict[str, Any] = {"person": 0, "actions": [], "resigned": None, "simulations": 16, "seconds": None}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def thinking(folder: Path, game: str) -> NetworkThinker:
    return NetworkThinker(small_model(folder, game))


def asked(network: NetworkThinker, do: str, action: int | None = None, **changes: Any) -> dict[str, Any]:
    return answer_or_error(network, GAME | changes | {"do": do, "action": action})


@pytest.mark.parametrize(
    "game",
    [pytest.param(game, marks=pytest.mark.slow if game.endswith(RARE) else ()) for game in GAMES],
    ids=lambda game: Path(game).stem,
)
def test_every_game_is_played_to_its_end_by_person_and_network(folder: Path, game: str) -> None:
    network = thinking(folder, game)
    now = asked(network, "look")
    while not now["view"]["over"]:
        view = now["view"]
        game_now = {"actions": now["actions"], "resigned": now["resigned"]}
        assert view["opinion"]["moves"][0]["share"] >= view["opinion"]["moves"][-1]["share"]
        assert len(view["opinion"]["expects"]) == len(view["players"])
        legal = [move["action"] for move in view["legal"]]
        if view["to_move"] == 0:
            hint = asked(network, "hint", **game_now)
            assert hint["actions"] == now["actions"] and hint["view"]["thought"]["moves"][0]["action"] in legal
            now = asked(network, "move", legal[len(view["moves"]) % len(legal)], **game_now)
        else:
            now = asked(network, "answer", **game_now)
            thought = now["view"]["thought"]
            assert thought["simulations"] >= 1 and 0 < sum(move["share"] for move in thought["moves"]) <= 1
        assert len(now["view"]["moves"]) == len(view["moves"]) + 1
    assert now["view"]["result"] and now["view"]["legal"] == [] and now["view"]["opinion"] is None
    loaded = load_game(game, **GAMES[game])
    state = loaded.initial_state()
    for action in now["actions"]:
        loaded.play(state, action)
    assert loaded.terminal(state)


def test_a_search_may_be_limited_by_time(folder: Path) -> None:
    network = thinking(folder, "connect_four")
    found = asked(network, "hint", simulations=None, seconds=0.3)["view"]["thought"]
    assert found["seconds"] >= 0.3 or found["simulations"] >= MOST_NODES
    alone = thinking(folder, "twenty48")
    assert asked(alone, "hint", simulations=None, seconds=0.2)["view"]["thought"]["simulations"] >= 32


def test_it_says_who_owns_the_points_at_the_end_of_a_game_of_go(folder: Path) -> None:
    network, game = thinking(folder, "go"), load_game("go", **GAMES["go"])
    moves = ["C1", "E1", "C2", "E2", "C3", "E3", "C4", "E4", "C5", "E5", "pass", "pass"]
    view = asked(network, "look", actions=[game.parse_action(move) for move in moves])["view"]
    assert view["over"] and view["result"] == "You win!"
    assert view["score_lead"] == 15 - 5 - game.options["komi"]
    assert view["ownership"][:5] == [100, 100, 100, 0, -100]


def test_games_are_saved_as_their_programs_read_them(folder: Path) -> None:
    go, chess = load_game("go", **GAMES["go"]), load_game("chess", **GAMES["chess"])
    played = [go.parse_action("C3"), go.parse_action("B2")]
    saved = asked(thinking(folder, "go"), "save", actions=played, resigned=0)
    assert saved["name"] == "game.sgf" and ";B[cc]\n;W[bd])" in saved["text"] and "RE[W+R]" in saved["text"]
    first = chess.legal_actions(chess.initial_state()).tolist()[0]
    saved = asked(thinking(folder, "chess"), "save", actions=[first], person=1)
    assert saved["name"] == "game.pgn" and '[Black "You"]' in saved["text"] and "1. a3 *" in saved["text"]
    saved = asked(thinking(folder, "tic_tac_toe"), "save", actions=[4, 0])
    assert saved["name"] == "game.txt" and "1. 5\n2. 1\nunfinished" in saved["text"]


def test_what_cannot_be_is_told_in_words(folder: Path) -> None:
    network = thinking(folder, "tic_tac_toe")
    assert "is not legal" in asked(network, "move", 4, actions=[4])["error"]
    assert "has 2 players" in asked(network, "look", person=2)["error"]
    (folder / "damaged.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"damaged\.safetensors"):
        NetworkThinker(folder / "damaged.safetensors")
    assert asked(network, "resign", actions=[4])["view"]["result"] == "You resign: it wins."


def test_promotions_are_separate_moves_between_the_same_squares(folder: Path) -> None:
    view = asked(thinking(folder, "chess"), "look", actions=before_a_promotion())["view"]
    assert sorted(move["name"] for move in view["legal"] if move["points"] == (8, 1)) == [
        "a7b8b",
        "a7b8n",
        "a7b8q",
        "a7b8r",
    ]
