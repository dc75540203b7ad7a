"""When a watched file counts as changed."""

from __future__ import annotations

import os
from pathlib import Path

from stickyroute.watch.files import FileWatch


def looks(watch: FileWatch, count: int) -> list[bool]:
    return [watch.changed() for _ in range(count)]


def test_a_change_is_told_once_and_when_it_stands_still(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("one")
    watch = FileWatch(path)
    assert looks(watch, 2) == [False, False]
    path.write_text("two, longer")
    assert looks(watch, 1) == [False]
    path.write_text("three, longer still")
    assert looks(watch, 3) == [False, True, False]


def test_another_file_in_its_place_is_a_change_whatever_its_times_and_size(tmp_path: Path) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    path.write_text("one")
    other.write_text("two")
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    watch = FileWatch(path)
    os.replace(other, path)
    assert looks(watch, 3) == [False, True, False]


def test_going_and_coming_back_are_changes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    watch = FileWatch(path)
    path.write_text("one")
    assert looks(watch, 3) == [False, True, False]
    path.unlink()
    assert looks(watch, 3) == [False, True, False]


def test_a_change_that_was_taken_back_is_none(tmp_path: Path) -> None:
    path, kept = tmp_path / "file", tmp_path / "kept"
    path.write_text("one")
    watch = FileWatch(path)
    os.rename(path, kept)
    assert not watch.changed()
    os.rename(kept, path)
    assert True not in looks(watch, 1), "it has to stand still first"


def test_several_files_and_none(tmp_path: Path) -> None:
    first, second = tmp_path / "cert", tmp_path / "key"
    first.write_text("one")
    second.write_text("one")
    watch = FileWatch(first, second)
    second.write_text("another")
    assert looks(watch, 3) == [False, True, False]
    assert looks(FileWatch(), 3) == [False, False, False]
