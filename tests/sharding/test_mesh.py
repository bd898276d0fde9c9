import jax
import pytest

from sharding.mesh import AXES, make_mesh

pytestmark = pytest.mark.skipif(len(jax.devices()) < 8, reason="needs 8 (fake) devices")


def test_axes_and_sizes():
    mesh = make_mesh(2, 2, 2, jax.devices()[:8])
    assert mesh.axis_names == AXES == ("data", "fsdp", "tensor")
    assert dict(mesh.shape) == {"data": 2, "fsdp": 2, "tensor": 2}
    assert make_mesh(1, 1, 1, jax.devices()[:1]).size == 1


def test_one_size_may_be_left_open():
    assert dict(make_mesh(-1, 1, 2, jax.devices()[:8]).shape) == {"data": 4, "fsdp": 1, "tensor": 2}


@pytest.mark.parametrize("sizes", [(3, 1, 1), (-1, 3, 1), (-1, -1, 2), (0, 1, 8), (-1, 0, 1)])
def test_sizes_that_do_not_fit(sizes):
    data, fsdp, tensor = sizes
    with pytest.raises(ValueError, match=r"config\.mesh|at most one"):
        make_mesh(data, fsdp, tensor, jax.devices()[:8])
