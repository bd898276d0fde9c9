"""Templates: what a file must say, and the literal texts of the shipped ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from envs import prompts

MINIMAL = {
    "system": "",
    "step": "{goal}\n{history}\n{observation}",
    "history": "{entries}",
    "entry": "{observation} > {action}",
    "conversation.first": "{goal}: {observation}",
    "conversation.turn": "{observation}",
    "blind": "{observation}",
    "blind.goal": "{history}\n{observation}",
    "blind.history": "{goal}\n{observation}",
    "anchor": "{observation}",
}
SHIPPED = sorted(path.name for path in prompts.DIRECTORY.glob("*.txt"))
HISTORY = [("you see a bed 1", "go to bed 1"), ("on the bed 1, a book 2", "take book 2 from bed 1")]


def make(**changes: str) -> prompts.Template:
    sections = MINIMAL | {name.replace("_", "."): body for name, body in changes.items()}
    return prompts.Template("\n\n".join(f"[{name}]\n{body}" for name, body in sections.items()), name="test")


def blind(template: prompts.Template, observation: str, *, masked: str = "both", admissible: str = "") -> str:
    return template.blind(
        masked=masked,
        goal="put book in desk",
        history=HISTORY,
        step=3,
        observation=observation,
        admissible=admissible,
    )


def step_prompts(template: prompts.Template, history: list[tuple[str, str]], step: int) -> tuple[str, ...]:
    return template.step_prompts(
        goal="put book in desk",
        history=history,
        step=step,
        observation="you hold it",
        admissible="look, go to desk 1",
    )


def test_history_is_dropped_oldest_first_down_to_none() -> None:
    assert step_prompts(make(), HISTORY, 3) == (
        "put book in desk\nyou see a bed 1 > go to bed 1\non the bed 1, a book 2 > take book 2 from bed 1\nyou hold it",
        "put book in desk\non the bed 1, a book 2 > take book 2 from bed 1\nyou hold it",
        "put book in desk\nyou hold it",
    )
    assert step_prompts(make(), [], 1) == ("put book in desk\nyou hold it",)


def test_counts_are_of_what_is_shown() -> None:
    template = make(
        step="{goal} {step}\n{history}\n{observation} {admissible}",
        history="{previous_steps} before, {history_length} shown\n{entries}",
        entry="{index}: {observation} > {action}",
    )
    first, second, third = step_prompts(template, HISTORY, 5)
    assert first.splitlines()[1:4] == [
        "4 before, 2 shown",
        "3: you see a bed 1 > go to bed 1",
        "4: on the bed 1, a book 2 > take book 2 from bed 1",
    ]
    assert second.splitlines()[1:3] == [
        "4 before, 1 shown",
        "4: on the bed 1, a book 2 > take book 2 from bed 1",
    ]
    assert third == "put book in desk 5\nyou hold it look, go to desk 1"


def test_braces_in_values_are_text() -> None:
    assert blind(make(), "{goal} {0} {") == "{goal} {0} {"
    assert blind(make(blind="{{{observation}}}"), "a") == "{a}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"blind": "{observation} {goal}"}, "unknown slots"),
        ({"anchor": "{goal}{observation}"}, "unknown slots"),
        ({"blind": "{observation} {history}"}, "unknown slots"),
        ({"blind": "{observation} {step}"}, "unknown slots"),
        ({"system": "{goal}"}, "known: none"),
        ({"step": "{observation}{history}"}, r"missing slots \['goal'\]"),
        ({"step": "{goal} {observation} {history} {colour}"}, r"unknown slots \['colour'\]"),
        ({"step": "{goal} {observation} {history} {goal.x}"}, "unknown slots"),
        ({"step": "{goal} {observation} {history} {}"}, "unknown slots"),
        ({"step": "{goal!r} {observation} {history}"}, "no format or conversion"),
        ({"step": "{goal:>9} {observation} {history}"}, "no format or conversion"),
        ({"step": "{goal} {observation} {history"}, r"\[step\]"),
        ({"conversation_first": "{observation}"}, r"missing slots \['goal'\]"),
        ({"entry": "{observation}"}, r"missing slots \['action'\]"),
    ],
)
def test_slots_are_checked_at_load(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_sections_are_checked_at_load() -> None:
    with pytest.raises(ValueError, match=r"missing sections .*anchor"):
        prompts.Template("[system]\n", name="test")
    with pytest.raises(ValueError, match=r"unknown section \[colour\]"):
        prompts.Template("[system]\n[colour]\n", name="test")
    with pytest.raises(ValueError, match="appears twice"):
        prompts.Template("[system]\n[system]\n", name="test")
    with pytest.raises(ValueError, match=r"no template 'none.txt'; known: alfworld_compact.txt"):
        prompts.load("none.txt")


def test_a_template_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("comment [system]\n" + "\n".join(f"[{name}]\n{body}" for name, body in MINIMAL.items()))
    assert blind(prompts.load(str(path)), "a") == "a"


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_templates_keep_goal_and_format(name: str) -> None:
    template = prompts.load(name)
    variants = step_prompts(template, HISTORY, 3)
    assert len(variants) == 3
    tags = ["<think>", "</think>", "<action>", "</action>"] if "react" in name else []
    for text in variants:
        assert all(part in text for part in ["put book in desk", "you hold it", *tags])
    assert [sum(action in text for _, action in HISTORY) for text in variants] == [2, 1, 0]
    assert [len(text) for text in variants] == sorted((len(text) for text in variants), reverse=True)
    for masked in prompts.MASKS:
        text = blind(template, "you hold it", masked=masked, admissible="look")
        assert all(part in text for part in ["you hold it", *tags])
        assert text.strip() == text
        assert ("put book in desk" in text) == (masked == "history")
        assert all((action in text) == (masked == "goal") for _, action in HISTORY)


def test_what_a_blind_text_leaves_out() -> None:
    template = prompts.load("alfworld_compact.txt")
    past = "you see a bed 1\n> go to bed 1\non the bed 1, a book 2\n> take book 2 from bed 1\n"
    assert blind(template, "you hold it") == "you hold it"
    assert blind(template, "you hold it", masked="goal") == past + "you hold it"
    assert blind(template, "you hold it", masked="history") == "you hold it\ngoal: put book in desk"
    with pytest.raises(ValueError, match="unknown masked='all'; known: both, goal, history"):
        blind(template, "you hold it", masked="all")


def test_compact_texts() -> None:
    template = prompts.load("alfworld_compact.txt")
    assert step_prompts(template, HISTORY[:1], 2)[0] == (
        "you see a bed 1\n> go to bed 1\nyou hold it\ngoal: put book in desk"
    )
    values = {
        "goal": "put book in desk",
        "observation": "On the shelf 1, you see a book 2.",
        "admissible": "look",
    }
    for step in (1, 2):
        assert template.conversation_prompt(step=step, **values) == (
            "On the shelf 1, you see a book 2.\ngoal: put book in desk"
        )
        assert prompts.load("alfworld_compact_admissible.txt").conversation_prompt(step=step, **values) == (
            "On the shelf 1, you see a book 2.\ncan: look\ngoal: put book in desk"
        )
    assert template.system == ""
    assert template.anchor(observation="a", admissible="look") == "a\nlook"
    assert prompts.load("alfworld_react.txt").anchor(observation="a", admissible="look") == "a"
