import jax.numpy as jnp
import numpy as np

from model import cache
from model.config import ModelConfig

CONFIG = ModelConfig(vocab_size=8, width=4, layers=2, heads=2, kv_heads=1, head_size=2, hidden=4)


def filled(rows, length, offset):
    """Position s of row r holds offset + 100 r + s, keys and values alike."""
    value = offset + 100.0 * np.arange(rows)[:, None] + np.arange(length)
    keys = jnp.asarray(np.broadcast_to(value[:, None, None, :], (rows, 1, 2, length)))
    values = jnp.asarray(np.broadcast_to(value[:, None, :, None], (rows, 1, length, 2)))
    return cache.Cache(keys=(keys, keys), values=(values, values))


def rows_of(held):
    for keys, values in zip(held.keys, held.values, strict=True):
        np.testing.assert_array_equal(keys[:, 0, 0], keys[:, 0, 1])
        np.testing.assert_array_equal(keys[:, 0, 0], values[:, 0, :, 0])
    return np.asarray(held.keys[0][:, 0, 0])


def test_merge_touches_only_the_new_positions():
    held, new = filled(4, 6, 0.0), filled(3, 3, 1000.0)
    # Row 2 gets two positions at 1, row 0 one that hangs over the end of the window, row 3 none.
    got = rows_of(cache.merge(held, new, jnp.array([2, 0, 3]), jnp.array([1, 5, 0]), jnp.array([2, 1, 0])))
    want = rows_of(held).copy()
    want[2, 1:3] = [1000, 1001]
    want[0, 5] = 1100
    np.testing.assert_array_equal(got, want)


def test_merge_of_all_rows_fills_to_the_end():
    held, new = filled(2, 4, 0.0), filled(2, 4, 1000.0)
    got = rows_of(cache.merge(held, new, None, jnp.array([0, 1]), jnp.array([4, 3])))
    np.testing.assert_array_equal(got, [[1000, 1001, 1002, 1003], [100, 1100, 1101, 1102]])


def test_view_cuts_rows_and_positions():
    held = filled(3, 5, 0.0)
    np.testing.assert_array_equal(rows_of(cache.view(held, jnp.array([2, 0]), past=2)), [[200, 201], [0, 1]])
    assert rows_of(cache.view(held, None, past=4)).shape == (3, 4)


def test_empty_has_the_config_s_shapes_and_dtype():
    held = cache.empty(CONFIG, slots=3, length=5)
    assert len(held.keys) == 2 and held.length == 5
    assert held.keys[0].shape == (3, 1, 2, 5) and held.values[1].shape == (3, 1, 5, 2)
