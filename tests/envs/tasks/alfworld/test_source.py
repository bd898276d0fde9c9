"""The package as data: wheel and directory, rooms, ids."""

import zipfile
from pathlib import Path

import pytest

from envs.tasks.alfworld.source import ROOMS, entity, location, read_source, source_path


def test_ids():
    assert entity("Mug", 1.839, 0.7949, -1.15) == "Mug|+01.84|+00.79|-01.15"
    assert location(0.75, -1.25, 270, 30) == "loc|3|-5|3|30"
    assert location(0.0, 0.25, 360, -30) == "loc|0|1|0|-30"


def test_rooms(source):
    assert len(source.scenes) == 120
    for number, scene in source.scenes.items():
        assert number in ROOMS[scene.room]
        assert len({fixture.id for fixture in scene.fixtures}) == len(scene.fixtures)
        assert {fixture.kind for fixture in scene.fixtures} <= set(source.contains)
        assert scene.starts
        assert not {fixture.location for fixture in scene.fixtures} & set(scene.starts)
        assert {"Fridge", "Microwave", "SinkBasin", "StoveBurner"} <= {f.kind for f in scene.fixtures} or (
            scene.room != "kitchen"
        )


def test_a_known_room(source):
    scene = source.scenes[301]
    assert scene.lamps
    bed = next(fixture for fixture in scene.fixtures if fixture.kind == "Bed")
    assert bed.id == "Bed|-00.64|+00.00|+00.87"
    assert bed.location == "loc|3|5|3|30"
    # The plan names a garbage can but does not place it.
    assert sum(fixture.kind == "GarbageCan" for fixture in scene.fixtures) == 1
    assert {"AlarmClock", "Pillow"} <= set(scene.movables)
    assert not {"Bed", "DeskLamp", "Window"} & set(scene.movables)


def test_what_lies_where(source):
    assert "Mug" in source.contains["SideTable"]
    assert source.contains["SideTable"] == source.contains["DiningTable"]  # one table in the package
    assert "Bowl" not in source.contains  # a receptacle that is carried
    assert source.actions["Heatable"] >= {"Apple", "Mug"}
    assert source.openable == {"Fridge", "Cabinet", "Microwave", "Drawer", "Safe", "Box"}
    assert source.goals["pick_and_place_simple"][1] == ("put a {obj} in {recep}", "put some {obj} on {recep}")


def test_wheel_and_directory_hold_the_same(alfworld_source, tmp_path):
    if not Path(alfworld_source).is_file():
        pytest.skip(f"{alfworld_source} is a directory: alfworld is installed")
    with zipfile.ZipFile(alfworld_source) as archive:
        names = [name for name in archive.namelist() if "/gen/" in name or "/data/" in name]
        archive.extractall(tmp_path, [name for name in names if name.startswith("alfworld/")])
    wheel = read_source(alfworld_source)
    assert read_source(source_path(tmp_path)) == wheel
    assert read_source(source_path(tmp_path / "alfworld")) == wheel


def test_what_is_neither_is_refused(tmp_path):
    with pytest.raises(ValueError, match="neither an alfworld wheel nor its package directory"):
        read_source(str(tmp_path))
