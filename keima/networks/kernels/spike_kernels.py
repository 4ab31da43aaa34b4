"""Spiking neurons as compiled kernels: layers over all time steps for training, and event-driven kernels for play.

At each step a membrane keeps ``DECAY`` of its potential, adds a current, and loses ``THRESHOLD`` if the neuron fired at
the step before. The neuron fires if its membrane exceeds ``THRESHOLD``. The gradient uses the slope of an arc tangent
in place of firing's, and ignores the loss of ``THRESHOLD``. Currents may be bfloat16 words; membranes are float32, so
that no comparison is rounded.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import compiled, compiled_part, inlined_by_llvm
from keima.networks.kernels.bfloat16 import Words, bfloat16_to_float32, float32_to_bfloat16

DECAY, THRESHOLD = 0.5, 1.0
BLOCK_NEURONS = 1024  # computed together, so that their membranes fit the processor's first cache

CHANNEL_BITS = 16  # of an event

Numbers = NDArray[np.float32]


class Events(NamedTuple):
    """Space for K events: spikes, or nonzero elements of an observation."""

    # [K] a point of a map with a margin of one, and a channel: keima/networks/architectures/event_driven.py
    places: NDArray[np.int64]
    strengths: Numbers  # [K]


class Neurons(NamedTuple):
    """The neurons of a map, ``C`` at each point."""

    currents: Numbers  # [points, C]
    bias: Numbers  # [C], added to the currents
    membranes: Numbers  # [points, C] potentials after the step before


class BlockWeights(NamedTuple):
    """The weights of a block of the tower, with P pooled channels or none."""

    first: Numbers  # of the first convolution, whose last P outputs are pooled
    first_bias: Numbers
    second: Numbers  # of the second convolution, over the outputs of the first that are not pooled
    second_bias: Numbers
    pool: Numbers  # [outputs that are not pooled, 3 * P]
    pool_bias: Numbers  # of the outputs that are not pooled


@inlined_by_llvm
def step_membrane(membrane: float, current: float) -> float:
    """Return the potential of a membrane after a step with this current."""
    fired = np.float32(THRESHOLD) if membrane > np.float32(THRESHOLD) else np.float32(0)
    # u(t) = DECAY * u(t - 1) + I(t) - THRESHOLD * s(t - 1), where s = 1 if u > THRESHOLD, else 0
    return np.float32(DECAY) * membrane + current - fired  # type: ignore[return-value]


@inlined_by_llvm
def surrogate_slope(membrane: float) -> float:
    """Return the surrogate derivative of firing with respect to the membrane's potential."""
    # ds / du = 1 / (1 + (pi * (u - THRESHOLD))**2), the slope of an arc tangent (Fang et al. 2021)
    steepness = np.float32(np.pi) * (membrane - np.float32(THRESHOLD))
    return np.float32(1) / (np.float32(1) + steepness * steepness)  # type: ignore[return-value]


@compiled
def compute_spikes(currents: Numbers, spikes: Numbers) -> None:
    """Compute spikes ``[T, M]``, 0 or 1, from the currents ``[T, M]`` of M neurons."""
    steps, neurons = currents.shape
    membranes = np.empty(BLOCK_NEURONS, np.float32)
    for first in range(0, neurons, BLOCK_NEURONS):
        count = min(BLOCK_NEURONS, neurons - first)
        membranes[:] = 0
        for t in range(steps):
            current, spike = currents[t, first : first + count], spikes[t, first : first + count]
            for i in range(count):
                membranes[i] = step_membrane(membranes[i], current[i])
                spike[i] = np.float32(1) if membranes[i] > np.float32(THRESHOLD) else np.float32(0)


@compiled
def compute_spikes_words(currents: Words, spikes: Words) -> None:
    """Call ``compute_spikes`` with bfloat16 words."""
    steps, neurons = currents.shape
    membranes = np.empty(BLOCK_NEURONS, np.float32)
    for first in range(0, neurons, BLOCK_NEURONS):
        count = min(BLOCK_NEURONS, neurons - first)
        membranes[:] = 0
        for t in range(steps):
            current, spike = currents[t, first : first + count], spikes[t, first : first + count]
            for i in range(count):
                membranes[i] = step_membrane(membranes[i], bfloat16_to_float32(current[i]))
                spike[i] = np.uint16(0x3F80) if membranes[i] > np.float32(THRESHOLD) else np.uint16(0)


@compiled
def backpropagate_spikes(currents: Numbers, gradients: Numbers) -> None:
    """Turn gradients with respect to spikes ``[T, M]`` into gradients with respect to currents, in place."""
    steps, neurons = currents.shape
    membranes, later = np.zeros((steps + 1, BLOCK_NEURONS), np.float32), np.empty(BLOCK_NEURONS, np.float32)
    for first in range(0, neurons, BLOCK_NEURONS):
        count = min(BLOCK_NEURONS, neurons - first)
        for t in range(steps):
            current, before, membrane = currents[t, first : first + count], membranes[t], membranes[t + 1]
            for i in range(count):
                membrane[i] = step_membrane(before[i], current[i])
        later[:] = 0
        for t in range(steps - 1, -1, -1):
            gradient, membrane = gradients[t, first : first + count], membranes[t + 1]
            for i in range(count):
                # dL / du(t) = DECAY * dL / du(t + 1) + dL / ds(t) * ds / du; dI = du, so that it replaces dL / ds(t)
                later[i] = np.float32(DECAY) * later[i] + gradient[i] * surrogate_slope(membrane[i])
                gradient[i] = later[i]


@compiled
def backpropagate_spikes_words(currents: Words, gradients: Words) -> None:
    """Call ``backpropagate_spikes`` with bfloat16 words."""
    steps, neurons = currents.shape
    membranes, later = np.zeros((steps + 1, BLOCK_NEURONS), np.float32), np.empty(BLOCK_NEURONS, np.float32)
    for first in range(0, neurons, BLOCK_NEURONS):
        count = min(BLOCK_NEURONS, neurons - first)
        for t in range(steps):
            current, before, membrane = currents[t, first : first + count], membranes[t], membranes[t + 1]
            for i in range(count):
                membrane[i] = step_membrane(before[i], bfloat16_to_float32(current[i]))
        later[:] = 0
        for t in range(steps - 1, -1, -1):
            gradient, membrane = gradients[t, first : first + count], membranes[t + 1]
            for i in range(count):
                # dL / du(t) = DECAY * dL / du(t + 1) + dL / ds(t) * ds / du; dI = du, so that it replaces dL / ds(t)
                later[i] = np.float32(DECAY) * later[i] + bfloat16_to_float32(gradient[i]) * surrogate_slope(
                    membrane[i]
                )
                gradient[i] = float32_to_bfloat16(later[i])


@compiled_part
def fill_points(currents: Numbers, bias: Numbers) -> None:
    """Set the currents of all points of a map ``[points, C]`` to ``[C]``."""
    points, channels = currents.shape
    for point in range(points):
        current = currents[point]
        for c in range(channels):
            current[c] = bias[c]


@compiled_part
def add_to_points(currents: Numbers, bias: Numbers) -> None:
    """Add currents ``[C]`` to all points of a map ``[points, C]``."""
    points, channels = currents.shape
    for point in range(points):
        current = currents[point]
        for c in range(channels):
            current[c] += bias[c]


@compiled_part
def add_events(events: Events, count: int, weights: Numbers, row_points: int, out: Numbers) -> None:
    """Add the contribution of each of the first ``count`` events to the currents around it.

    Args:
        events: some.
        count: the number of events.
        weights: ``[inputs, 3, 3 * outputs]``: the rows above, at and below the event, three points each.
        row_points: points in a row of the map.
        out: currents ``[points * outputs]``.
    """
    width = weights.shape[2]
    outputs = width // 3
    for k in range(count):
        point, channel = events.places[k] >> CHANNEL_BITS, events.places[k] & ((1 << CHANNEL_BITS) - 1)
        factor = events.strengths[k]
        for row in range(3):
            start = (point + (row - 1) * row_points - 1) * outputs
            below, weight = out[start : start + width], weights[channel, row]
            for i in range(width):
                below[i] += factor * weight[i]


@compiled_part
def find_events(neurons: Neurons, channels: tuple[int, int], board: tuple[int, int], events: Events) -> int:
    """Advance the neurons of a range of channels by one step, and list those that fire.

    Args:
        neurons: their membranes are updated.
        channels: the first channel, and the end of the range.
        board: its height and width, without the margin.
        events: their places receive the spikes, whose channels are counted from ``channels[0]``.

    Returns:
        The number of spikes.
    """
    currents, bias, membranes = neurons
    places, count = events.places, 0
    first, last = channels
    height, width = board
    for y in range(height):
        for x in range(width):
            point = (y + 1) * (width + 2) + x + 1
            current, membrane = currents[point, first:last], membranes[point, first:last]
            added = bias[first:last]
            for c in range(last - first):
                membrane[c] = step_membrane(membrane[c], current[c] + added[c])
            for c in range(last - first):
                places[count] = point << CHANNEL_BITS | c
                count += membrane[c] > np.float32(THRESHOLD)
    return count


@compiled
def run_first_layer(observations: Numbers, weights: Numbers, bias: Numbers, currents: Numbers) -> None:
    """Map observations ``[N, inputs, H, W]`` to the same currents at every time step, ``[N, T, points, C]``."""
    count, inputs, height, width = observations.shape
    steps, points, channels = currents.shape[1:]
    size = inputs * height * width
    events = Events(np.empty(size, np.int64), np.empty(size, np.float32))
    for n in range(count):
        found = 0
        for channel in range(inputs):
            for y in range(height):
                for x in range(width):
                    events.places[found] = ((y + 1) * (width + 2) + x + 1) << CHANNEL_BITS | channel
                    events.strengths[found] = observations[n, channel, y, x]
                    found += events.strengths[found] != np.float32(0)
        fill_points(currents[n, 0], bias)
        add_events(events, found, weights, width + 2, currents[n, 0].reshape(points * channels))
        for step in range(1, steps):
            currents[n, step] = currents[n, 0]


@compiled
def run_block(currents: Numbers, block: BlockWeights, board: tuple[int, int], scale: float) -> None:
    """Run a block of the tower, in place.

    Args:
        currents: ``[N, T, points, C]``.
        block: its weights.
        board: its height and width, without the margin.
        scale: of the second of the three numbers into which a channel is pooled.
    """
    count, steps, points, channels = currents.shape
    height, width = board
    steered, pooled = block.pool.shape[0], block.pool.shape[1] // 3
    events = Events(np.empty(points * channels + 1, np.int64), np.ones(points * channels, np.float32))
    outer, inner = np.empty((points, channels), np.float32), np.empty((points, channels), np.float32)
    between = np.empty((points, channels), np.float32)
    nothing, bias = np.zeros(channels, np.float32), np.zeros(channels, np.float32)
    summary = np.empty(3 * pooled, np.float32)
    for n in range(count):
        outer[:], inner[:] = 0, 0
        for step in range(steps):
            current = currents[n, step]
            found = find_events(Neurons(current, nothing, outer), (0, channels), board, events)
            fill_points(between, block.first_bias)
            add_to_points(current, block.second_bias)
            add_events(events, found, block.first, width + 2, between.reshape(points * channels))
            if pooled:
                found = find_events(Neurons(between, nothing, inner), (steered, channels), board, events)
                summary[:] = 0
                for k in range(found):
                    channel = events.places[k] & ((1 << CHANNEL_BITS) - 1)
                    summary[channel] += np.float32(1)
                    summary[2 * pooled + channel] = 1
                # Global pooling (Wu 2019): of each channel the mean, the scaled mean, and the maximum, 1 after a spike
                for channel in range(pooled):
                    summary[channel] /= np.float32(height * width)
                    summary[pooled + channel] = summary[channel] * np.float32(scale)
                for c in range(steered):
                    total = block.pool_bias[c]
                    for k in range(3 * pooled):
                        total += block.pool[c, k] * summary[k]
                    bias[c] = total
            found = find_events(Neurons(between, bias, inner), (0, steered), board, events)
            add_events(events, found, block.second, width + 2, current.reshape(points * channels))


@compiled
def run_last_layer(currents: Numbers, board: tuple[int, int], rates: Numbers) -> None:
    """Map currents ``[N, T, points, C]`` to the firing rate of each neuron, ``[N, H * W, C]``."""
    count, steps, points, channels = currents.shape
    height, width = board
    events = Events(np.empty(points * channels + 1, np.int64), np.empty(0, np.float32))
    nothing = np.zeros(channels, np.float32)
    membranes = np.empty((points, channels), np.float32)
    for n in range(count):
        membranes[:] = 0
        for step in range(steps):
            found = find_events(Neurons(currents[n, step], nothing, membranes), (0, channels), board, events)
            for k in range(found):
                point, channel = events.places[k] >> CHANNEL_BITS, events.places[k] & ((1 << CHANNEL_BITS) - 1)
                y, x = point // (width + 2) - 1, point % (width + 2) - 1
                rates[n, y * width + x, channel] += np.float32(1)
        for point in range(height * width):
            for channel in range(channels):
                rates[n, point, channel] /= np.float32(steps)
