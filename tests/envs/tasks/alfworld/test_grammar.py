"""Both text forms."""

import pytest

from envs.tasks.alfworld import grammar
from envs.tasks.alfworld.problem import wording


@pytest.mark.parametrize(
    ("form", "arrive", "put"),
    [
        ("move", "You arrive at {r}. {examineReceptacle}", "You move the {o} to the {r}."),
        ("put", "You arrive at {lend}. {examineReceptacle}", "You put the {o} in/on the {r}."),
    ],
)
def test_forms(source, form, arrive, put):
    parsed, goal = grammar.parse(wording(source, form)["grammar"])
    assert goal == "UNKNOWN GOAL."
    assert parsed.form == form
    assert parsed.rules["GotoLocation.feedback"] == (arrive,)
    assert parsed.rules["PutObject.feedback"] == (put,)
    assert (parsed.help is None) == (form == "put")


def test_goal_is_the_only_thing_parsed_anew(source):
    text = wording(source, "move")["grammar"]
    one, goal = grammar.parse(text.replace("UNKNOWN GOAL", 'say \\"hi\\"'))
    assert goal == 'say "hi".'
    assert grammar.parse(text)[0] is one
