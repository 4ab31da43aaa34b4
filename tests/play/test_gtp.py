"""The Go engine in this process, with networks of a few lines, so that their opinions are known."""

import json
import re
from collections.abc import Callable

import numpy as np
import pytest

from keima.games import load_game
from keima.games.game import Planes
from keima.games.go.rules import KOMI_PLANE
from keima.play.gtp.engine import HANDICAP_MOVES, GtpEngine
from keima.play.gtp.resignation import MOVES, Resignation
from keima.play.gtp.rules import NAMED_RULES, GtpRules, parse_rules
from keima.play.gtp.syntax import GtpError
from keima.play.thinking import Thinker
from keima.search.puct import Evaluate

SIZE, BATCH = 7, 4
GAME = load_game("go", size=SIZE, komi=4.5, max_plies=490)
DEAD = [f"play b {column}{row}" for row in range(1, 8) for column in "CE"] + ["play w G4", "play w G5"]  # White's are


class Talk:
    """A conversation with an engine.

    Args:
        black: what its network expects of any position for Black, from -1 to 1.
    """

    def __init__(self, black: float, *, simulations: int = 16, resign_below: float = 0.0) -> None:
        self.evaluations, self.said = 0, list[str]()
        self.engine = GtpEngine(
            GAME,
            name="Keima",
            version="1",
            think=lambda most: Thinker(GAME, self._counted(favoring(black)), max_batch=BATCH, max_simulations=most),
            write=self.said.append,
            simulations=simulations,
            resign_below=resign_below,
        )
        self.ask("clear_board")
        self.evaluations = 0

    def _counted(self, evaluate: Evaluate) -> Evaluate:
        def counting(observations: Planes) -> tuple[Planes, Planes]:
            self.evaluations += len(observations)
            return evaluate(observations)

        return counting

    def ask(self, *lines: str) -> str:
        """Return the answer to the last of these commands, all of which must succeed."""
        for line in lines:
            self.engine.handle_line(line, 0.0)
            while self.engine.has_work:
                self.engine.advance()
            assert self.said[-1].startswith("="), (line, self.said[-1])
        return self.said[-1][1:].strip()

    def refused(self, line: str) -> str:
        """Return the reason why a command fails."""
        self.engine.handle_line(line, 0.0)
        assert self.said[-1].startswith("?")
        return self.said[-1][1:].strip()


def favoring(black: float) -> Callable[[Planes], tuple[Planes, Planes]]:
    """A network that would rather pass than move, treats all moves alike, and expects ``black`` of any position for
    Black.
    """

    def evaluate(observations: Planes) -> tuple[Planes, Planes]:
        player = np.sign(observations[:, KOMI_PLANE, 0, 0])  # White's komi is positive
        logits = np.zeros((len(observations), GAME.num_actions), np.float32)
        logits[:, -1] = 3
        return logits, (-black * player).astype(np.float32)

    return evaluate


def white_stones(talk: Talk) -> int:
    return "".join(talk.ask("showboard").split("\n")[1:8]).count("O")


@pytest.mark.medium
def test_dead_stones_are_captured_before_a_pass_when_the_board_is_counted_as_it_stands() -> None:
    talk = Talk(0.95)
    talk.ask(*DEAD, "play w pass")
    moves = []
    while not moves or moves[-1] != "pass":
        moves.append(talk.ask("genmove b"))
        talk.ask("play w pass")
    assert white_stones(talk) == 0
    assert talk.ask("final_score") == "B+44.5"
    assert len(moves) <= 9, "liberties of the two are all that is played on"


@pytest.mark.medium
def test_nothing_is_captured_by_agreement_or_if_search_says_that_it_costs_the_game() -> None:
    agreed, wary = Talk(0.95), Talk(-0.5)
    agreed.ask("kata-set-rules chinese")
    for talk in (agreed, wary):
        talk.ask(*DEAD, "play w pass")
        assert talk.ask("genmove b") == "pass"
        assert white_stones(talk) == 2
    assert wary.ask("final_status_list dead") == ""
    assert set(agreed.ask("final_status_list dead").split()) == {"G4", "G5"}
    assert "G4" not in agreed.ask("final_status_list alive")
    assert (agreed.ask("final_score"), wary.ask("final_score")) == ("B+44.5", "B+28.5")


@pytest.mark.medium
def test_where_players_agree_on_dead_stones_the_engine_does_not_pass_as_if_its_own_were_alive() -> None:
    """Black's two stones win as long as they count; without them White is ahead, so Black continues to play."""
    agreed, as_it_stands = Talk(0.3, simulations=64), Talk(0.3, simulations=64)
    agreed.ask("kata-set-rules chinese")
    for talk in (agreed, as_it_stands):
        walls = [f"play {color} {column}{row}" for color, column in ("bC", "wD", "wF") for row in range(1, 8)]
        talk.ask("komi 0.5", *walls, "play b G4", "play b G5", "play w pass")
    assert (as_it_stands.ask("final_score"), agreed.ask("final_score")) == ("B+1.5", "W+7.5")
    assert as_it_stands.ask("genmove b") == "pass"
    assert agreed.ask("genmove b") != "pass"
    agreed.ask("undo", "komi -9.5")
    assert agreed.ask("genmove b") == "pass", "it wins without them too"


@pytest.mark.medium
def test_a_hopeless_game_is_resigned_only_on_request() -> None:
    giving, staying = Talk(-0.95, resign_below=0.1), Talk(-0.95)
    for talk, last in ((giving, "resign"), (staying, None)):
        for _ in range(MOVES - 1):
            assert "resign" not in (talk.ask("genmove b"), talk.ask("genmove w"))
        said = talk.ask("genmove b")
        assert said == last or (last is None and said != "resign")
    assert giving.ask("final_score") == "W+Resign"
    giving.engine.handle_line("kata-genmove_analyze b", 0.0)
    assert giving.said[-1] == "play resign\n"
    giving.ask("clear_board")
    assert giving.ask("genmove b") != "resign", "hope is new in every game"


def test_the_count_of_hopeless_moves_restarts_after_hope_returns() -> None:
    resignation, even = Resignation(0.25), Resignation(0.25)
    values = [-0.75, -0.75, 0.0, -0.75, -0.75, -0.75]
    assert [resignation.should_resign(value) for value in values] == [False] * 5 + [True]
    assert not any(even.should_resign(-0.5) for _ in range(9)), "a quarter is not less than a quarter"


@pytest.mark.medium
def test_the_opponent_s_resignation_is_understood() -> None:
    talk = Talk(0.0)
    talk.ask("play b D4", "play w resign")
    assert talk.ask("final_score") == "B+Resign"
    talk.ask("undo")
    assert talk.ask("final_score") == "B+44.5"
    talk.ask("play b RESIGN", "play w C4")
    assert talk.ask("final_score") == "W+4.5"
    assert talk.ask("kgs-game_over") == ""
    assert talk.refused("play green resign") == "syntax error: 'green' is not a color"


@pytest.mark.medium
def test_a_free_handicap_takes_no_longer_than_a_few_moves_however_many_stones_it_has() -> None:
    talk = Talk(0.0, simulations=40)
    assert len(set(talk.ask("place_free_handicap 45").split())) == 45
    assert 45 < talk.evaluations <= 40 * HANDICAP_MOVES + 2 * 45
    talk.ask("clear_board")
    assert len(talk.ask("place_free_handicap 2").split()) == 2


@pytest.mark.medium
def test_thinking_about_a_free_handicap_ends_on_an_empty_line() -> None:
    talk = Talk(0.0, simulations=1000)
    for last in ("", "quit"):
        talk.engine.handle_line("7 place_free_handicap 5", 0.0)
        for _ in range(3):
            talk.engine.advance()
        assert talk.engine.has_work and not talk.said[-1].startswith("=7")
        talk.evaluations = 0
        talk.engine.handle_line(last, 0.0)
        stones = next(line for line in reversed(talk.said) if line.startswith("=7")).split()[1:]
        assert len(set(stones)) == 5 and talk.evaluations < 20
        assert not talk.engine.has_work
        talk.ask("clear_board")


@pytest.mark.medium
def test_other_commands_wait_for_a_free_handicap() -> None:
    talk = Talk(0.0, simulations=100)
    talk.engine.handle_line("place_free_handicap 3", 0.0)
    talk.engine.handle_line("final_status_list alive", 0.0)
    assert talk.said[-1].removeprefix("= ").split() == sorted(
        talk.said[-2].removeprefix("= ").split(), key=GAME.parse_action
    )
    assert talk.evaluations > 200


@pytest.mark.medium
def test_komi_and_rules_can_be_shown_and_chosen() -> None:
    talk = Talk(0.0)
    assert talk.ask("get_komi") == "4.5"
    assert json.loads(talk.ask("kata-get-rules")) == {
        "friendlyPassOk": False,
        "hasButton": False,
        "ko": "POSITIONAL",
        "scoring": "AREA",
        "suicide": False,
        "tax": "NONE",
        "whiteHandicapBonus": "0",
    }
    talk.ask("kata-set-rules Chinese", "komi 3.5", "fixed_handicap 3")
    assert (talk.ask("final_score"), talk.ask("get_komi")) == ("B+42.5", "3.5")
    talk.ask('kata-set-rules {"whiteHandicapBonus": "N-1", "komi": 0}')
    assert (talk.ask("final_score"), talk.ask("get_komi")) == ("B+47", "0.0")
    told = json.loads(talk.ask("kata-get-rules"))
    assert (told["friendlyPassOk"], told["whiteHandicapBonus"]) == (True, "N-1")
    assert "komi must be" in talk.refused('kata-set-rules {"whiteHandicapBonus": "N", "komi": 48}')
    assert json.loads(talk.ask("kata-get-rules")) == told
    talk.ask("kata-set-rules tromp-taylor")
    assert talk.ask("final_score") == "B+49"
    talk.ask("clear_board", "kata-set-rules aga", "play b D4")
    assert talk.ask("final_score") == "B+49", "a game without handicap has none to make up for"


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ("japanese", "unknown rules 'japanese': there are tromp-taylor, "),
        ("", "unknown rules ''"),
        ("[1]", "unknown rules"),
        ('{"scoring": "TERRITORY"}', "scoring 'TERRITORY' is not played here: \"AREA\""),
        ('{"tax": "SEKI"}', "tax 'SEKI'"),
        ('{"hasButton": true}', "hasButton True is not played here: false"),
        ('{"friendlyPassOk": 1}', "friendlyPassOk 1"),
        ('{"whiteHandicapBonus": []}', "whiteHandicapBonus"),
        ('{"passes": 3}', "unknown rule 'passes'"),
        ('{"komi": "much"}', "komi is a number"),
        ("[" * 9999, "unknown rules"),
    ],
)
def test_unsupported_rules_are_refused(asked: str, reason: str) -> None:
    with pytest.raises(GtpError, match=re.escape(reason)):
        parse_rules(asked.split(" "), GtpRules(suicide=False))


def test_named_rules_are_those_of_katago_as_far_as_they_are_supported() -> None:
    for name in NAMED_RULES:
        rules, komi = parse_rules([name], GtpRules(suicide=False))
        assert (rules.suicide, komi) == (False, None), "the network decides whether there is suicide"
        assert rules.agree_on_dead == (name != "tromp-taylor")
    with pytest.raises(GtpError, match="has learned with suicide"):
        parse_rules(["chinese"], GtpRules(suicide=True))
    assert parse_rules(["tromp-taylor"], GtpRules(suicide=True))[0].suicide
