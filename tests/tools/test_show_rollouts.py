"""Showing rollouts: the asked-for iteration, outcome and validity."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl import records
from tools.show_rollouts import main


@pytest.fixture
def run(tmp_path: Path) -> Path:
    def turn(words: str, valid: bool) -> dict:
        return {
            "prompt": f"goal\n{words}",
            "response": f"say {words}",
            "valid": valid,
            "alpha": 1.25,
            "reward": 0.0,
        }

    for iteration in (1, 2):
        episodes = [
            {"goal": f"won {iteration}", "success": True, "turns": [turn("shelf", True), turn("desk", True)]},
            {"goal": f"lost {iteration}", "success": False, "turns": [turn("lamp", False)]},
        ]
        records.write_transcript(tmp_path / "transcripts" / f"train_{iteration:05d}.md", episodes)
    row = dict.fromkeys(records.RESPONSE_FIELDS, 0) | {"stop": "stop", "valid": True, "anchor": "room\nA"}
    records.write_responses(
        tmp_path / "responses" / "00002.jsonl.gz", [row, row | {"valid": False, "action": "fly"}]
    )
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "shown", "hidden"),
    [
        ([], ["won 2", "lost 2", "say lamp", "alpha 1.250"], ["won 1"]),
        (["--iteration=1", "--success"], ["won 1", "say desk"], ["lost 1", "won 2"]),
        (["--failure"], ["lost 2", "INVALID"], ["won 2"]),
        (["--invalid"], ["lost 2"], ["won 2"]),
        (["--limit=1"], ["won 2"], ["lost 2"]),
        (["--responses"], ["room A", "fly"], []),
        (["--responses", "--invalid"], ["fly"], ["room A"]),
    ],
)
def test_filters(
    run: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], shown: list[str], hidden: list[str]
) -> None:
    main([str(run), *arguments])
    out = capsys.readouterr().out
    assert [words for words in shown if words not in out] == []
    assert [words for words in hidden if words in out] == []


def test_later_prompts_show_what_is_new(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(run), "--success"])
    assert capsys.readouterr().out.count("│ goal") == 1
    main([str(run), "--success", "--full"])
    assert capsys.readouterr().out.count("│ goal") == 2


def test_nothing_there(run: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no records of iteration 9"):
        main([str(run), "--iteration=9"])
    with pytest.raises(SystemExit, match="no records in"):
        main([str(tmp_path / "none")])
