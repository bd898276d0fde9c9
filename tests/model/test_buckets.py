from model.buckets import Buckets, groups, round_up


def test_the_largest_sizes_are_always_there():
    got = Buckets(rows=(8, 100), widths=(16,), pasts=()).complete(slots=64, length=32)
    assert got == Buckets(rows=(8, 64), widths=(16, 32), pasts=(0, 32))
    assert [round_up(n, got.widths) for n in (1, 16, 17, 32)] == [16, 16, 32, 32]


def test_groups_split_unlike_widths_only_where_it_pays():
    buckets = Buckets(rows=(8, 64), widths=(16, 128), pasts=()).complete(slots=64, length=512)
    widths = [10] * 60 + [100] * 3
    assert groups(list(range(63)), widths, buckets) == [list(range(60)), [60, 61, 62]]
    assert groups([0, 60], widths, buckets) == [[0, 60]] or len(groups([0, 60], widths, buckets)) == 2
    assert groups([], [], buckets) == []
    flat = sorted(i for group in groups([5, 62, 1], widths, buckets) for i in group)
    assert flat == [1, 5, 62]
