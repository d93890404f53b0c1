"""The numbers of `noria bench overlap`: virtual time is exact, so they may be asserted."""

from __future__ import annotations

import pytest

from noria.bench import overlap


@pytest.mark.parametrize("profile", overlap.PROFILES)
def test_a_steady_pass_of_equal_blocks_meets_its_bound(simulate, profile):
    simulate()
    rows = list(overlap.rows([profile], ["equal"]))
    assert len(rows) == 15, "five budgets at three ratios"
    for row in rows:
        assert row.over_bound <= 1.03, row
        assert row.bytes_in <= row.bytes_allowed, row
        assert row.peak_device_bytes <= row.budget_bytes, row
        assert row.host_syncs == 0, row
    simulate()


def test_the_bound_of_equal_blocks_is_the_longer_of_computing_and_copying():
    seconds, sizes = [1.0] * 10, [100] * 10
    assert overlap.least_seconds(seconds, sizes, 1000, 100.0) == pytest.approx(10)
    assert overlap.least_seconds(seconds, sizes, 200, 100.0) == pytest.approx(10)
    # From any block to the ninth after it: one second of it, and 800 bytes at 50 a second that it left no room for.
    assert overlap.least_seconds(seconds, sizes, 200, 50.0) == pytest.approx((1 + 16) * 10 / 9)


def test_the_bound_knows_that_a_slot_in_use_cannot_be_filled():
    assert overlap.least_seconds([1.0] * 4, [100] * 4, 100, 100.0) == pytest.approx(8), "no copy beside a computation"
    assert overlap.least_seconds([1.0, 1.0], [100, 100], 150, 100.0) == pytest.approx(3), "half of each waits"


def test_groups_of_unequal_size_come_near_their_bound(simulate):
    """The bound lets a weight be scattered; the engine keeps it in one piece, and copies some bytes more for that."""
    simulate()
    over = {(row.compute_to_copy, row.budget): row.over_bound for row in overlap.rows(["rtx4090"], ["unet"])}
    assert len(over) == 12
    assert max(over.values()) <= 1.34
    assert sum(value <= 1.08 for value in over.values()) >= 10
    simulate()
