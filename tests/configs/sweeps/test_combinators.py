"""Combinators: literal rows, and the laws that let sweeps be read as algebra."""

from __future__ import annotations

import copy

import pytest

from configs.sweeps.combinators import chain, each, fixed, label, paired, product, seeds

A, B, C = each("a", (1, 2)), each("b", ("x", "y")), fixed({"c": True, "d.e": 0.5})


def test_rows() -> None:
    assert A == [{"a": 1}, {"a": 2}]
    assert fixed({"x.y": 3}) == [{"x.y": 3}]
    assert seeds(2, first=3) == [{"seed": 3}, {"seed": 4}]
    assert product(A, B) == [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"}]
    assert paired(A, B) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    assert chain(A, [{"a": 2}, {"a": 3}]) == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert seeds(0) == chain() == paired() == []


def test_product_laws() -> None:
    assert product() == [{}]
    assert product([{}], A) == product(A, [{}]) == A
    assert product([], A) == product(A, []) == []
    assert product(product(A, B), C) == product(A, product(B, C)) == product(A, B, C)
    assert product(chain(A, C), B) == chain(product(A, B), product(C, B))


def test_chain_and_paired_laws() -> None:
    assert chain(A, []) == chain([], A) == chain(A, A) == A
    assert chain(chain(A, B), C) == chain(A, chain(B, C)) == chain(A, B, C)
    assert paired(paired(A, B), seeds(2)) == paired(A, paired(B, seeds(2)))


def test_nothing_changes_in_place() -> None:
    given = [copy.deepcopy(sweep) for sweep in (A, B, C)]
    for made in (product(A, C), chain(A, B), paired(A, B), fixed(C[0])):
        made[0]["a"] = made[0]["new"] = 9
    assert given == [A, B, C]


def test_conflicts() -> None:
    with pytest.raises(ValueError, match="two sweeps set a"):
        product(A, B, each("a", (3,)))
    with pytest.raises(ValueError, match="two sweeps set b"):
        paired(B, B)
    with pytest.raises(ValueError, match=r"\[2, 3\]"):
        paired(A, seeds(3))


def test_label() -> None:
    assert label({"credit.aem.lam": 0.5, "credit.aem.threshold": 0.1}) == "lam=0.5-threshold=0.1"
