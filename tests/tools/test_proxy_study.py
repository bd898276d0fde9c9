"""The statistics of the proxy study, its contexts, and its sampler loop."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from tests.rl.episodes import episode
from tools import proxy_study


def test_pearson() -> None:
    one = np.array([1.0, 2.0, 3.0])
    assert proxy_study.pearson(one, np.array([2.0, 4.0, 6.0])) == pytest.approx(1)
    assert proxy_study.pearson(one, np.array([1.0, 3.0, 2.0])) == pytest.approx(0.5)
    assert math.isnan(proxy_study.pearson(one, np.ones(3)))


def test_agreement_leaves_out_zeros() -> None:
    one, two = np.array([1.0, -1.0, 2.0, 0.0]), np.array([3.0, -0.1, -4.0, 1.0])
    assert proxy_study.agreement(one, two) == pytest.approx(2 / 3)
    assert math.isnan(proxy_study.agreement(np.zeros(2), np.ones(2)))


def test_bootstrap_is_seeded_and_covers() -> None:
    source = np.random.default_rng(0)
    one = source.normal(size=400)
    two = one + source.normal(size=400)  # r = 0.707
    low, high = proxy_study.bootstrap(one, two, proxy_study.pearson)
    assert (low, high) == proxy_study.bootstrap(one, two, proxy_study.pearson)
    assert low < 0.707 < high and high - low < 0.15
    assert all(math.isnan(x) for x in proxy_study.bootstrap(np.ones(3), np.ones(3), proxy_study.pearson))


def test_contexts_are_what_the_sampler_had_read() -> None:
    played = [
        episode(0, 0, [(3, 2), (1, 1)]),
        episode(0, 1, [(2, 2)], failed="died"),
        episode(0, 2, [(1, 4)]),
    ]
    first, second = played[0].turns
    grown = [*first.context_ids, *first.response_ids, *second.context_ids]
    last = (played[2].turns[0].context_ids, 4)
    assert proxy_study.contexts(played, "conversation") == [(first.context_ids, 2), (grown, 1), last]
    assert proxy_study.contexts(played, "step")[1] == (second.context_ids, 1)


class Sampler:
    """Two slots; every token costs half a nat; slot 1 stops with its first token, slot 0 after a chunk of two."""

    slots = 2

    def extend(self, params, rows, prompts, seeds, *, restart):
        assert all(restart) and all(prompt == [1, 2] for prompt in prompts)
        return SimpleNamespace(logp=np.full(len(rows), -0.5), stopped=np.array([False, True])[: len(rows)])

    def decode(self, params, active, limits):
        assert active.tolist() == [True, False]
        return SimpleNamespace(
            counts=np.array([2, 0]),
            logp=np.full((2, 3), -0.5),
            stopped=np.array([True, False]),
            full=np.zeros(2, bool),
        )


def test_surprisals_sum_the_tokens_that_were_sampled() -> None:
    made = proxy_study.surprisals(Sampler(), None, [1, 2], count=3, limit=8, seed=0)
    np.testing.assert_allclose(made, [1.5, 0.5, 1.5])


def test_study_and_its_table() -> None:
    found = [proxy_study.State([1], surprisal, alpha) for surprisal, alpha in ((1, 1.5), (3, 0.5), (2, 1.0))]
    result = proxy_study.study(found, np.full(3, 2.0), seed=0)
    assert (result["states"], result["silent"]) == (3, 1)
    assert result["pearson"] == pytest.approx(1) and result["agreement"] == 1.0
    assert "| Pearson r | 1.00" in proxy_study.table(result, responses=8)


def test_a_directory_without_a_run_is_refused(tmp_path, capsys) -> None:
    assert proxy_study.main([f"--workdir={tmp_path}"]) == 1
    assert "holds no run" in capsys.readouterr().err
