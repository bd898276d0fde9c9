"""The ALFWorld configs: every variant loads, is locked, and the paper's carries the paper's numbers."""

from __future__ import annotations

import pytest

from configs import alfworld_aem, arguments, common

VARIANTS = ["", "quick", "smollm2", "paper", "paper_7b", "quick,seed=3"]


@pytest.mark.parametrize("text", VARIANTS)
def test_variants_are_complete_and_locked(text: str) -> None:
    config = alfworld_aem.get_config(text)
    assert arguments.leaves(config).keys() == arguments.leaves(common.base()).keys()
    assert config.is_locked
    assert config.credit.aem.enabled
    with pytest.raises(AttributeError):
        config.credit.aem.lamda = 2.0


@pytest.mark.parametrize("text", ["paper", "paper_7b"])
def test_paper_settings(text: str) -> None:
    """AEM's ALFWorld column (arXiv 2605.00425, appendix G)."""
    config = alfworld_aem.get_config(text)
    assert (config.rollout.groups, config.rollout.group_size) == (16, 8)
    assert config.env.settings.step_limit == 50
    assert (config.rollout.prompt_limit, config.rollout.response_limit) == (2048, 512)
    assert (config.env.settings.success_reward, config.env.settings.invalid_penalty) == (10.0, -0.1)
    assert (config.rollout.temperature, config.eval.temperature) == (1.0, 0.4)
    assert config.optimizer.learning_rate == 1e-6
    assert config.optimizer.schedule == "constant"
    aem = config.credit.aem
    assert (aem.lam, aem.threshold, aem.scope, aem.reverse, aem.shuffle) == (1.0, 0.1, "group", False, False)
    assert config.train.iterations == 150
    assert config.credit.estimator == "grpo"
    assert config.rollout.context == "step" and config.env.settings.history == 2
    longest = config.rollout.prompt_limit + config.rollout.response_limit
    assert longest <= config.learner.row_buckets[-1]


def test_seed_argument() -> None:
    assert alfworld_aem.get_config("seed=7").seed == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [("quik", "Did you mean 'quick'"), ("quick=maybe", "true or false"), ("seed", "a value")],
)
def test_bad_arguments(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        alfworld_aem.get_config(text)
