"""Paged decode: what is drawn for it is a valid cache, its kernel is right in the forms that no case has, faults show.

`TRITON_INTERPRET=1 python tests/test_paged_decode.py` calls the kernel in a process of its own, because the interpreter
is chosen when triton is imported, and prints errors over what is allowed as JSON.
"""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from zlib import crc32

import pytest
import torch
from hypothesis import given, seed, settings
from rooftest_kernels.attention import decode

from rooftest import alone, closures, problem, profiles, rungs, strategies
from rooftest.bench import ARENA_BYTES, Bench
from rooftest.case import Case
from rooftest.fresh import Fresh
from rooftest.process import KernelError, Signature
from rooftest.rows import parse_row
from rooftest.spec import STRIDES, load

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
SPEC = load("paged_decode")
SIZES = {"B": 3, "Sq": 2, "P": 11, "T": 4, "Page": 5, "G": 2, "R": 3, "D": 8, "Dv": 6}
SOURCE = Path(decode.__file__)


def case(**kwargs):
    sizes = SIZES | kwargs.pop("sizes", {})
    return Case("paged_decode", "k", "bfloat16", "nnn", sizes, **kwargs)


@pytest.mark.parametrize("sizes", [{}, {"P": 0}, {"T": 0}, {"B": 0}, {"Page": 1, "P": 40}, {"P": 12}, {"B": 1, "P": 4}])
def test_each_page_is_one_sequence_s_and_nan_but_for_its_keys(sizes):
    for number in range(20):
        drawn = problem.draw(SPEC, case(sizes=sizes, seed=number), "cpu")
        table, lengths, page = drawn["table"], drawn["lengths"].tolist(), (SIZES | sizes)["Page"]
        read = torch.zeros(drawn["k_pages"].shape[:2], dtype=torch.bool)
        for row, length in zip(table, lengths, strict=True):
            held = row[: -(-length // page)].tolist()
            assert 0 <= length <= len(row) * page
            assert row[len(held) :].eq(-1).all()
            for n in range(length):
                assert not read[held[n // page], n % page]
                read[held[n // page], n % page] = True
        for name in ("k_pages", "v_pages"):
            assert torch.equal(drawn[name].isnan().any(-1).any(-1), ~read)
            assert torch.equal(drawn[name].isnan().all(-1).all(-1), ~read)
        if (SIZES | sizes)["P"] == table.numel():
            assert set(lengths) <= {table.shape[1] * page}


def test_lengths_are_often_those_of_a_page_one_less_or_one_more_and_sometimes_0():
    drawn = [problem.draw(SPEC, case(seed=n), "cpu")["lengths"] for n in range(200)]
    rest = torch.cat(drawn) % SIZES["Page"]
    assert all((rest == r).float().mean() > 0.15 for r in (0, 1, 4))
    assert sum(bool((lengths == 0).any()) for lengths in drawn) > 20


@pytest.mark.parametrize("device", ["interpreter", "cuda:0"])
def test_sequences_of_several_pages_are_drawn_on_every_device_and_fit_the_memory(device):
    table = {"op": "paged_decode", "call": "m:f", "strides": STRIDES, "claims": ["deterministic"]}
    signature = Signature(tuple(SPEC.inputs), tuple(SPEC.inputs), (), returns=True)
    bench = SimpleNamespace(row=parse_row("k", table, "test"), spec=SPEC, signature=signature, device=device)
    seen = []

    @settings(max_examples=300, database=None, deadline=None, derandomize=True)
    @given(strategies.cases(bench, "contract", "float32", "nnn"))
    def run(drawn):
        seen.append(drawn.sizes)
        assert 2 * problem.lay_out(SPEC, drawn).span_bytes <= ARENA_BYTES["cuda" if device == "cuda:0" else "cpu"]

    run()
    assert {s["T"] for s in seen} == set(range(9))
    assert max(s["P"] for s in seen) == 24
    assert {1, 8, 16, 32} <= {s["Page"] for s in seen}
    assert sum(s["P"] == s["B"] * s["T"] > 0 for s in seen) > 5  # a full pool


@pytest.mark.parametrize("kind", STRIDES)
def test_a_table_is_strided_like_any_tensor_and_never_repeats(kind):
    drawn = case(stride=kind, sizes={"P": 12})
    placed = {p.name: p for p in problem.lay_out(SPEC, drawn).inputs}
    strides = {"padded": (16, 1), "ragged": (7, 1), "stepped": (8, 2), "transposed": (1, 3)}
    assert placed["table"].dtype == "int32"
    assert placed["table"].stride == strides.get(kind, (4, 1))
    assert placed["table"].offset_bytes % problem.ALIGN_BYTES == (4 if kind == "offset" else 0)
    assert placed["lengths"].stride == ((2,) if kind == "stepped" else (1,))
    assert (placed["k_pages"].stride[0] == 0) == (kind == "broadcast")


def test_gaps_between_integers_are_minus_1_where_each_tensor_lies_alone():
    drawn = case(stride="stepped")
    placed = alone.place(problem.lay_out(SPEC, drawn).placements, problem.draw(SPEC, drawn, "cpu"), "cpu")
    for name, gap in (("table", -1), ("q", math.nan)):
        tensor = placed[name]
        between = tensor.as_strided(tensor.shape[-1:], (2,), 0)[:-1].as_strided((tensor.shape[-1] - 1,), (2,), 1)
        assert torch.equal(between.double().nan_to_num(7), torch.full((len(between),), gap).double().nan_to_num(7))


def test_what_repeats_has_no_part_that_must_not_be_read():
    drawn = problem.draw(SPEC, case(stride="k_pages:broadcast"), "cpu")
    assert not drawn["k_pages"].isnan().any()
    assert drawn["v_pages"].isnan().any()


def test_the_fewest_bytes_are_the_cache_once():
    for load_ in SPEC.workloads:
        s = load_.sizes
        assert s["P"] == s["B"] * s["T"]
        keys = s["B"] * s["T"] * s["Page"]
        small = s["B"] * s["G"] * s["R"] * 128 * 2
        read, written = SPEC.least_bytes(s, "bfloat16")
        assert (read, written) == (keys * s["G"] * 256 * 2 + small + 4 * s["B"] * (s["T"] + 1), small)
        assert SPEC.flop_of(s) == 4 * keys * s["G"] * s["R"] * 128


def test_contents_that_change_between_timed_calls_stay_a_valid_cache():
    request = {"op": "paged_decode", "row": "k", "dtype": "bfloat16", "layout": "nnn", "workload": SIZES | {"P": 12}}
    inputs = closures.tensors(SPEC, "cpu", request)
    before = inputs["table"].clone()
    fresh = Fresh(inputs, {}, "k", dict)
    fresh.renew("k")
    assert not torch.equal(inputs["table"], before)
    assert sorted(inputs["table"].flatten().tolist()) == list(range(12))
    assert inputs["lengths"].tolist() == [20, 20, 20]
    assert not any(tensor.isnan().any() for tensor in inputs.values())


# --- the kernel ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"q": torch.zeros(4, 8)}, "q has 2 dimensions"),
        ({"v_pages": torch.zeros(3, 5, 2, 8).half()}, "one dtype of"),
        ({"k_pages": torch.zeros(3, 5, 2, 9)}, r"k_pages has shape \(3, 5, 2, 9\)"),
        ({"k_pages": torch.zeros(3, 5, 3, 8), "v_pages": torch.zeros(3, 5, 3, 8)}, "4 heads and v_pages 3"),
        ({"v_pages": torch.zeros(3, 5, 2, 257)}, "Dv is 257"),
        ({"out": torch.zeros(2, 1, 4, 9)}, "out has shape"),
        ({"lse": torch.zeros(2, 1, 4)}, "lse has shape"),
        ({"lse": torch.zeros(2, 4, 1).half()}, "lse is torch.float16"),
        ({"table": torch.zeros(1, 3, dtype=torch.int32)}, "table has shape"),
        ({"table": torch.zeros(2, 3, dtype=torch.int64)}, "table is torch.int64"),
        ({"lengths": torch.zeros(3, dtype=torch.int32)}, "lengths has shape"),
        ({"table": torch.zeros(2, 1, dtype=torch.int32).expand(2, 2**28)}, "at most"),
    ],
)
def test_what_does_not_fit_is_an_error(change, reason):
    call = {
        "q": torch.zeros(2, 1, 4, 8), "k_pages": torch.zeros(3, 5, 2, 8), "v_pages": torch.zeros(3, 5, 2, 8),
        "table": torch.zeros(2, 3, dtype=torch.int32), "lengths": torch.zeros(2, dtype=torch.int32),
        "out": torch.zeros(2, 1, 4, 8),
    }  # fmt: skip
    with pytest.raises(ValueError, match=reason):
        decode.decode(**(call | change))


@pytest.mark.parametrize("programs", [1, 8, 255, 256, 300, 4000])
@pytest.mark.parametrize("tiles", [0, 1, 7, 512])
def test_parts_are_the_fewest_that_keep_a_gpu_nearly_as_busy_as_it_could_be(programs, tiles):
    def busy(splits):
        waves = programs * splits / (132 * decode.PROGRAMS_PER_SM)
        return waves / math.ceil(waves)

    best = max(map(busy, range(1, max(1, min(tiles, decode.MOST_SPLITS)) + 1)))
    splits = decode.pick_splits(programs, tiles, 132)
    assert busy(splits) >= 0.9 * best
    assert all(busy(fewer) < 0.9 * best for fewer in range(1, splits))


def forms():
    """Errors over what is allowed: one token without its axis; a contiguous cache; other splits; and one key fewer."""
    generator = torch.Generator().manual_seed(1)
    B, H, G, D, Sk = 2, 6, 2, 16, 70
    q, k, v = (torch.randn(shape, generator=generator) for shape in ((B, H, D), (B, Sk, G, D), (B, Sk, G, D)))
    lengths, table = torch.tensor([Sk, 33]), torch.tensor([[0], [1]], dtype=torch.int32)
    call = {"k_pages": k, "v_pages": v, "table": table, "lengths": lengths.int()}
    call = {name: tensor.to(DEVICE) for name, tensor in call.items()}
    scores = torch.einsum("bgrd,bngd->bgrn", q.double().view(B, G, -1, D), k.double()) / D**0.5
    scores = scores.masked_fill(torch.arange(Sk) >= lengths[:, None, None, None], float("-inf"))
    want = torch.einsum("bgrn,bngd->bgrd", scores.softmax(-1), v.double()).reshape(B, H, D)
    want_lse = scores.logsumexp(-1).reshape(B, H)
    # float32 throughout: D products and their sums in a score of some 4, then Sk shares.
    allowed = (D + Sk + 32) * 2.0**-24 * 4
    report = {}
    for name, splits, fewer in (("one", 1, 0), ("many", 5, 0), ("more than tiles", 9, 0), ("a key fewer", 1, 1)):
        out, lse = torch.empty(B, H, D, device=DEVICE), torch.empty(B, H, device=DEVICE)
        asked = call | {"lengths": call["lengths"] - fewer}
        decode.decode(q.to(DEVICE), **asked, out=out, lse=lse, config=decode.Config(16, 4, 2, splits))
        wrong = max((out.cpu() - want).abs().max().item(), (lse.cpu() - want_lse).abs().max().item())
        report[name] = wrong / allowed
    return report


def test_forms_that_no_case_has():
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {} if GPU else {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, __file__], env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report.pop("a key fewer") > 100
    assert max(report.values()) <= 1


# A slip, the line that it changes, and what it becomes.
FAULTS = {
    "a length that ends with a page is one short": (
        "table_ptr += b * stride_tb\n",
        "table_ptr += b * stride_tb\n    length -= tl.where((length > 0) & (length % page == 0), 1, 0)\n",
    ),
    "the table's row stride is not asked for": (
        "ops.table, *ops.table.stride(),",
        "ops.table, ops.table.shape[1], ops.table.stride(1),",
    ),
    "a row whose parts are all empty is NaN": ("tl.exp2(own - finite(m))", "tl.exp2(own - m)"),
    "the tail of the last page is read": (
        "v = tl.load(v_ptrs, mask=(n < end)[:, None] & in_dv, other=0.0)",
        "v = tl.load(v_ptrs, mask=in_dv, other=0.0)",
    ),
    "every query sees the last key": ("(length - Sq + token)[:, None]", "(length - 1 + 0 * token)[:, None]"),
    "the last part is left out where there are three": ("start + s < splits", "start + s < splits - (splits == 3)"),
}


def examine(bench, rung, dtype):
    """Draw and judge as the suite does."""

    @seed(crc32(f"{rung}/{dtype}".encode()))
    @profiles.chosen("smoke", Path(), shrink=False)
    @given(strategies.cases(bench, rung, dtype, "nnn"))
    def example(drawn):
        rungs.check(bench, rung, drawn)

    example()


def judged(name, folder):
    """What the ladder says of the kernel with a fault at the smoke profile, None where it finds none."""
    source = SOURCE.read_text()
    old, new = FAULTS.get(name, ("", ""))
    assert old in source
    (folder / "decode_fault.py").write_text(source.replace(old, new) if old else source)
    table = {"op": "paged_decode", "call": "decode_fault.py:decode", "args": {"o": "out"}, "configs": "CONFIGS"}
    table |= {"strides": STRIDES, "devices": ("cuda", "interpreter"), "claims": ["deterministic"]}
    bench = Bench(parse_row("decode", table, "test", str(folder)), "cuda:0" if GPU else "interpreter")
    profiles.register()
    try:
        assert "lengths" in bench.signature.parameters  # else it could not be imported
        for rung in rungs.RUNGS:
            examine(bench, rung, "float32")
            examine(bench, rung, "bfloat16")
    except rungs.Failure as failure:
        return str(failure)
    except KernelError as error:
        if error.kind != "crash":  # a page number that is none leads anywhere
            raise
        return str(error)
    finally:
        bench.close()
    return None


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name, tmp_path):
    found = judged(name, tmp_path)
    assert found is not None
    print(found)  # shown with -rP: what a person would have read


def test_pages_in_another_order_are_the_same_cache():
    law = next(law for law in SPEC.laws if law.name == "pages")
    drawn = problem.draw(SPEC, replace(case(), seed=3), "cpu")
    moved = law.change({name: tensor.clone() for name, tensor in drawn.items()})
    assert not torch.equal(moved["table"], drawn["table"])
    assert moved["table"].dtype == torch.int32
    for row, other in zip(drawn["table"], moved["table"], strict=True):
        held = row >= 0
        assert torch.equal(held, other >= 0)
        for pages in ("k_pages", "v_pages"):
            was, became = drawn[pages][row[held].long()], moved[pages][other[held].long()]
            assert torch.equal(was.nan_to_num(7), became.nan_to_num(7))


if __name__ == "__main__":
    print(json.dumps(forms()))
