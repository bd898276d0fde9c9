"""Facts, goals and domains."""

import pytest

from envs.tasks.alfworld import pddl
from envs.tasks.alfworld.problem import wording


def test_facts_are_lower_case_and_initial():
    init = "(:init (openable Box_1)\n(inReceptacle A_2 Box_1) (= (distance a b) 3))\n"
    facts, goal = pddl.facts(init + "(:goal (and (p ?x)))")
    assert facts["openable"] == [("box_1",)]
    assert facts["inreceptacle"] == [("a_2", "box_1")]
    assert "p" not in facts
    assert goal == "(:goal (and (p ?x)))"


@pytest.mark.parametrize("kind", pddl.TASK_TYPES)
def test_every_goal_of_the_package_is_read(source, kind):
    goal = source.goals[kind][0].format(obj="Mug", recep="SideTable", toggle="DeskLamp", mrecep="")
    look = kind == "look_at_obj_in_light"
    expected = pddl.Task(kind, "mug", "" if look else "sidetable", "desklamp" if look else "")
    assert pddl.task(goal) == expected


def test_other_goals_are_refused(source):
    goal = source.goals["pick_and_place_with_movable_recep"][0].format(
        obj="Mug", recep="Bed", toggle="", mrecep="Bowl"
    )
    with pytest.raises(ValueError, match="none of the six task types"):
        pddl.task(goal)


def test_domain(source):
    assert pddl.domain(source.domain) == ({"sinkbasin"}, True)
    assert pddl.domain(wording(source, "move")["domain"]) == ({"sinkbasin"}, True)
    assert pddl.domain(wording(source, "put")["domain"]) == ({"sinkbasin"}, False)
    sinks = source.domain.replace(";(receptacleType ?r SinkType)", "(receptacleType ?r SinkType)")
    assert pddl.domain(sinks) == ({"sink", "sinkbasin"}, True)
