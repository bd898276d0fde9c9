"""The device mesh: three named axes, whatever the number of devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

AXES = ("data", "fsdp", "tensor")


def make_mesh(data: int, fsdp: int, tensor: int, devices: Sequence[Any] | None = None) -> Mesh:
    """Mesh with axes ("data", "fsdp", "tensor"): batches are split over data and fsdp, parameters over fsdp,
    heads, feed-forward and vocabulary over tensor.

    One of the three sizes may be -1: it takes the devices that are left. `devices` defaults to all of them.
    Raises ValueError where the product is not the number of devices.
    """
    devices = list(jax.devices() if devices is None else devices)
    sizes = [data, fsdp, tensor]
    if sizes.count(-1) > 1:
        raise ValueError(f"at most one of {data=}, {fsdp=}, {tensor=} may be -1")
    if -1 in sizes:
        known = -int(np.prod(sizes))
        if known <= 0 or len(devices) % known:
            raise ValueError(
                f"{len(devices)} devices do not divide by {data=} {fsdp=} {tensor=}; set config.mesh"
            )
        sizes[sizes.index(-1)] = len(devices) // known
    if min(sizes) < 1 or int(np.prod(sizes)) != len(devices):
        raise ValueError(f"{data=} * {fsdp=} * {tensor=} must equal {len(devices)} devices; set config.mesh")
    # Auto: the compiler places what the rules do not name.
    return Mesh(np.asarray(devices).reshape(sizes), AXES, axis_types=(AxisType.Auto,) * len(AXES))
