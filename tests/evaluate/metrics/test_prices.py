"""A price table holds prices that exist, or is refused with the name of the entry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evaluate.metrics import prices


def table(path: Path, price: object) -> Path:
    entry = {"price": price, "date": "2026-05-18", "source": "somebody"}
    path.write_text(json.dumps({"currency": "USD", "prices": {"AMD Instinct MI300X": entry}}))
    return path


@pytest.mark.parametrize("price", [1e-310, 1e-5, 1e10, 1e300, -1.0, True, "1", None, [1]])
def test_a_price_that_gives_no_finite_cost_is_refused(tmp_path: Path, price: object) -> None:
    with pytest.raises(prices.PriceError, match="price of AMD Instinct MI300X: got .*, wanted a number from 0.0001"):
        prices.load(table(tmp_path / "prices.json", price))


@pytest.mark.parametrize("price", [0.01, 2, 350.0, 1e6])
def test_a_price_in_any_currency_is_taken(tmp_path: Path, price: float) -> None:
    assert prices.load(table(tmp_path / "prices.json", price))["AMD Instinct MI300X"].amount == price
