"""Responses to actions: a table."""

from __future__ import annotations

import pytest

from envs.parsing import parse, respond

GOOD = "<think>The desk.</think><action>go to desk 1</action>"


@pytest.mark.parametrize(
    ("response", "action", "valid"),
    [
        (GOOD, "go to desk 1", True),
        ("<think>a</think>\n<action>\n Go To Desk 1 \n</action> and so on", "go to desk 1", True),
        ("<action>look</action><think>a</think>", "look", True),  # the order is not asked for
        ("<think>a</think><action>look</action><action>open</action>", "look", True),  # the first counts
        ("<action>look</action>", "look", False),  # no thought
        ("<think>a<action>look</action>", "look", False),
        ("a</think><action>look</action>", "look", False),
        ("<think>去</think><action>look</action>", "look", False),
        ("<think>été</think><action>look</action>", "look", True),  # other scripts are not refused
        ("<think>a</think><action>look", "<think>a</think><action>look", False),  # the last 30 characters
        ("<think>a</think></action>look<action>", "a</think></action>look<action>", False),
        ("I would go to desk 1 and then take the book 2", "esk 1 and then take the book 2", False),
        ("LOOK", "look", False),
        ("", "", False),
        ("<think></think><action></action>", "", True),
    ],
)
def test_tags(response: str, action: str, valid: bool) -> None:
    assert parse(response, mode="tags") == (action, valid)


@pytest.mark.parametrize(
    ("response", "action", "valid"),
    [
        ("go to desk 1", "go to desk 1", True),
        ("  look\n", "look", True),
        ("", "", False),
        (" \n", "", False),
        ("look\nlook", "look\nlook", False),
        ("Look", "Look", True),  # nothing is changed but blanks
    ],
)
def test_plain(response: str, action: str, valid: bool) -> None:
    assert parse(response, mode="plain") == (action, valid)


def test_admissible() -> None:
    for mode, response in (("plain", "go to desk 1"), ("tags", GOOD)):
        assert parse(response, mode=mode, validity="admissible", admissible=["go to desk 1"]).valid
        assert not parse(response, mode=mode, validity="admissible", admissible=["go to desk 2"]).valid
        assert parse(response, mode=mode, validity="format", admissible=[]).valid


def test_tail() -> None:
    assert parse("x" * 50, mode="tags", tail=20).action == "x" * 20


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match="mode='json'"):
        parse("a", mode="json")
    with pytest.raises(ValueError, match="validity='none'"):
        parse("a", mode="plain", validity="none")


@pytest.mark.parametrize("mode", ["tags", "plain"])
def test_a_demonstrated_response_parses_to_its_action(mode: str) -> None:
    assert parse(respond("go to desk 1", mode=mode, thought="a"), mode=mode) == ("go to desk 1", True)
