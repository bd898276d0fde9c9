import jax
import numpy as np
import pytest

from sharding import multihost, transfer
from sharding.mesh import make_mesh

pytestmark = pytest.mark.skipif(len(jax.devices()) < 8, reason="needs 8 (fake) devices")


def test_round_trip_with_one_rule_for_all_leaves():
    mesh = make_mesh(2, 2, 2, jax.devices()[:8])
    tree = {"tokens": np.arange(32).reshape(8, 4), "rows": np.arange(4.0), "scalar": np.float32(3)}
    placed = transfer.to_device(tree, mesh, ("batch", "length"))
    assert placed["tokens"].sharding.shard_shape((8, 4)) == (2, 4)
    assert placed["rows"].sharding.shard_shape((4,)) == (1,)
    assert placed["scalar"].sharding.is_fully_replicated
    back = transfer.to_host(placed)
    jax.tree.map(np.testing.assert_array_equal, back, tree)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(back))


def test_a_tree_of_axes():
    mesh = make_mesh(1, 4, 2, jax.devices()[:8])
    tree = {"w": np.ones((8, 4)), "b": np.ones(3)}
    placed = transfer.to_device(tree, mesh, {"w": ("embed", "mlp"), "b": (None,)})
    assert placed["w"].sharding.shard_shape((8, 4)) == (2, 2)
    assert placed["b"].sharding.is_fully_replicated


def test_one_process_writes():
    assert multihost.is_writer() and multihost.process() == (0, 1)
    multihost.barrier("alone")
