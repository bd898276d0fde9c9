import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from sharding import rules
from sharding.mesh import make_mesh

pytestmark = pytest.mark.skipif(len(jax.devices()) < 8, reason="needs 8 (fake) devices")


@pytest.fixture(scope="module")
def mesh():
    return make_mesh(2, 2, 2, jax.devices()[:8])


def test_logical_axes_become_mesh_axes(mesh):
    assert rules.partition(mesh, ("layers", "embed", "heads", "head_size")) == PartitionSpec(
        None, ("fsdp",), ("tensor",), None
    )
    assert rules.partition(mesh, ("batch", None)) == PartitionSpec(("data", "fsdp"), None)
    assert rules.replicated(mesh).is_fully_replicated


def test_what_does_not_divide_is_replicated_and_reported(mesh, caplog):
    caplog.set_level("INFO")
    got = rules.sharding(mesh, ("vocab", "embed"), (7, 8))
    assert got.spec == PartitionSpec(None, ("fsdp",))
    assert "axis 'vocab' of size 7 does not divide by 2 devices" in caplog.text


def test_trees(mesh):
    got = rules.tree_shardings(
        mesh, {"a": ("batch",), "b": (None, "mlp")}, {"a": jnp.zeros(4), "b": jnp.zeros((3, 4))}
    )
    assert got["a"].spec == PartitionSpec(("data", "fsdp"))
    assert got["b"].spec == PartitionSpec(None, ("tensor",))


def test_errors(mesh):
    with pytest.raises(ValueError, match="unknown logical axis='depth'"):
        rules.partition(mesh, ("depth",))
    with pytest.raises(ValueError, match="differ in rank"):
        rules.partition(mesh, ("batch",), (2, 2))


def test_constrain_acts_in_the_context_of_a_mesh_only(mesh):
    x = jnp.arange(8.0)
    assert rules.constrain(x, ("batch",)) is x
    with jax.set_mesh(mesh):
        split = jax.jit(lambda x: rules.constrain(x * 2, ("batch",)))(x)
    assert split.sharding.shard_shape(split.shape) == (2,)
    np.testing.assert_array_equal(split, 2 * np.arange(8))
