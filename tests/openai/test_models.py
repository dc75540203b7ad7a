"""One list of models out of many."""

from __future__ import annotations

import orjson
import pytest

from stickyroute.errors import NotFound
from stickyroute.openai.models import merge_models

M1_A = {"id": "m1", "object": "model", "max_model_len": 4096, "permission": [{"id": "p"}], "parent": None}
M1_B = {"id": "m1", "object": "model", "max_model_len": 8192, "root": "/models/m1"}
M2_B = {"id": "org/m2", "object": "model"}


def test_a_model_of_several_backends_appears_once_with_all_fields() -> None:
    listing = orjson.loads(merge_models([[M1_A], [M1_B, M2_B]]))
    assert listing == {"object": "list", "data": [{**M1_A, "root": "/models/m1"}, M2_B]}


def test_the_rows_given_are_not_changed() -> None:
    rows = [[{"id": "m"}], [{"id": "m", "root": "/models/m"}]]
    merge_models(rows)
    assert rows == [[{"id": "m"}], [{"id": "m", "root": "/models/m"}]]


def test_a_row_that_cannot_be_written_hides_no_other() -> None:
    deep: object = None
    for _ in range(600):
        deep = [deep]
    rows = [[{"id": "m", "permission": deep}, M2_B]]
    assert orjson.loads(merge_models(rows))["data"] == [{"id": "m", "object": "model"}, M2_B]
    assert orjson.loads(merge_models(rows, only="m")) == {"id": "m", "object": "model"}


def test_no_backend_is_an_empty_list() -> None:
    assert orjson.loads(merge_models([])) == {"object": "list", "data": []}
    assert orjson.loads(merge_models([[], []])) == {"object": "list", "data": []}


def test_rows_without_a_name_are_left_out() -> None:
    assert orjson.loads(merge_models([[{"object": "model"}, {"id": 5}, M2_B]]))["data"] == [M2_B]


@pytest.mark.parametrize("name", ["org/m2", "org%2Fm2", "org%2fm2"])
def test_one_model_by_its_name_as_it_stands_in_a_path(name: str) -> None:
    assert orjson.loads(merge_models([[M1_A], [M1_B, M2_B]], only=name)) == M2_B


@pytest.mark.parametrize("name", ["m3", "M1", "", "%", "m1/"])
def test_an_unknown_model_is_a_404(name: str) -> None:
    with pytest.raises(NotFound) as caught:
        merge_models([[M1_A]], only=name)
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
    assert caught.value.message == f"The model `{name}` does not exist."


def test_the_error_tells_the_model_as_it_was_meant_and_not_at_any_length() -> None:
    with pytest.raises(NotFound, match="The model `org/m9` does not exist"):
        merge_models([[M1_A]], only="org%2Fm9")
    with pytest.raises(NotFound) as caught:
        merge_models([[M1_A]], only="m" * 5000)
    assert caught.value.message == f"The model `{'m' * 100}...` does not exist."
