"""The networks by their names in the settings: shipped ones, and users' files. Each is a ``PolicyValueNetwork``
(keima/networks/policy_value.py).
"""

from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
from torch import nn

from keima.config.own_modules import describe_error, is_own, load_module, stem_of
from keima.games.game import Game
from keima.networks.architectures.auxiliary_heads import AuxiliaryHeads
from keima.networks.architectures.bottleneck import BottleneckNet
from keima.networks.architectures.resnet import ResNet
from keima.networks.architectures.spiking import SpikingResNet
from keima.networks.policy_value import OwnNetwork, as_policy_value_network

NETWORKS: dict[str, Any] = {
    **{network.kind: network for network in (ResNet, BottleneckNet)},
    "spiking": SpikingResNet,
}


def seed_weights(seed: int) -> None:
    """Make the weights of networks built from now on depend on ``seed`` alone."""
    torch.manual_seed(seed % 2**63)


def build_network(
    game: Game,
    *,
    type: str = "resnet",
    blocks: int = 6,
    channels: int = 64,
    global_pooling: bool = True,
    squeeze_excitation: bool = False,
    time_steps: int | None = None,
    predict_reply: bool = False,
    predict_ownership: bool = False,
    predict_score: bool = False,
    predict_future: bool = False,
    **options: Any,
) -> nn.Module:
    """Build a network for ``game``, which maps observations ``[N, C, H, W]`` to policy logits ``[N, A]`` and value
    logits.

    Args:
        game: the game.
        type: "resnet", "bottleneck", "spiking", or the name of a user's file, which only takes ``options``.
        blocks: of the tower.
        channels: of the tower.
        global_pooling: whether the policy head, and every third block of a residual tower, see the pooled board.
        squeeze_excitation: whether the blocks of a residual tower scale their channels by the board's means.
        time_steps: of a spiking network; None: its default.
        predict_reply: add an auxiliary head for the opponent's reply (keima/networks/architectures/auxiliary_heads.py).
        predict_ownership: add one for each point's owner at the end of the game.
        predict_score: add one for the final score.
        predict_future: add one for the pieces on the board some plies later.
        options: of a user's own network.

    Raises:
        ValueError: the type does not exist, or does not accept these arguments; or a user's network fails.
    """
    if is_own(type):
        return _build_own_network(game, type, options)
    if options:
        raise ValueError(f"network: a network of type {type} has no option {', '.join(options)}")
    if type not in NETWORKS:
        raise ValueError(
            f"network.type: there is no network called {type!r}; the networks are {', '.join(sorted(NETWORKS))}"
        )
    if time_steps is not None and type != "spiking":
        raise ValueError(
            f"network.time_steps: a network of type {type} has no time steps; only one of type spiking has"
        )
    if squeeze_excitation and type == "spiking":
        raise ValueError(f"network.squeeze_excitation: a network of type {type} has no such blocks")
    heads = {
        "reply": predict_reply,
        "future": predict_future,
        "ownership": predict_ownership,
        "score": predict_score,
    }
    _check_heads_exist(game, type, heads)
    network: nn.Module = NETWORKS[type](
        observation_shape=game.observation_shape,
        num_actions=game.num_actions,
        policy_planes=game.policy_planes,
        blocks=blocks,
        channels=channels,
        global_pooling=global_pooling,
        most_points=game.max_return if game.num_players == 1 else None,
        num_values=game.num_values,
        **({} if time_steps is None else {"time_steps": time_steps}),
        **({"squeeze_excitation": True} if squeeze_excitation else {}),
    )
    if any(heads.values()):
        policy = (game.num_actions, game.policy_planes, global_pooling)
        # One plane suffices in games won by area, because hardly any point is neutral in the end.
        planes = 0 if not predict_ownership else 1 if game.won_by_area else 2
        network.auxiliary = AuxiliaryHeads(
            channels=channels,
            board=game.observation_shape[1:],
            policy=policy,
            reply=predict_reply,
            ownership=planes,
            score=predict_score,
            future=predict_future,
        )
    return network


def _build_own_network(game: Game, name: str, options: dict[str, Any]) -> nn.Module:
    module = load_module(name)
    build = getattr(module, "network", None)
    if not callable(build):
        raise ValueError(
            f"{module.__file__}: define a function network(game), with the network's options, that returns the network"
        )
    unknown = options.keys() - signature(build).parameters.keys()
    if unknown:
        raise ValueError(f"network {stem_of(name)!r} has no option {', '.join(sorted(unknown))}")
    try:
        network = build(game, **options)
    except Exception as error:
        raise ValueError(describe_error(error, name)) from error
    if not isinstance(network, OwnNetwork):
        raise ValueError(f"{module.__file__}: network() must return a keima.OwnNetwork")
    network.arguments = {"type": name, **options}
    as_policy_value_network(network)
    return network


def _check_heads_exist(game: Game, type: str, heads: Mapping[str, bool]) -> None:
    wanted = [name for name, here in heads.items() if here]
    if wanted and type == "spiking":
        raise ValueError(f"network.predict_{wanted[0]}: a network of type {type} has no such head")
    if heads["reply"] and (game.num_players != 2 or game.num_outcomes):
        raise ValueError(
            f"network.predict_reply: {game.name} has no replies; only two-player games without chance have them"
        )
    if heads["future"] and (game.num_players != 2 or not game.piece_planes):
        raise ValueError(
            f"network.predict_future: the observations of {game.name} do not begin with the pieces of two players "
            "(Game.piece_planes)"
        )
    if game.final_score is None and (heads["ownership"] or heads["score"]):
        raise ValueError(
            f"network.predict_{wanted[-1]}: {game.name} has no final score of its board; Go and Connect Four have one"
        )
