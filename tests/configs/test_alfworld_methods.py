"""Every method file at every size: complete, locked, and the composition that the method is."""

from __future__ import annotations

import importlib

import pytest

from configs import arguments, common

METHODS = (
    "aem",
    "grpo",
    "dr_grpo",
    "rloo",
    "reinforce_pp",
    "dapo",
    "gspo",
    "gigpo",
    "empg",
    "grpopp",
    "ppo",
    "stapo",
)
SIZES = ("", "quick", "smollm2", "paper", "paper_7b", "quick,aem,seed=3")


def get(name: str, text: str = ""):
    return importlib.import_module(f"configs.alfworld_{name}").get_config(text)


def changed(name: str, text: str = "") -> dict:
    """What a method's config has that GRPO's of the same size has not."""
    ours, base = arguments.leaves(get(name, text)), arguments.leaves(get("grpo", text))
    return {key: value for key, value in ours.items() if value != base[key]}


@pytest.mark.parametrize("text", SIZES)
@pytest.mark.parametrize("name", METHODS)
def test_methods_are_complete_locked_and_buildable(name: str, text: str) -> None:
    from rl import builder

    config = get(name, text)
    assert arguments.leaves(config).keys() == arguments.leaves(common.base()).keys()
    assert config.is_locked
    assert config.credit.aem.enabled == (name == "aem" or "aem" in text)
    builder.credit_settings(config.credit)
    builder.ObjectiveSettings(**config.objective.to_dict())
    builder.selection(config.selection)
    assert (builder.blind_settings(config.attribution) is not None) == (name == "stapo")


@pytest.mark.parametrize("name", METHODS)
def test_a_method_shares_games_model_and_clone_with_grpo(name: str) -> None:
    touched = {key.partition(".")[0] for key in changed(name)}
    assert touched <= {"credit", "objective", "selection", "learner", "attribution"}


def test_aem_is_one_line_on_grpo() -> None:
    assert changed("aem") == {"credit.aem.enabled": True}
    assert changed("aem", "paper") == {"credit.aem.enabled": True}


def test_stapo_without_its_coefficients_is_gigpo_with_a_kl_term() -> None:
    stapo, gigpo = arguments.leaves(get("stapo")), arguments.leaves(get("gigpo"))
    apart = {key for key, value in stapo.items() if value != gigpo[key]}
    terms = {"attribution.reward_coef", "attribution.penalty_coef", "credit.outliers.enabled"}
    assert apart == terms | {"objective.kl_coef"}


def test_no_kl_where_the_method_has_none() -> None:
    assert get("grpo", "paper").objective.kl_coef == 0.01
    for name in ("dr_grpo", "dapo", "gspo", "grpopp"):
        assert get(name, "paper").objective.kl_coef == 0.0, name


def test_lengths_in_tokens_follow_the_size() -> None:
    for text, limit in (("", 12), ("paper", 512)):
        for name in ("dr_grpo", "grpopp"):
            config = get(name, text)
            assert config.objective.constant_length == config.rollout.response_limit == limit
        dapo = get("dapo", text)
        assert dapo.selection.overlong_buffer == limit / (3 if limit == 12 else 4)


@pytest.mark.parametrize(
    ("name", "text", "key", "value"),
    [
        ("reinforce_pp", "baseline", "credit.estimator", "centred"),
        ("gspo", "token", "objective.surrogate", "sequence_token"),
        ("dapo", "", "objective.clip_high", 0.28),
        ("gspo", "", "objective.clip_high", 4e-4),
        ("gigpo", "paper", "credit.gamma", 0.95),
        ("ppo", "", "learner.value_head", True),
        ("stapo", "dynamic", "objective.clip_high", 0.28),
        ("stapo", "paper", "env.settings.success_reward", 1.0),
        ("stapo", "paper", "objective.kl_coef", 0.01),
        ("stapo", "smollm2", "attribution.rows", (1,)),
    ],
)
def test_forms(name: str, text: str, key: str, value: object) -> None:
    assert arguments.leaves(get(name, text))[key] == value
