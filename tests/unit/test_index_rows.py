"""Rows by id and the keys of rows behave like a dictionary and a list, after any history."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from citewell.index.ids import Keys, RowsById

# Few different low halves, so that ids meet in the table.
ids = st.builds(lambda high, low: UUID(int=(high << 64) | low), st.integers(0, 40), st.integers(0, 3))


@given(st.lists(st.tuples(ids, st.booleans()), max_size=300))
def test_rows_by_id_are_a_dictionary(history: list[tuple[UUID, bool]]) -> None:
    table, expected, free, most = RowsById(), dict[UUID, int](), list[int](), 0
    for id_, kept in history:
        assert table.get(id_) == expected.get(id_)
        if not kept:
            row = expected.pop(id_, None)
            assert table.pop(id_) == row
            free += [] if row is None else [row]
        elif id_ not in expected:
            if free:
                row = free.pop()
            else:
                row, most = most, most + 1
            table.add(id_, row)
            expected[id_] = row
        assert len(table) == len(expected)
    assert {id_: table.get(id_) for id_ in expected} == expected
    assert all(table.id(row) == id_ for id_, row in expected.items())


def test_many_rows_by_id() -> None:
    table = RowsById()
    numbers = [UUID(int=number * 0x9E3779B97F4A7C15 % (1 << 128)) for number in range(20_000)]
    for row, id_ in enumerate(numbers):
        table.add(id_, row)
        if row % 3 == 0:
            assert table.pop(id_) == row
    assert [table.get(id_) for id_ in numbers] == [None if row % 3 == 0 else row for row in range(20_000)]


@given(st.lists(st.tuples(st.integers(0, 5), st.text(max_size=8)), max_size=60))
def test_keys_are_a_list(history: list[tuple[int, str]]) -> None:
    keys, expected = Keys(), dict[int, str]()
    for row, key in history:
        keys.put(row, key)
        expected[row] = key
        assert {each: keys[each] for each in expected} == expected
