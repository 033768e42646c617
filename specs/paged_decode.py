"""Decode against a paged KV cache: attention of the newest tokens of each sequence to all that it has in the cache.

Q (B, Sq, H, D); K and V in pages, (P, Page, G, D) and (P, Page, G, Dv); H = G R query heads, of which R in a row share
a head of K and V. Key n of sequence b is row n % Page of page table[b, n // Page], for n < lengths[b]: its last Sq keys
are the queries' own tokens, so query i sees the keys n <= lengths[b] - Sq + i (causal, bottom-right aligned). Scores,
softmax, roundings, and rows that see no key are attention's (specs/attention.py). Sizes and lengths from 0.

A page belongs to one sequence at most. What no sequence has in use must not be read: other pages, the rows of a last
page behind its sequence's end (both are NaN), and the entries of the table behind a last page (-1). A contiguous cache
is one page a sequence: Page = Sk, T = 1.

A pool of exactly B T pages is full: every sequence is T Page long. All workloads are so, and the fewest bytes are then
every tensor once; of any other pool the pages in use alone would count.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from rooftest.specs.attention import SCALING, attend
from torch import Tensor

from rooftest.engines import Contract
from rooftest.errorbar import Value
from rooftest.laws import changed
from rooftest.spec import Axis, Law, Spec, Workload, tensor


def reference(given: Mapping[str, Any], params: Mapping[str, float], contract: Contract) -> dict[str, Value]:
    """O and the log-sum-exp before their last rounding: each sequence's keys and values gathered, then attention."""
    q, table, lengths = given["q"], given["table"], given["lengths"]
    held = in_use(table, lengths, given["k_pages"].shape[1])
    k, v = (_gathered(given[name], table, held) for name in ("k_pages", "v_pages"))
    Sq, Sk = q.shape[1], k.shape[1]
    last = lengths.long()[:, None] - Sq + torch.arange(Sq, device=q.device)  # the last key that each query sees
    seen = torch.arange(Sk, device=q.device) <= last[..., None]
    return attend(q, k, v, seen[:, None, None], params, contract)


def in_use(table: Tensor, lengths: Tensor, page: int) -> Tensor:
    """Which rows of the pages that the table names hold a key: (B, T, page)."""
    position = torch.arange(table.shape[1] * page, device=table.device).view(table.shape[1], page)
    return position < lengths[:, None, None]


def _gathered(pages: Tensor, table: Tensor, held: Tensor) -> Tensor:
    """The pages of each sequence one after the other, (B, T page, G, D); zero where nothing is in use."""
    if not len(pages):
        return pages.new_zeros((table.shape[0], held.shape[1] * held.shape[2], *pages.shape[2:]))
    rows = pages[table.clamp(min=0).long()].masked_fill_(~held[..., None, None], 0.0)
    return rows.flatten(1, 2)


def unread(drawn: Mapping[str, Any]) -> Tensor:
    """Where the pool holds nothing that is in use, (P, Page, 1, 1)."""
    count, page = drawn["k_pages"].shape[:2]
    table, held = drawn["table"].long(), in_use(drawn["table"], drawn["lengths"], page)
    used = held.new_zeros((count + 1, page))
    used[torch.where(table < 0, count, table)] = held  # one page more than there are, for entries that name none
    return ~used[:count, :, None, None]


def _lengths(drawn: Mapping[str, Any], sizes: Mapping[str, int], generator: torch.Generator) -> Tensor:
    """Half of them at a page boundary, one key less or one more, as far as the pool has pages."""
    del drawn
    B, P, T, page = (sizes[axis] for axis in ("B", "P", "T", "Page"))
    full = torch.full((B,), T * page, dtype=torch.int32, device=generator.device)
    if P == B * T:
        return full
    whole, near, some, which = torch.rand((4, B), generator=generator, device=generator.device, dtype=torch.float64)
    boundary = (whole * (T + 1)).floor() * page + (near * 3).floor() - 1
    wanted = torch.where(which < 0.5, boundary, (some * (T * page + 1)).floor()).int().clamp(min=0).minimum(full)
    pages = _pages(wanted, page)
    left = (P - (pages.cumsum(0) - pages)).clamp(min=0)
    return wanted.minimum(left * page).int()


def _table(drawn: Mapping[str, Any], sizes: Mapping[str, int], generator: torch.Generator) -> Tensor:
    """Pages in a random order, each to one sequence; -1 behind a sequence's last."""
    order = torch.rand(sizes["P"], generator=generator, device=generator.device).argsort()
    pages = _pages(drawn["lengths"], sizes["Page"])
    slot = torch.arange(sizes["T"], device=generator.device)
    number = (pages.cumsum(0) - pages)[:, None] + slot
    held = slot < pages[:, None]
    order = torch.cat([order, order.new_full((1,), -1)])
    return order[torch.where(held, number, sizes["P"])].int()


def _pages(lengths: Tensor, page: int) -> Tensor:
    return (lengths + page - 1) // page


def _reversed(given: dict[str, Any]) -> dict[str, Any]:
    """The same cache with its pages numbered from the other end."""
    table = given["table"]
    pages = {name: given[name].flip(0) for name in ("k_pages", "v_pages")}
    return {**given, **pages, "table": torch.where(table < 0, table, len(pages["k_pages"]) - 1 - table)}


LAWS = (
    *SCALING,
    Law("pages", "where a sequence's pages lie in the pool changes no bit", _reversed, changed),
)


def flop(s: SimpleNamespace) -> int:
    """Two products of each query with T Page keys: 4 B H Sq KV D where D = Dv; the mask spares Sq / 2 keys."""
    return 2 * s.B * s.G * s.R * s.Sq * s.T * s.Page * (s.D + s.Dv)


def _workload(B: int, keys: int, *, smoke: bool = False) -> Workload:
    """Llama-3.1-8B's heads, one new token a sequence, pages of 64 keys."""
    T = keys // 64
    sizes = {"B": B, "Sq": 1, "P": B * T, "T": T, "Page": 64, "G": 8, "R": 4, "D": 128, "Dv": 128}
    return Workload(f"llama-3.1-8b-b{B}-kv{keys // 1024}k", sizes, "nnn", smoke=smoke)


SPEC = Spec(
    op="paged_decode",
    version=1,
    axes={
        "B": Axis(0, 65535, few=3),
        "Sq": Axis(1, 4),
        "P": Axis(0, 2**24, short=24),  # as many as 3 sequences of 8 pages need
        "T": Axis(0, 2**20, short=8),
        "Page": Axis(1, 2**20),
        "G": Axis(1, 1024, few=3),
        "R": Axis(1, 128, few=8),
        "D": Axis(1, 256),
        "Dv": Axis(1, 256),
    },
    inputs={
        "q": tensor("B Sq G*R D"),
        "k_pages": tensor("P Page G D", unread=unread),
        "v_pages": tensor("P Page G Dv", unread=unread),
        "lengths": tensor("B", precision="int32", values=_lengths),
        "table": tensor("B T", precision="int32", values=_table),
    },
    params={"scale": (0.0, 0.125, 0.3, 1.0)},  # 0 stands for 1 / sqrt(D)
    outputs={"o": tensor("B Sq G*R Dv"), "lse": tensor("B G*R Sq", optional=True, precision="float32")},
    layouts=("nnn",),
    laid_out=("q", "k_pages", "v_pages"),
    contraction="D",
    independent="B",
    tokens=("B", "Sq"),
    precisions=("float32", "float16", "bfloat16"),
    unfit=("specials",),  # as of attention
    reference=reference,
    flop=flop,
    workloads=(_workload(32, 4096, smoke=True), _workload(32, 32768), _workload(1, 32768)),
    laws=LAWS,
    peers={},
)
