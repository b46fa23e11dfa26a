"""The mutations of tests/mutations/ still fit the source; its command tries them."""

from conftest import AREAS
from mutations.run import Mutation, mutations


def test_each_can_be_applied_and_names_its_tests() -> None:
    def wrong(mutation: Mutation) -> str:
        try:
            return "" if mutation.applied() else "nothing is left"
        except ValueError as error:
            return str(error)

    every = mutations()
    assert {one.area for one in every} | {"systems"} == {*AREAS}
    assert list(filter(None, map(wrong, every))) == []
