"""For which series of a GPU the merge gate could fail nothing, by the A/A pairs that a store keeps beside its runs."""

from __future__ import annotations

from pathlib import Path

from rooftest import devices
from rooftest.gate import rule
from rooftest.gate.spread import Store, covariates
from rooftest.options import Options
from rooftest.web.runs import Card


def unarmed(place: str, card: Card) -> dict[str, str]:
    """Why, in a few words, by the series timed in the last runs, at the budget that is usual.

    Empty where a store keeps no pairs of this GPU at all: nobody compares there. Raises UsageError for pairs that can't
    be read.
    """
    found = devices.match(str(card.gpu.get("name")), card.gpu.get("cc"))
    folder = Path(place) / "spread" / f"{found.key if found else ''}-{card.uuid}"
    if found is None or not folder.is_dir():
        return {}
    pairs, why = Store(folder.parent, folder.name), {}
    for record in card.timed:
        told = record["extra_info"]
        driver = (told.get("covariates") or {}).get("driver")
        regime = (told.get("id") or {}).get("regime", "burst")
        spread = pairs.sigma(record["series"], covariates(driver, told["timing"]["timer"], regime))
        limits = rule.limits(Options.budget, spread.sigma, spread.nu, why=spread.reason)
        if limits.armed:
            continue
        known = spread.nu + 1 if spread.nu else 0
        few = known <= rule.NU
        why[record["series"]] = f"gate: {known} of {rule.NU + 1} A/A pairs" if few else f"gate: {limits.reason}"
    return why
