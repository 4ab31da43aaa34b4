"""In matches the network's policy may be flattened."""

import numpy as np
import pytest
import torch

from keima.config.sections.search import SearchSettings
from keima.evaluation.match_worker import make_match_search
from keima.networks.files.model import Model, describe_model
from keima.networks.value_heads import WinHead
from keima.search.move_search import with_policy_temperature
from tests.search.naive_search import StubEvaluator
from tests.small_networks import CONNECT_FOUR, trained_network


def test_a_flattened_policy_is_the_network_s_to_the_power_of_one_over_the_temperature() -> None:
    network = StubEvaluator(CONNECT_FOUR)
    observations = np.stack([CONNECT_FOUR.observe(CONNECT_FOUR.initial_state())])
    (logits, values), (softer, same_values) = network(observations), with_policy_temperature(network, 2.0)(observations)
    power = np.exp(logits[0]) ** 0.5
    assert np.exp(softer[0]) / np.exp(softer[0]).sum() == pytest.approx(power / power.sum(), rel=1e-5)
    assert (values == same_values).all()


def test_matches_flatten_the_policy_as_the_settings_say() -> None:
    network = trained_network(CONNECT_FOUR, spread=0.1)
    assert isinstance(network.value, WinHead)
    with torch.no_grad():  # it values every position alike, so that its policy alone decides
        network.value.logit.weight.zero_()
        network.value.logit.bias.zero_()
    options = {"type": "resnet", "blocks": 2, "channels": 32}
    model = Model(description=describe_model(CONNECT_FOUR, options, 1), weights=network.state_dict())
    states = CONNECT_FOUR.initial_states(8)
    for number, state in enumerate(states):
        for action in (number % 7, 6 - number % 7):
            CONNECT_FOUR.play(state, action)
    shares = []
    for temperature in (0.5, 4.0):
        settings = SearchSettings(match_policy_temperature=temperature)
        visits = make_match_search(CONNECT_FOUR, model, settings, num_simulations=40).find(states).visits
        shares.append((visits.max(1) / visits.sum(1)).mean())
    assert shares[1] < shares[0] - 0.1  # the visits are spread over more moves
