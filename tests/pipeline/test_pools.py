"""Which member a lease gets, and when a pool is in a crash loop. Actors that start need a run."""

import pytest

from pipeline import pools
from pipeline.actors import Place
from pipeline.errors import StageError
from pipeline.pools import Member, Pool


@pytest.fixture
def killed(monkeypatch):
    """Handles that were killed."""
    found = []
    monkeypatch.setattr(pools.ray, "kill", found.append)
    return found


def make_pool(*nodes, leases_each=2):
    pool = Pool("Preprocessor", None, leases_each=leases_each, needs="1 CPUs")
    for number, node in enumerate(nodes):
        place = Place(node=node, pid=number)
        pool.members.append(Member(handle=number, start_ref=None, asked_at=0.0, place=place))
    return pool


def test_the_freest_member_is_taken_and_of_equals_one_nearby():
    pool = make_pool("a", "b", "b")
    assert pool.free(near="b").handle == 1
    pool.members[1].leases |= {"1"}
    assert pool.free(near="b").handle == 2
    pool.members[2].leases |= {"2"}
    assert pool.free(near="b").handle == 0
    pool.members[0].leases |= {"3", "4"}
    assert pool.free(near="a").handle == 1
    for member in pool.members:
        member.leases |= {f"{member.handle} 1", f"{member.handle} 2"}
    assert pool.free() is None


def test_a_draining_node_gets_no_new_leases_and_its_members_end_with_their_last(killed):
    pool = make_pool("a", "b")
    pool.members[0].leases.add("open")
    pool.retire_on(["a"])
    assert [pool.free(near="a").handle for _ in range(3)] == [1, 1, 1]
    pool._make = lambda: pytest.fail("asked for more")
    pool.resize(1)
    assert killed == [], "its lease is still open"
    pool.members[0].leases.clear()
    pool.resize(1)
    assert killed == [0]
    assert [member.handle for member in pool.members] == [1]


def test_a_smaller_pool_loses_its_idle_members_first(killed):
    pool = make_pool("a", "a", "a")
    pool.members[0].leases.add("open")
    pool.resize(1)
    assert killed == [1, 2]


def test_deaths_without_a_finished_lease_are_a_crash_loop(killed):
    pool = make_pool(*"a" * 60)
    for _ in range(19):
        pool.lose(pool.members[0], "killed")
    pool.worked()
    for _ in range(19):
        pool.lose(pool.members[0], "killed")
    with pytest.raises(StageError, match=r"die again and again.*the last cause: no such weights"):
        pool.lose(pool.members[0], "no such weights")


def test_four_failed_starts_in_a_row_are_a_crash_loop(killed):
    pool = make_pool(*"aaaa")
    for _ in range(3):
        pool.lose(pool.members[0], "CheckpointError: no such weights", weight=pools._START_FAILURE)
    with pytest.raises(StageError, match="no such weights"):
        pool.lose(pool.members[0], "CheckpointError: no such weights", weight=pools._START_FAILURE)
