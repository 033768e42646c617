"""A tensor that ends where its memory does: nothing outside it can be touched unseen, and inside nothing changes."""

import ctypes
import itertools
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, seed

from rooftest import fence, profiles, rungs, strategies
from rooftest.bench import SIDES, Bench
from rooftest.case import Case
from rooftest.problem import draw, lay_out
from rooftest.process import KernelError
from rooftest.rows import parse_row
from rooftest.spec import STRIDES, load

FOLDER = Path(__file__).parent
GEMM = load("gemm")
EACH = [(dtype, stride, side) for dtype in ("float32", "bfloat16") for stride in STRIDES for side in SIDES]


@pytest.fixture
def bench():
    opened = []

    def start(name, file="fence_kernels.py", device="cpu", **keys):
        table = {"op": "gemm", "call": f"{file}:{name}", "devices": [device], "strides": list(STRIDES), **keys}
        table |= {} if name == "returning" else {"args": {"c": "out"}}
        opened.append(Bench(parse_row(name, table, "test", str(FOLDER)), device))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def case(name="k", dtype="float32", **changes):
    fields = {"sizes": {"M": 5, "N": 7, "K": 3}, "fill": "normal", "seed": 0, **changes}
    return Case("gemm", name, dtype, "nt", **fields)


def moved(arena, side, **changes):
    placements = lay_out(GEMM, case(given=("c0", "bias"), **changes)).placements
    return [(p, fence.move(p, arena, side, place)) for place, p in enumerate(placements)]


@pytest.mark.parametrize(("dtype", "stride", "side"), EACH)
def test_a_tensor_meets_the_end_of_its_memory_and_keeps_its_alignment(dtype, stride, side):
    arena = torch.randint(0, 256, (2**21,), dtype=torch.uint8)
    for placement, fenced in moved(arena, side, dtype=dtype, stride=stride):
        original, tensor, storage = placement.view(arena), fenced.tensor, fenced.tensor.untyped_storage()
        assert (tensor.shape, tensor.stride(), tensor.dtype) == (original.shape, original.stride(), original.dtype)
        assert torch.equal(*(t.contiguous().view(torch.uint8) for t in (tensor, original)))
        first = tensor.data_ptr() - storage.data_ptr()
        free = {"start": first, "end": storage.nbytes() - first - placement.extent_bytes}[side]
        assert 0 <= free < fence.ALIGN_BYTES
        assert (tensor.data_ptr() - placement.offset_bytes) % fence.ALIGN_BYTES == 0


@pytest.mark.parametrize("side", SIDES)
def test_no_two_tensors_of_a_call_share_memory(side):
    spans = sorted((f.here.data_ptr(), f.here.data_ptr() + f.here.numel()) for _, f in moved(torch.zeros(2**21), side))
    assert all(one[1] <= two[0] for one, two in itertools.pairwise(spans))


@pytest.mark.parametrize("side", SIDES)
def test_what_was_written_in_and_around_a_tensor_goes_back(side):
    arena = torch.zeros(2**21, dtype=torch.uint8)
    placement, fenced = moved(arena, side)[0]
    fenced.here.fill_(7)
    fenced.back()
    assert (placement.view(arena).contiguous().view(torch.uint8) == 7).all()
    assert int((arena == 7).sum()) == fenced.here.numel() > placement.extent_bytes


def test_mappings_are_kept():
    fence._mapping.cache_clear()
    arena = torch.zeros(2**21, dtype=torch.uint8)
    for side in SIDES:
        moved(arena, side)
    assert fence._mapping.cache_info().misses == 5  # a, b, c0, bias, c: each fits one page


def test_pages_grow_in_powers_of_two():
    assert [fence._room(n * 4096, "cpu") // 4096 for n in (1, 2, 3, 5, 9)] == [1, 2, 4, 8, 16]


def test_the_structures_are_as_long_as_the_driver_s():
    assert (ctypes.sizeof(fence._Allocation), ctypes.sizeof(fence._Access)) == (32, 12)  # cuda.h


def test_on_cuda_a_block_without_memory_lies_on_either_side(monkeypatch):
    """The driver is played: what it is asked for, and where."""
    size, calls = 4 * 2**20, []

    def driver(device, call, *arguments):
        values = [getattr(a, "value", None) for a in arguments]
        calls.append((call, values))
        if call == "cuMemAddressReserve":
            arguments[0]._obj.value = 2**40

    class Block:
        def __init__(self, device, size, address):
            self.tensor = lambda: (device, size, address)

    for name, played in (("driver", driver), ("ask", driver), ("Block", Block)):
        monkeypatch.setattr(fence, name, played)
    start = 2**40 + 2 * 2**20
    assert fence._blocks("cuda:1", size) == ("cuda:1", size, start)
    assert [call for call, _ in calls] == ["cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess"]
    assert calls[0][1][1] == size + 4 * 2**20
    assert calls[2][1][:3] == [start, size, 0]
    assert calls[3][1][:2] == [start, size]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("past", "read or wrote past the end of b (fenced: tensors end where their memory ends)"),
        ("before", "read or wrote before the start of a (fenced: tensors start where their memory starts)"),
    ],
)
def test_a_read_whose_value_goes_nowhere_is_caught_and_named(bench, name, found):
    opened = bench(name)
    rungs.check(opened, "contract", case(name, seed=1))  # no fence
    for _ in range(2):  # the case alone brings it back
        with pytest.raises(KernelError) as error:
            rungs.check(opened, "contract", case(name, seed=0))
        assert str(error.value) == f"crash: {found}: killed by signal 11 (segmentation fault)"


def test_an_element_of_an_empty_tensor_can_t_be_read(bench):
    with pytest.raises(KernelError, match="past the end of a "):
        rungs.check(bench("past_empty"), "contract", case("past_empty", sizes={"M": 5, "N": 7, "K": 0}))


@pytest.mark.parametrize(("dtype", "stride", "side"), EACH)
def test_a_kernel_that_stays_inside_is_left_alone(bench, dtype, stride, side):
    opened, drawn = bench("right"), case("right", dtype, stride=stride, given=("c0", "bias"))
    problem, values = lay_out(GEMM, drawn), draw(GEMM, drawn, "cpu")
    plain, fenced = opened.run(problem, values), opened.run_fenced(problem, values, side)
    assert fenced.trespass is None
    assert torch.equal(plain.outputs["c"], fenced.outputs["c"])


@pytest.mark.parametrize("side", SIDES)
def test_the_interpreter_does_not_touch_lanes_that_are_masked_off(bench, side):
    opened = bench("matmul", "broken/clean.py", "interpreter")
    for layout, stride in itertools.product(("nn", "tt"), STRIDES):
        drawn = Case("gemm", "matmul", "float32", layout, {"M": 5, "N": 33, "K": 3}, stride=stride)
        result = opened.run_fenced(lay_out(GEMM, drawn), draw(GEMM, drawn, "cpu"), side)
        assert result.trespass is None


@pytest.mark.parametrize(
    ("name", "side", "found"),
    [
        ("modifies", "end", "input a was modified"),
        ("modifies", "start", "input a was modified"),
        ("writes_near", "end", "wrote after b, outside every tensor"),
    ],
)
def test_writes_are_seen_through_the_fence(bench, name, side, found):
    drawn = case(name, stride="offset")
    assert bench(name).run_fenced(lay_out(GEMM, drawn), draw(GEMM, drawn, "cpu"), side).trespass == found


@pytest.mark.parametrize(("sign", "found"), [("+", "past the end of a "), ("-", "before the start of a ")])
def test_the_suite_catches_a_triton_kernel_that_fetches_a_tile_too_many(bench, tmp_path, sign, found):
    """The clean GEMM with a load whose value is used nowhere; the drawn cases of the ci profile find it."""
    clean, dot = (FOLDER / "broken/clean.py").read_text(), "        acc = tl.dot("
    load = f"tl.load(a + z * az + m[:, None] * am + (k0 {sign} BK + k)[None, :] * ak, in_m[:, None], volatile=True)"
    (tmp_path / "broken.py").write_text(clean.replace(dot, f"        {load}\n{dot}"))
    opened = bench("matmul", str(tmp_path / "broken.py"), "interpreter")
    with pytest.raises(KernelError, match=found):
        drawn(opened)


def drawn(opened):
    profiles.register()

    @seed(0)
    @profiles.chosen("ci", Path(tempfile.gettempdir()), shrink=False)
    @given(strategies.cases(opened, "contract", "float32", "nn"))
    def run(case):
        rungs.check(opened, "contract", case)

    run()


def test_what_a_kernel_returns_is_its_own(bench):
    rungs.check(bench("returning"), "contract", case("returning"))


def test_where_there_is_no_such_memory_the_reading_is_withdrawn(bench):
    opened = bench("fenceless")
    assert "fenced" in rungs.check(opened, "contract", case("fenceless")).withdrawn
    assert "fenced" not in rungs.check(opened, "contract", case("fenceless", seed=1)).withdrawn
    assert opened.process.starts == 1
