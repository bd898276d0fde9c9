"""Toys small enough to enumerate: all responses of an autoregressive policy, all trajectories of a process.

The policy is a table of logits `[P, V]`, one free row for every prefix, so a token's distribution depends
on everything before it. A response is a row of a `Tree`; what lies outside its tokens has no effect.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

END = 0


class Tree(NamedTuple):
    """The response space. Arrays `[R, L]` except `child` `[P, V]`, the prefix that a token leads to or -1."""

    tokens: np.ndarray
    prefix: np.ndarray  # the row of logits that each token was drawn from
    mask: np.ndarray
    child: np.ndarray


def response_tree(*, vocabulary: int, length: int, ends: bool = True) -> Tree:
    """Returns all responses of at most `length` tokens, the end token included.

    One that reaches `length` without the end token is cut there and is a response of its own, as in a
    rollout. Without `ends` no token ends a response: all have `length` tokens.
    """
    going_on = range(1 if ends else 0, vocabulary)
    prefixes = [p for size in range(length) for p in itertools.product(going_on, repeat=size)]
    index = {p: i for i, p in enumerate(prefixes)}
    responses: list[tuple[int, ...]] = [(*p, END) for p in prefixes] if ends else []
    responses += list(itertools.product(going_on, repeat=length))
    tokens, prefix = np.full((2, len(responses), length), 0)
    mask = np.zeros((len(responses), length), bool)
    for row, response in enumerate(responses):
        for position, token in enumerate(response):
            tokens[row, position], prefix[row, position] = token, index[response[:position]]
            mask[row, position] = True
    child = np.full((len(prefixes), vocabulary), -1)
    for p, i in index.items():
        if p:
            child[index[p[:-1]], p[-1]] = i
    return Tree(tokens, prefix, mask, child)


def random_logits(seed: int, tree: Tree, *, scale: float = 1.0) -> Float[Array, "P V"]:
    """Returns logits that differ from prefix to prefix, in sharpness too."""
    random = np.random.default_rng(seed)
    sharpness = random.uniform(0.2, 2.0, (len(tree.child), 1))
    return jnp.asarray(scale * sharpness * random.normal(size=tree.child.shape))


@jax.jit
def token_logp(logits: Float[Array, "P V"], tree: Tree) -> Float[Array, "R L"]:
    """Returns `log p(y_l | prefix)` of every token of every response, 0 outside."""
    logp = jax.nn.log_softmax(logits)[tree.prefix, tree.tokens]
    return jnp.where(tree.mask, logp, 0)


@jax.jit
def token_entropy(logits: Float[Array, "P V"], tree: Tree) -> Float[Array, "R L"]:
    """Returns `H_l`, the entropy of the distribution that each token was drawn from, 0 outside."""
    logp = jax.nn.log_softmax(logits)
    entropy = -jnp.sum(jnp.exp(logp) * logp, axis=-1)
    return jnp.where(tree.mask, entropy[tree.prefix], 0)


@jax.jit
def probability(logits: Float[Array, "P V"], tree: Tree) -> Float[Array, " R"]:
    """Returns `pi(a)` of every response as a product of probabilities; shares no step with `token_logp`."""
    weights = jnp.exp(logits)
    factors = (weights / jnp.sum(weights, axis=-1, keepdims=True))[tree.prefix, tree.tokens]
    return jnp.prod(jnp.where(tree.mask, factors, 1), axis=-1)


class Process(NamedTuple):
    """A finite decision process over whole responses: the environment moves after each."""

    start: np.ndarray  # [S]
    transition: np.ndarray  # [S, R, S]
    horizon: int


def random_process(
    seed: int, *, states: int, responses: int, horizon: int, deterministic: bool = False
) -> Process:
    """Returns a process in which the next state depends on the state and on the response."""
    random = np.random.default_rng(seed)
    transition = random.dirichlet(np.full(states, 0.5), (states, responses))
    if deterministic:
        transition = np.eye(states)[random.integers(0, states, (states, responses))]
    return Process(random.dirichlet(np.ones(states)), transition, horizon)


def visitation(process: Process, policy: Float[Array, "S R"]) -> Float[Array, "T S"]:
    """Returns `P[s_t = s]` for every turn and state; differentiable in the policy."""
    at = jnp.asarray(process.start)
    rows = []
    for _ in range(process.horizon):
        rows.append(at)
        at = jnp.einsum("s,sr,srz->z", at, policy, process.transition)
    return jnp.stack(rows)


def trajectories(
    process: Process, policy: np.ndarray, path: tuple[tuple[int, int], ...] = (), weight: float = 1.0
) -> Iterator[tuple[float, tuple[tuple[int, int], ...]]]:
    """Yields `(probability, ((state, response), ...))` of every trajectory that can happen."""
    if len(path) == process.horizon:
        yield weight, path
        return
    here = process.transition[path[-1]] if path else process.start
    for state in np.flatnonzero(here):
        for response in range(policy.shape[1]):
            onward = weight * here[state] * policy[state, response]
            yield from trajectories(process, policy, (*path, (int(state), response)), onward)
