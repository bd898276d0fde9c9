"""Prompt templates: text files with named slots, checked when loaded, rendered to the texts of a turn.

A template file is a sequence of sections, each opened by a line `[name]`; lines before the first section are comments.
`{slot}` stands for a value, `{{` and `}}` for braces. A line that holds one slot and nothing else vanishes together
with its line end when the value is empty.

  [system]              the system message, may be empty                                (no slots)
  [step]                a whole prompt with a bounded history          goal*, observation*, history*, step, admissible
  [history]             the value of {history}; "" when no entry is left     entries*, history_length, previous_steps
  [entry]               one earlier turn, one a line                                observation*, action*, index
  [conversation.first]  first user turn of an append-only conversation              goal*, observation*, admissible
  [conversation.turn]   each later user turn                                        observation*, goal, step, admissible
  [blind]               what is left of a prompt without goal and history           observation*, admissible
  [blind.goal]          without the goal only                          observation*, history*, step, admissible
  [blind.history]       without the history only                       goal*, observation*, step, admissible
  [anchor]              the state that two turns must share to be compared          observation*, admissible

Starred slots must appear; a slot that is not listed is an error. That `blind` and `anchor` cannot name the goal, the
history or the step count is what makes them blind; the task has to keep the goal out of the observation too. The other
two are STAPO's ablations of what is hidden.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Sequence
from pathlib import Path

MASKS = ("both", "goal", "history")  # what a blind text leaves out
DIRECTORY = Path(__file__).parent / "templates"

# section -> (slots that must appear, slots that may)
SECTIONS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "system": (frozenset(), frozenset()),
    "step": (frozenset({"goal", "observation", "history"}), frozenset({"step", "admissible"})),
    "history": (frozenset({"entries"}), frozenset({"history_length", "previous_steps"})),
    "entry": (frozenset({"observation", "action"}), frozenset({"index"})),
    "conversation.first": (frozenset({"goal", "observation"}), frozenset({"admissible"})),
    "conversation.turn": (frozenset({"observation"}), frozenset({"goal", "step", "admissible"})),
    "blind": (frozenset({"observation"}), frozenset({"admissible"})),
    "blind.goal": (frozenset({"observation", "history"}), frozenset({"step", "admissible"})),
    "blind.history": (frozenset({"goal", "observation"}), frozenset({"step", "admissible"})),
    "anchor": (frozenset({"observation"}), frozenset({"admissible"})),
}


class Template:
    """A checked template file. Every method returns text; `step` counts from 1."""

    def __init__(self, text: str, *, name: str):
        self.name = name
        self._sections: dict[str, str] = {}
        self._lines: dict[str, frozenset[str]] = {}  # section -> slots that stand alone on a line
        for section, body in _split(text, name=name).items():
            self._check(section, body)
            self._sections[section], self._lines[section] = _collapse(body)
        self.system = self._render("system")

    def step_prompts(
        self, *, goal: str, history: Sequence[tuple[str, str]], step: int, observation: str, admissible: str
    ) -> tuple[str, ...]:
        """Prompts with the last len(history), ..., 1, 0 of `history`: (observation, action) pairs, oldest first."""
        return tuple(
            self._render(
                "step",
                goal=goal,
                history=self._past(history[dropped:], step),
                step=str(step),
                observation=observation,
                admissible=admissible,
            )
            for dropped in range(len(history) + 1)
        )

    def conversation_prompt(self, *, goal: str, step: int, observation: str, admissible: str) -> str:
        """The user turn that is appended at `step`."""
        if step == 1:
            return self._render(
                "conversation.first", goal=goal, observation=observation, admissible=admissible
            )
        return self._render(
            "conversation.turn", goal=goal, step=str(step), observation=observation, admissible=admissible
        )

    def blind(
        self,
        *,
        masked: str,
        goal: str,
        history: Sequence[tuple[str, str]],
        step: int,
        observation: str,
        admissible: str,
    ) -> str:
        """The text of a turn without what `masked` names: "both", "goal" or "history"."""
        seen = {"observation": observation, "admissible": admissible}
        if masked == "both":
            return self._render("blind", **seen)
        if masked == "goal":
            return self._render("blind.goal", history=self._past(history, step), step=str(step), **seen)
        if masked == "history":
            return self._render("blind.history", goal=goal, step=str(step), **seen)
        raise ValueError(f"unknown {masked=}; known: {', '.join(MASKS)}")

    def anchor(self, *, observation: str, admissible: str) -> str:
        return self._render("anchor", observation=observation, admissible=admissible)

    def _past(self, history: Sequence[tuple[str, str]], step: int) -> str:
        """The value of {history}: `history` are the last turns before `step`."""
        if not history:
            return ""
        entries = [
            self._render("entry", observation=seen, action=action, index=str(step - len(history) + offset))
            for offset, (seen, action) in enumerate(history)
        ]
        return self._render(
            "history",
            entries="\n".join(entries),
            history_length=str(len(history)),
            previous_steps=str(step - 1),
        )

    def _render(self, section: str, **values: str) -> str:
        for slot in self._lines[section]:
            if values[slot]:
                values[slot] += "\n"
        return self._sections[section].format_map(values).removesuffix("\n")

    def _check(self, section: str, body: str) -> None:
        required, allowed = SECTIONS[section]
        slots: set[str] = set()
        try:
            for _, slot, spec, conversion in string.Formatter().parse(body):
                if slot is not None:
                    slots.add(slot)
                    if spec or conversion:
                        raise ValueError(f"slot {{{slot}}} takes no format or conversion")
        except ValueError as error:
            raise ValueError(f"template {self.name!r} [{section}]: {error}") from error
        if unknown := slots - required - allowed:
            known = ", ".join(sorted(required | allowed)) or "none"
            raise ValueError(
                f"template {self.name!r} [{section}]: unknown slots {sorted(unknown)}; known: {known}"
            )
        if missing := required - slots:
            raise ValueError(f"template {self.name!r} [{section}]: missing slots {sorted(missing)}")


@functools.lru_cache(maxsize=32)
def load(name: str) -> Template:
    """Returns the template in file `name` of envs/templates, or at a path of your own (one with a slash)."""
    path = Path(name) if "/" in name else DIRECTORY / name
    if not path.is_file():
        known = ", ".join(sorted(found.name for found in DIRECTORY.glob("*.txt")))
        raise ValueError(f"no template {name!r}; known: {known}; set config.env.settings.template")
    return Template(path.read_text(encoding="utf-8"), name=name)


def _split(text: str, *, name: str) -> dict[str, str]:
    """Sections by name, without the blank lines at their ends."""
    sections: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in text.splitlines():
        title = line.strip()
        if title.startswith("[") and title.endswith("]") and title[1:-1] in SECTIONS:
            if title[1:-1] in sections:
                raise ValueError(f"template {name!r}: section {title} appears twice")
            current = sections[title[1:-1]] = []
        elif title.startswith("[") and title.endswith("]") and title[1:-1].replace(".", "").isidentifier():
            raise ValueError(f"template {name!r}: unknown section {title}; known: {', '.join(SECTIONS)}")
        elif current is not None:
            current.append(line)
    if missing := SECTIONS.keys() - sections.keys():
        raise ValueError(f"template {name!r}: missing sections {sorted(missing)}")
    return {title: "\n".join(lines).strip("\n") for title, lines in sections.items()}


def _collapse(body: str) -> tuple[str, frozenset[str]]:
    """Body without the line ends of lone slots, and those slots: their values bring the line end when not empty."""
    lines = body.split("\n")
    alone = {
        line[1:-1]
        for line in lines
        if line.startswith("{") and line.endswith("}") and line[1:-1].isidentifier()
    }
    # A slot used inside a sentence too cannot bring a line end along.
    alone = {slot for slot in alone if body.count("{" + slot + "}") == 1}
    joined = "".join(line if line[1:-1] in alone and line.startswith("{") else line + "\n" for line in lines)
    return joined, frozenset(alone)
