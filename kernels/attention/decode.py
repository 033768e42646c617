"""Decode against a paged KV cache: split-KV with the query heads of a group as the rows of one tile.

One new token a sequence, so that every key and value is used by the R query heads of its group and by nothing else: 4 R
FLOP an element of K and V, 2 R a byte in 16 bits, where an H200 needs some 200 FLOP a byte to be busy. The time is that
of reading the cache once, 2 G D KV elements a sequence, and what counts is that all SMs read all the time:

* Packing. A tile's rows are the R heads of a group (times Sq tokens), so that K and V are read once, not R times. 16
  rows are the least that `tl.dot` takes; with R = 4 three quarters of its work is for nothing, and still hidden.
* Splitting. B G pairs of sequence and group are 8 programs at B = 1, G = 8, and an H200 has 132 SMs. So each sequence's
  keys are divided among `splits` programs, which leave a weighted sum, a maximum and a sum of shares each in float32;
  a second kernel merges them. How many: `pick_splits`, from the number of SMs and the longest that the table allows, as
  reading `lengths` would wait for the GPU. On the device a sequence divides its own length by it.
* Pages. A tile of keys that lies within one page (Page a multiple of BN) asks the table once, any other once a key.

The parts are merged in their order, so the same call gives the same bits. Another B may mean other splits.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from rooftest_kernels.attention.operands import DTYPES, MOST_COLUMNS, MOST_ROWS, VECTOR_BYTES, columns
from rooftest_kernels.attention.scores import LN_2, LOG2_E, finite

MOST_SPLITS = 128  # then the merge of a row reads 64 KB at Dv = 128, a microsecond's work for one SM
PROGRAMS_PER_SM = 3  # of "64" at D = 128: 166 registers of 128 threads each, and 72 of 227 KB of shared memory
KEY_BYTES = 256  # of a key of 128 in 16 bits, for which the tiles are stated
MOST_ROWS_A_TILE = 32  # 64 spill, so past R Sq = 32 the cache is read again, from the L2 if all goes well
SMS = 132  # where there is no GPU to ask, as in Triton's interpreter
PARTS = 16  # that the merge takes at a time


class Config(NamedTuple):
    """BN keys a step, fewer where a key is longer than KEY_BYTES; warps; stages; parts of a sequence (0: by the GPU).

    The page's number, the tile itself and its products are stages of their own: 5 hold two tiles of K and of V, one of
    which may be on its way while the other is used, 3 hold one. A tile of both is 32 KB, what an SM should have on its
    way at any time (skinny.py), and there are three programs.
    """

    BN: int
    num_warps: int
    num_stages: int
    splits: int = 0

    def keys(self, key_bytes: int) -> int:
        """Return the keys of a tile whose bytes are those of BN keys of KEY_BYTES; 16 are the least `tl.dot` takes."""
        return max(16, min(self.BN, self.BN * KEY_BYTES // key_bytes))


CONFIGS = {
    "64": Config(64, num_warps=4, num_stages=5),
    "64-shallow": Config(64, num_warps=4, num_stages=3),
    "128": Config(128, num_warps=8, num_stages=3),
    "16-by-3": Config(16, num_warps=4, num_stages=2, splits=3),
    "32-by-1": Config(32, num_warps=4, num_stages=2, splits=1),
}

# As in operands.py: not to be looked at, since a kernel would be compiled anew for nearly every call.
NUMBERS = [
    "stride_qb", "stride_qm", "stride_qh", "stride_qd",
    "stride_kp", "stride_kn", "stride_kg", "stride_kd",
    "stride_vp", "stride_vn", "stride_vg", "stride_vd",
    "stride_ob", "stride_om", "stride_oh", "stride_od",
    "has_lse", "stride_lb", "stride_lh", "stride_lm",
    "stride_tb", "stride_tt", "stride_lengths", "rows", "splits", "page", "G", "R", "Sq", "D", "Dv",
]  # fmt: skip
POINTERS = ["q_ptr", "k_ptr", "v_ptr", "out_ptr", "lse_ptr", "table_ptr", "lengths_ptr", "parts_ptr", "stats_ptr"]


class Operands(NamedTuple):
    """The tensors of one call and its sizes.

    Fields
        q: (B, Sq, H, D); k: (P, page, G, D); v: (P, page, G, Dv); out: (B, Sq, H, Dv); any strides, one of DTYPES.
        table: (B, T) int32; lengths: (B,) int32; lse: (B, H, Sq) float32, or None where it is not asked for.
        most: the keys that a row of the table has room for.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    table: torch.Tensor
    lengths: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor | None
    B: int
    Sq: int
    H: int
    D: int
    G: int
    Dv: int
    page: int
    most: int
    scale: float


def operands(q, k, v, table, lengths, out, lse, scale) -> Operands:
    """Return the operands of a call of `decode`. Raises ValueError where shapes, dtypes or parameters do not fit."""
    if q.ndim == 3:
        q, out, lse = q.unsqueeze(1), out.unsqueeze(1), None if lse is None else lse.unsqueeze(2)
    for name, tensor in {"q": q, "k_pages": k, "v_pages": v}.items():
        if tensor.ndim != 4:
            raise ValueError(f"{name} has {tensor.ndim} dimensions: it must have 4, or q 3")
    if q.dtype not in DTYPES or {k.dtype, v.dtype, out.dtype} != {q.dtype}:
        raise ValueError(
            f"q, k_pages, v_pages, out are {q.dtype}, {k.dtype}, {v.dtype}, {out.dtype}: all must have one dtype of "
            + ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        )
    B, Sq, H, D = q.shape
    P, page, G, Dv = v.shape
    if H % G if G else H:
        raise ValueError(f"q has {H} heads and v_pages {G}: every head of K and V must serve the same number of heads")
    if not 1 <= min(D, Dv) <= max(D, Dv) <= MOST_COLUMNS:
        raise ValueError(f"D is {D} and Dv is {Dv}: both must be from 1 to {MOST_COLUMNS}")
    T = table.shape[-1]
    expected = {
        "k_pages": (k, (P, page, G, D)), "out": (out, (B, Sq, H, Dv)), "lse": (lse, (B, H, Sq)),
        "table": (table, (B, T)), "lengths": (lengths, (B,)),
    }  # fmt: skip
    for name, (tensor, shape) in expected.items():
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}: with q {tuple(q.shape)} it must be {shape}")
    wanted = {"table": (table, torch.int32), "lengths": (lengths, torch.int32), "lse": (lse, torch.float32)}
    for name, (tensor, dtype) in wanted.items():
        if tensor is not None and tensor.dtype != dtype:
            raise ValueError(f"{name} is {tensor.dtype}: it must be {dtype}")
    if T * page > MOST_ROWS:
        raise ValueError(f"the table has room for {T * page} keys: at most {MOST_ROWS}")
    return Operands(q, k, v, table, lengths, out, lse, B, Sq, H, D, G, Dv, page, T * page, scale or D**-0.5)


def pick(ops: Operands) -> Config:
    """Choose the deep pipeline; in float32, whose products are multiply-adds, its registers would spill."""
    return CONFIGS["64-shallow" if ops.q.element_size() == 4 else "64"]


def pick_splits(programs: int, tiles: int, sms: int) -> int:
    """Return into how many parts each of `programs` pairs is divided: the fewest that keep the GPU nearly as busy.

    w = programs * splits / (sms * PROGRAMS_PER_SM) waves take as long as ceil(w) whole ones, so w / ceil(w) of the time
    is used. Within a tenth of the best, fewer parts are less to merge.
    """
    most = max(1, min(MOST_SPLITS, tiles))
    waves = [programs * s / (sms * PROGRAMS_PER_SM) for s in range(1, most + 1)]
    used = [w / -(-w // 1) for w in waves]
    return next(s for s, share in enumerate(used, 1) if share >= 0.9 * max(used))


@triton.jit
def locate(table_ptr, stride_tt, start, end, page, WITHIN: tl.constexpr, BN: tl.constexpr):
    """Return the page of each of BN keys from `start` (of all, where WITHIN says that they lie in one), and its row."""
    if WITHIN:
        number = tl.load(table_ptr + (start // page).to(tl.int64) * stride_tt)
        row = start % page + tl.arange(0, BN)
    else:
        n = start + tl.arange(0, BN)
        number = tl.load(table_ptr + (n // page).to(tl.int64) * stride_tt, mask=n < end, other=0)
        row = n % page
    return number.to(tl.int64), row.to(tl.int64)


@triton.jit
def attend(
    acc, total, maximum, q, k_ptrs, v_ptrs, stride_kp, stride_kn, stride_vp, stride_vn, table_ptr, stride_tt, page,
    start, end, sees, in_d, in_dv, c,
    MASKED: tl.constexpr, FULL: tl.constexpr, WITHIN: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Take BN keys from `start` into a tile's weighted sum, sum of shares and maximum (of scores times log2 e).

    MASKED: keys from `end` on are not read, as a share of 0 times a NaN is NaN, and a row sees keys up to sees[row].
    """
    number, row = locate(table_ptr, stride_tt, start, end, page, WITHIN, BN)
    n = start + tl.arange(0, BN)
    k_ptrs += (number * stride_kp + row * stride_kn)[:, None]
    v_ptrs += (number * stride_vp + row * stride_vn)[:, None]
    if MASKED:
        k = tl.load(k_ptrs, mask=(n < end)[:, None] & in_d, other=0.0)
        v = tl.load(v_ptrs, mask=(n < end)[:, None] & in_dv, other=0.0)
    else:
        k = tl.load(k_ptrs) if FULL else tl.load(k_ptrs, mask=in_d, other=0.0)
        v = tl.load(v_ptrs) if FULL else tl.load(v_ptrs, mask=in_dv, other=0.0)
    s = tl.dot(q, k.T, input_precision="ieee")
    if MASKED:
        s = tl.where((n[None, :] <= sees) & (n < end)[None, :], s, float("-inf"))
    larger = tl.maximum(maximum, tl.max(s, 1) * c)
    p = tl.exp2(s * c - finite(larger)[:, None])
    shrink = tl.exp2(maximum - finite(larger))
    total = total * shrink + tl.sum(p, 1)
    acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
    return acc, total, larger


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=POINTERS)
def decode_part(
    q_ptr, stride_qb, stride_qm, stride_qh, stride_qd,
    k_ptr, stride_kp, stride_kn, stride_kg, stride_kd,
    v_ptr, stride_vp, stride_vn, stride_vg, stride_vd,
    table_ptr, stride_tb, stride_tt, lengths_ptr, stride_lengths, parts_ptr, stats_ptr,
    splits, page, G, R, Sq, D, Dv, scale,
    VECTOR: tl.constexpr, FULL: tl.constexpr, WITHIN: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Attend with BM of the R Sq rows of one group to one part of one sequence's keys.

    Row r of a group is head r % R of token r // R. Of row r of pair (b, g), part s: the weighted sum goes to
    parts[b, g, r, s, :], its maximum and sum of shares to stats[b, g, r, s, :2]; of an empty part 0, -inf and 0.
    VECTOR: the elements in 16 bytes, where all of K and V can be read so, else 1. FULL: D and Dv are BLOCK_D and
    BLOCK_DV. WITHIN: a page is a multiple of BN keys.
    """
    blocks = tl.cdiv(R * Sq, BM)
    part = tl.program_id(0) % splits
    block = tl.program_id(0) // splits % blocks
    pair = tl.program_id(0) // splits // blocks
    b, g = (pair // G).to(tl.int64), (pair % G).to(tl.int64)
    k_ptr += g * stride_kg
    v_ptr += g * stride_vg
    if VECTOR > 1:  # what the host has checked, in forms that the compiler understands
        k_ptr, v_ptr = tl.multiple_of(k_ptr, 16), tl.multiple_of(v_ptr, 16)
        stride_kp, stride_kn, stride_kd = stride_kp // VECTOR * VECTOR, stride_kn // VECTOR * VECTOR, 1
        stride_vp, stride_vn, stride_vd = stride_vp // VECTOR * VECTOR, stride_vn // VECTOR * VECTOR, 1
        D, Dv = D // VECTOR * VECTOR, Dv // VECTOR * VECTOR
    d, dv = tl.arange(0, BLOCK_D)[None, :], tl.arange(0, BLOCK_DV)[None, :]
    in_d, in_dv = d < D, dv < Dv
    k_ptrs = k_ptr + d.to(tl.int64) * stride_kd
    v_ptrs = v_ptr + dv.to(tl.int64) * stride_vd
    rows = block * BM + tl.arange(0, BM)
    token, head = rows // R, g * R + rows % R
    q_rows = b * stride_qb + token.to(tl.int64) * stride_qm + head * stride_qh
    q = tl.load(q_ptr + q_rows[:, None] + d.to(tl.int64) * stride_qd, mask=(rows < R * Sq)[:, None] & in_d, other=0.0)
    q = tl.where(scale < 0, -q, q)  # so that the largest product is the largest score
    c = tl.abs(scale) * LOG2_E

    length = tl.load(lengths_ptr + b * stride_lengths)
    table_ptr += b * stride_tb
    keys = tl.cdiv(tl.cdiv(length, BN), splits) * BN  # of each part but the last
    begin = part * keys
    end = tl.minimum(begin + keys, length)
    sees = (length - Sq + token)[:, None]
    # Every row sees the keys up to that of the first token; whole tiles of them need no mask.
    full = tl.maximum(tl.minimum(end, length - Sq + 1) // BN * BN, begin)
    maximum = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, BLOCK_DV), tl.float32)
    for start in range(begin, full, BN):
        acc, total, maximum = attend(
            acc, total, maximum, q, k_ptrs, v_ptrs, stride_kp, stride_kn, stride_vp, stride_vn, table_ptr, stride_tt,
            page, start, end, sees, in_d, in_dv, c, False, FULL, WITHIN, BN,
        )  # fmt: skip
    for start in range(full, end, BN):
        acc, total, maximum = attend(
            acc, total, maximum, q, k_ptrs, v_ptrs, stride_kp, stride_kn, stride_vp, stride_vn, table_ptr, stride_tt,
            page, start, end, sees, in_d, in_dv, c, True, FULL, WITHIN, BN,
        )  # fmt: skip

    place = (pair.to(tl.int64) * R * Sq + rows) * splits + part
    tl.store(parts_ptr + place[:, None] * Dv + dv, acc, mask=(rows < R * Sq)[:, None] & in_dv)
    tl.store(stats_ptr + place * 2, maximum, mask=rows < R * Sq)
    tl.store(stats_ptr + place * 2 + 1, total, mask=rows < R * Sq)


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=POINTERS)
def decode_merge(
    parts_ptr, stats_ptr, out_ptr, stride_ob, stride_om, stride_oh, stride_od,
    lse_ptr, has_lse, stride_lb, stride_lh, stride_lm,
    splits, G, R, Sq, Dv, BLOCK: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Merge the parts of one row: with m the largest maximum, each counts exp(its own - m) times; an empty one 0."""
    row = tl.program_id(0).to(tl.int64)
    pair, r = row // (R * Sq), row % (R * Sq)
    b, h, token = pair // G, pair % G * R + r % R, r // R
    parts_ptr += row * splits * Dv
    stats_ptr += row * splits * 2
    s = tl.arange(0, BLOCK)
    dv = tl.arange(0, BLOCK_DV)
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, splits, BLOCK):
        own = tl.load(stats_ptr + (start + s) * 2, mask=start + s < splits, other=float("-inf"))
        largest = tl.maximum(largest, own)
    m = tl.max(largest, 0)
    totals = tl.zeros((BLOCK,), tl.float32)
    acc = tl.zeros((BLOCK, BLOCK_DV), tl.float32)
    for start in range(0, splits, BLOCK):
        here = start + s < splits
        own = tl.load(stats_ptr + (start + s) * 2, mask=here, other=float("-inf"))
        weight = tl.exp2(own - finite(m))  # 0 for -inf, not NaN even where m is -inf too
        totals += weight * tl.load(stats_ptr + (start + s) * 2 + 1, mask=here, other=0.0)
        part = tl.load(
            parts_ptr + (start + s)[:, None] * Dv + dv[None, :], mask=here[:, None] & (dv < Dv)[None, :], other=0.0
        )
        acc += weight[:, None] * part
    total = tl.sum(totals, 0)
    total = tl.where(total == 0, 1.0, total)  # a row that sees no key: zeros, and an lse of m + 0 = -inf
    out = tl.sum(acc, 0) / total
    out_ptr += b * stride_ob + token * stride_om + h * stride_oh
    tl.store(out_ptr + dv.to(tl.int64) * stride_od, out.to(out_ptr.dtype.element_ty), mask=dv < Dv)
    lse_ptr += b * stride_lb + h * stride_lh + token * stride_lm
    tl.store(lse_ptr, (m + tl.log2(total)) * LN_2, mask=has_lse != 0)


def vector(*pages: torch.Tensor) -> int:
    """Return how many elements of these (P, page, G, D) tensors may be read at a time: 16 bytes of them, or 1."""
    count = VECTOR_BYTES // pages[0].element_size()
    for tensor in pages:
        # Every stride, those along a dimension of size 1 too: an entry of the table may be any page.
        whole = all(n % count == 0 for n in (tensor.shape[3], *tensor.stride()[:3]))
        if not whole or tensor.stride(3) != 1 or tensor.data_ptr() % VECTOR_BYTES:
            return 1
    return count


def launch(ops: Operands, config: Config) -> None:
    """Compute the output for operands of which there is one at least."""
    BN = config.keys(max(columns(ops.D), columns(ops.Dv)) * ops.q.element_size())
    R = ops.H // ops.G
    BM = min(MOST_ROWS_A_TILE, columns(R * ops.Sq))
    programs = ops.B * ops.G * triton.cdiv(R * ops.Sq, BM)
    sms = torch.cuda.get_device_properties(ops.q.device).multi_processor_count if ops.q.is_cuda else SMS
    splits = config.splits or pick_splits(programs, triton.cdiv(ops.most, BN), sms)
    rows = ops.B * ops.H * ops.Sq
    parts = torch.empty((rows, splits, ops.Dv), dtype=torch.float32, device=ops.q.device)
    stats = torch.empty((rows, splits, 2), dtype=torch.float32, device=ops.q.device)
    width = vector(ops.k, ops.v)
    is_full = width > 1 and columns(ops.D) == ops.D and columns(ops.Dv) == ops.Dv
    decode_part[(programs * splits,)](
        ops.q, *ops.q.stride(), ops.k, *ops.k.stride(), ops.v, *ops.v.stride(), ops.table, *ops.table.stride(),
        ops.lengths, ops.lengths.stride(0), parts, stats, splits, ops.page, ops.G, R, ops.Sq, ops.D, ops.Dv,
        float(ops.scale), VECTOR=width, FULL=is_full, WITHIN=ops.page % BN == 0,
        BM=BM, BN=BN, BLOCK_D=columns(ops.D), BLOCK_DV=columns(ops.Dv),
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    lse = (ops.out, 0, 0, 0, 0) if ops.lse is None else (ops.lse, 1, *ops.lse.stride())
    decode_merge[(rows,)](
        parts, stats, ops.out, *ops.out.stride(), *lse, splits, ops.G, R, ops.Sq, ops.Dv,
        BLOCK=PARTS, BLOCK_DV=columns(ops.Dv),
    )  # fmt: skip


def decode(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    *,
    out: torch.Tensor,
    lse: torch.Tensor | None = None,
    scale: float = 0.0,
    config: str | Config | None = None,
) -> None:
    """Write softmax(scores) V of each sequence's newest tokens to out, and each row's log-sum-exp to lse.

    q: (B, Sq, H, D); k_pages: (P, page, G, D); v_pages: (P, page, G, Dv); table: (B, T) and lengths: (B,), int32; out:
    (B, Sq, H, Dv); lse: (B, H, Sq) float32; any strides. Or q (B, H, D), out (B, H, Dv), lse (B, H). Key n of sequence
    b is row n % page of page table[b, n // page]; query i sees the keys up to lengths[b] - Sq + i. The rest of the
    pages, and of the table, is not read. lengths must be 0 to T * page. scale: of the scores, 0 for D ** -0.5.
    config: a name out of CONFIGS, or None for `pick`'s choice. Raises ValueError where shapes or dtypes do not fit.
    """
    ops = operands(q, k_pages, v_pages, table, lengths, out, lse, scale)
    if ops.B * ops.Sq * ops.H == 0:
        return
    launch(ops, CONFIGS[config] if isinstance(config, str) else config or pick(ops))
