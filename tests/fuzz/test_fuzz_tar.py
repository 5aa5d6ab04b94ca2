"""A short run of the tar fuzzer; `python -m tests.fuzz.fuzz_tar --minutes 10` is a long one."""

from collections import Counter

from tests.fuzz.fuzz_tar import make_property


def test_reader_keeps_its_promises_on_archives_that_are_almost_right():
    outcomes = Counter()
    make_property(300, outcomes)()
    assert {"whole, as tarfile reads it", "cut", "corrupt"} <= set(outcomes)
