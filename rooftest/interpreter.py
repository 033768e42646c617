"""Make Triton's interpreter compute bfloat16 and tf32 as the hardware does.

The interpreter keeps a bfloat16 block as a numpy array of uint16 codes and hands those codes to numpy as if they were
numbers: casts from float32 truncate, `+ - *` and `tl.dot` work on raw bits, `tl.sum` adds codes, `tl.atomic_add`
raises (triton 3.6 to 3.9). `install` replaces those operations by this rule, which is also the hardware's: widen to
float32 (exact), operate, round to nearest even. One rounding after a float32 operation equals the directly rounded
bfloat16 operation for `+ - * /` and square root, because 24 >= 2 * 8 + 2 (Figueroa, "When is double rounding
innocuous?", 1995); a fused multiply-add needs more and is computed exactly.

`tl.dot` on float32 operands drops 13 mantissa bits where it is asked for tf32, which is its default, as on the GPU:
without that a kernel that forgot `input_precision="ieee"` would look right on a CPU and be wrong on the device.

Import this module only where the interpreter runs: it imports triton, and TRITON_INTERPRET must be set before that.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime import interpreter as host

NAN = np.uint16(0x7FFF)  # the code that cvt.rn.bf16.f32 gives for every NaN

# --- bfloat16 codes as numpy arrays ---------------------------------------------------------------------------------


def widen(codes: np.ndarray) -> np.ndarray:
    """Return the float32 values of bfloat16 codes (uint16, any shape). Exact."""
    return (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)


def narrow(values: np.ndarray, *, truncate: bool = False) -> np.ndarray:
    """Return the bfloat16 codes (uint16) nearest to float32 or float64 `values`, ties to even; any NaN gives `NAN`."""
    values = np.ascontiguousarray(values)
    single = values if values.dtype == np.float32 else _round_to_odd(values.astype(np.float64))
    bits = single.view(np.uint32)
    # Half of the 16 dropped bits less one, plus the lowest kept bit: carries exactly where nearest-even rounds up.
    carry = np.uint32(0) if truncate else np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return np.where(np.isnan(single), NAN, ((bits + carry) >> np.uint32(16)).astype(np.uint16))


def _round_to_odd(values: np.ndarray) -> np.ndarray:
    """Float64 to float32, truncated with the lowest bit set where inexact, so that a second rounding stays right."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        single = values.astype(np.float32)
        inexact = (single != values) & ~np.isnan(values)
        outward = np.abs(single.astype(np.float64)) > np.abs(values)
    bits = single.view(np.uint32)
    return np.where(inexact, (bits - outward.astype(np.uint32)) | np.uint32(1), bits).view(np.float32)


def _fma(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Return the codes of x * y + z rounded once. The product of two 8-bit significands is exact in float64."""
    product, addend = np.broadcast_arrays(x.astype(np.float64) * y, z.astype(np.float64))
    total = product + addend
    virtual = total - product
    error = (product - (total - virtual)) + (addend - virtual)  # Knuth's TwoSum: exact
    inexact = np.isfinite(total) & np.isfinite(error) & (error != 0)
    inward = inexact & (np.signbit(error) != np.signbit(total))
    bits = total.view(np.uint64)
    return narrow(np.where(inexact, (bits - inward.astype(np.uint64)) | np.uint64(1), bits).view(np.float64))


# --- handles --------------------------------------------------------------------------------------------------------


def _is_bf16(handle: Any) -> bool:
    # A comparison's handle may carry its operands' type over boolean data: look at both.
    return handle.dtype.scalar == tl.bfloat16 and handle.data.dtype == np.uint16


def _wide(handle: Any) -> Any:
    return host.TensorHandle(widen(handle.data), tl.float32) if _is_bf16(handle) else handle


def _elementwise(original: Callable, operands: int) -> Callable:
    @functools.wraps(original)
    def method(self: Any, *args: Any) -> Any:
        handles, rest = args[:operands], args[operands:]
        # A select copies codes and must keep a NaN's payload; everything else on bfloat16 is arithmetic.
        if rest == (np.where,) or not any(map(_is_bf16, handles)):
            result = original(self, *args)
        else:
            with np.errstate(all="ignore"):
                result = original(self, *map(_wide, handles), *rest)
                result.data = narrow(result.data) if result.data.dtype == np.float32 else result.data
                result.dtype = tl.bfloat16
        if result.data.dtype == np.bool_:
            # The interpreter leaves a comparison with its operands' type, so a scalar one that is broadcast turns into
            # integers: `mask & (start < K)` was then refused as a mask.
            result.dtype = tl.int1
        return result

    return method


def _cast_impl(original: Callable) -> Callable:
    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        if src.dtype.scalar == dst_type.scalar:
            return src
        if dst_type.scalar == tl.bfloat16:
            values = src.data if src.data.dtype == np.float32 else src.data.astype(np.float64)
            return host.TensorHandle(narrow(values), tl.bfloat16)
        if _is_bf16(src) and dst_type.scalar == tl.float32:
            return _wide(src)
        return original(self, _wide(src), dst_type)

    return cast_impl


def _create_fp_to_fp(original: Callable) -> Callable:
    def create_fp_to_fp(self: Any, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        if dst_type.scalar == tl.bfloat16 and src.data.dtype.kind == "f":
            values = src.data if src.data.dtype == np.float32 else src.data.astype(np.float64)
            truncate = rounding_mode == ir.ROUNDING_MODE.RTZ
            return host.TensorHandle(narrow(values, truncate=truncate), tl.bfloat16)
        return original(self, src, dst_type, rounding_mode)

    return create_fp_to_fp


def _create_dot(original: Callable) -> Callable:
    def create_dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, *rest: Any) -> Any:
        if input_precision == ir.INPUT_PRECISION.TF32 and a.data.dtype == np.float32:
            a, b = _tf32(a), _tf32(b)
        a, b = _wide(a), _wide(b)  # products of two bfloat16 are exact in float32 (8 + 8 <= 24 bits)
        with np.errstate(all="ignore"):
            return original(self, a, b, d, input_precision, *rest)

    return create_dot


def _tf32(handle: Any) -> Any:
    # The tensor core reads 19 of a float32's 32 bits: the low 13 mantissa bits are dropped, not rounded.
    bits = np.ascontiguousarray(handle.data).view(np.uint32) & np.uint32(0xFFFFE000)
    return host.TensorHandle(np.where(np.isnan(handle.data), handle.data, bits.view(np.float32)), handle.dtype)


def _create_fma(original: Callable) -> Callable:
    def create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        if not _is_bf16(z):
            return original(self, x, y, z)
        with np.errstate(all="ignore"):
            return host.TensorHandle(_fma(*(_wide(h).data for h in (x, y, z))), tl.bfloat16)

    return create_fma


def _number_wins(ufunc: np.ufunc) -> Callable:
    # PTX min and max return the operand that is a number; triton 3.6's interpreter returns the NaN.
    return lambda _original: lambda self, lhs, rhs: self.binary_op(lhs, rhs, ufunc)


def _create_clampf(original: Callable) -> Callable:
    def create_clampf(self: Any, arg: Any, lo: Any, hi: Any, propagate_nans: Any) -> Any:
        if propagate_nans == ir.PROPAGATE_NAN.NONE:
            return self.binary_op(self.binary_op(arg, lo, np.fmax), hi, np.fmin)
        return original(self, arg, lo, hi, propagate_nans)

    return create_clampf


def _create_atomic_rmw(original: Callable) -> Callable:
    def create_atomic_rmw(self: Any, op: Any, ptr: Any, val: Any, mask: Any, *rest: Any) -> Any:
        if not _is_bf16(val):
            return original(self, op, ptr, val, mask, *rest)
        if op != ir.ATOMIC_OP.FADD:
            raise ValueError("only atomic_add exists for bfloat16")
        shape = np.broadcast_shapes(ptr.data.shape, val.data.shape, mask.data.shape)
        where, what, active = (np.broadcast_to(h.data, shape).ravel() for h in (ptr, val, mask))
        old = np.zeros(where.shape, np.uint16)
        pending = np.flatnonzero(active)
        while pending.size:  # one round handles the first pending lane of every address, so duplicates all count
            _, first = np.unique(where[pending], return_index=True)
            lanes = pending[first]
            on = np.ones(lanes.shape, np.bool_)
            old[lanes] = host._interpreter.load(where[lanes], on, old[lanes], np.dtype(np.uint16))  # noqa: SLF001
            with np.errstate(all="ignore"):
                new = narrow(widen(old[lanes]) + widen(what[lanes]))
            host._interpreter.store(where[lanes], new, on)  # noqa: SLF001
            pending = np.delete(pending, first)
        return host.TensorHandle(old.reshape(shape), tl.bfloat16)

    return create_atomic_rmw


def _create_descriptor_load(original: Callable) -> Callable:
    def create_descriptor_load(self: Any, desc: Any, indices: Any, *rest: Any, **kwargs: Any) -> Any:
        if desc.base.dtype.element_ty != tl.bfloat16 or desc.padding != ir.PADDING_OPTION.PAD_NAN:
            return original(self, desc, indices, *rest, **kwargs)
        _, mask = desc.materialize_pointers(indices)
        desc.padding = ir.PADDING_OPTION.PAD_ZERO  # a NaN has no uint16 value: load with zeros, then put the code in
        try:
            loaded = original(self, desc, indices, *rest, **kwargs)
        finally:
            desc.padding = ir.PADDING_OPTION.PAD_NAN
        return host.TensorHandle(np.where(mask.data, loaded.data, NAN), tl.bfloat16)

    return create_descriptor_load


# --- reductions and scans -------------------------------------------------------------------------------------------


def _sum(original: Callable) -> Callable:
    def reduce_sum(self: Any, tensor: Any) -> Any:
        if tensor.dtype != tl.bfloat16:
            return original(self, tensor)
        # The device adds in bfloat16, rounding every partial sum, in a tree: halves, as its shuffles do.
        codes = tensor.handle.data.ravel() if self.axis is None else np.moveaxis(tensor.handle.data, self.axis, 0)
        with np.errstate(all="ignore"):
            while len(codes) > 1:
                half = len(codes) // 2
                codes = np.concatenate([narrow(widen(codes[:half]) + widen(codes[half : 2 * half])), codes[2 * half :]])
        total = codes[0]
        if self.keep_dims:
            ndim = tensor.handle.data.ndim
            total = np.reshape(total, (1,) * ndim) if self.axis is None else np.expand_dims(total, self.axis)
        return self.to_tensor(total, tensor.dtype)

    return reduce_sum


def _min_max(original: Callable) -> Callable:
    def min_max(self: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        tensor = tensor[0] if isinstance(tensor, tuple) else tensor
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # numpy warns of a slice of NaNs; its value is right: NaN
            if tensor.dtype != tl.bfloat16:
                return original(self, tensor, *args, **kwargs)
            wide = self.to_tensor(widen(tensor.handle.data), tl.float32)
            found = original(self, wide, *args, **kwargs)
        back = [
            self.to_tensor(narrow(t.handle.data), tl.bfloat16) if t.dtype == tl.float32 else t for t in _many(found)
        ]
        return tuple(back) if isinstance(found, tuple) else back[0]

    return min_max


def _many(found: Any) -> tuple:
    return found if isinstance(found, tuple) else (found,)


def _scan(ufunc: np.ufunc) -> Callable:
    def wrap(original: Callable) -> Callable:
        def scan(self: Any, tensor: Any) -> Any:
            if tensor.dtype != tl.bfloat16:
                return original(self, tensor)
            codes = np.moveaxis(tensor.handle.data, self.axis, 0).copy()
            with np.errstate(all="ignore"):
                for i in range(1, len(codes)):
                    codes[i] = narrow(ufunc(widen(codes[i - 1]), widen(codes[i])))
            return [self.to_tensor(np.moveaxis(codes, 0, self.axis), tensor.dtype)]

        return scan

    return wrap


# --- installation ---------------------------------------------------------------------------------------------------

HOOKS: dict[type, dict[str, Callable[[Callable], Callable]]] = {
    host.InterpreterBuilder: {
        "binary_op": functools.partial(_elementwise, operands=2),
        "cast_impl": _cast_impl,
        "create_atomic_rmw": _create_atomic_rmw,
        "create_clampf": _create_clampf,
        "create_descriptor_load": _create_descriptor_load,
        "create_dot": _create_dot,
        "create_fma": _create_fma,
        "create_fp_to_fp": _create_fp_to_fp,
        "create_maxnumf": _number_wins(np.fmax),
        "create_minnumf": _number_wins(np.fmin),
        "ternary_op": functools.partial(_elementwise, operands=3),
        "unary_op": functools.partial(_elementwise, operands=1),
    },
    host.ReduceOps: {"min_max": _min_max, "sum": _sum},
    host.ScanOps: {"cumprod": _scan(np.multiply), "cumsum": _scan(np.add)},
}


@functools.cache
def install() -> dict[str, str]:
    """Replace the interpreter's bfloat16 and tf32 operations in this process, once.

    Returns what is left undecidable, precision to reason; empty where all is well. A triton whose interpreter lacks
    one of `HOOKS`, or that fails `_self_check` afterwards, is left as it was and named there: no verdict is better
    than a wrong one.
    """
    if not isinstance(tl.standard._sum_combine, host.InterpretedFunction):  # noqa: SLF001
        return dict.fromkeys(PRECISIONS, "TRITON_INTERPRET=1 was not set when triton was imported")
    missing = [f"{cls.__name__}.{name}" for cls, hooks in HOOKS.items() for name in hooks if not hasattr(cls, name)]
    if missing:
        return {"bfloat16": f"triton {triton.__version__}'s interpreter has no {', '.join(missing)}"}
    originals = {(cls, name): getattr(cls, name) for cls, hooks in HOOKS.items() for name in hooks}
    for (cls, name), original in originals.items():
        setattr(cls, name, HOOKS[cls][name](original))
    _let_scalars_index()
    _spare_time()
    # triton 3.6 lacks the constant; the newer ones make it by a cast, which is ours by now.
    host.InterpreterBuilder.get_bf16 = lambda self, value: self.cast_impl(self.get_fp32(value), tl.bfloat16)
    faults = _self_check()
    if "bfloat16" in faults:
        for (cls, name), original in originals.items():
            setattr(cls, name, original)
    return faults


def _let_scalars_index() -> None:
    # numpy 2.4 turns only arrays of no dimension into an index; triton 3.6's scalars have one, so range(0, K, B) fails.
    original = host._patch_lang_tensor  # noqa: SLF001

    def patch(tensor: Any, *scope: Any) -> None:
        original(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    host._patch_lang_tensor = patch  # noqa: SLF001


def _spare_time() -> None:
    """Leave out what takes most of a call's time and decides nothing: step4_dot at 33^3 took 145 ms, now 66.

    Each integer sum and product is repeated in 64 bits, to see whether it overflowed; a GPU does not look, and sizes
    are small here. And each call of a device function replaces the language's functions again, all of which are
    replaced from the launch's beginning to its end. And every operation makes its types anew, with their names, and
    the table of numpy's types: a fifth of the time of step1_naive.
    """
    host.interpreter_builder.options = dataclasses.replace(host.interpreter_builder.options, sanitize_overflow=False)
    patch, launch = host._patch_lang, host.GridExecutor.__call__  # noqa: SLF001
    replaced: set[int] = set()

    def once(function: Any) -> Any:
        modules = {id(value) for value in function.__globals__.values() if value is tl or value is tl.core}
        if modules and modules <= replaced:
            return host._LangPatchScope()  # noqa: SLF001 - with nothing to put back
        replaced.update(modules)
        return patch(function)

    @functools.wraps(launch)
    def launched(self: Any, *args: Any, **kwargs: Any) -> Any:
        replaced.clear()
        try:
            return launch(self, *args, **kwargs)
        finally:
            replaced.clear()

    host._patch_lang, host.GridExecutor.__call__ = once, launched  # noqa: SLF001
    host._get_np_dtype = _named(host._get_np_dtype)  # noqa: SLF001
    tl.block_type.__init__ = _alike(tl.block_type.__init__)


def _named(original: Callable) -> Callable:
    # A pointer's type has no hash; a name tells types apart as far as numpy is concerned.
    known: dict[str, np.dtype] = {}

    def get(kind: Any) -> np.dtype:
        if kind.name not in known:
            known[kind.name] = original(kind)
        return known[kind.name]

    return get


def _alike(original: Callable) -> Callable:
    known: dict[tuple, dict[str, Any]] = {}

    @functools.wraps(original)
    def init(self: Any, element_ty: Any, shape: Any) -> None:
        key = (element_ty.name, *shape, *map(type, shape))  # 16.0 == 16, and is refused
        if key not in known:
            original(self, element_ty, shape)
            known[key] = dict(vars(self))
        vars(self).update(known[key], element_ty=element_ty)  # an address space is not in its name

    return init


def decidable(precision: str) -> str | None:
    """Return None if the interpreter decides a kernel of this precision here, else the reason, `"precision: why"`.

    Installs the shim. `precision` is a word of the kernels' rows: float32, tf32, float16, bfloat16, or a float8 type.
    """
    if precision not in PRECISIONS:
        why = "its casts lose saturation and NaN" if precision.startswith("float8") else "it has not been proven"
        return f"{precision}: not decidable under Triton's interpreter, {why}"
    why = install().get(precision, "")
    return f"{precision}: not decidable under Triton's interpreter, {why}" if why else None


PRECISIONS = {"float32": torch.float32, "tf32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@triton.jit
def _probe(x, y, out, sums, n, B: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    rows = tl.arange(0, B)
    at = rows[:, None] * B + rows[None, :]
    a = tl.load(x + at)
    b = tl.load(y + at)
    acc = tl.zeros((B, B), tl.float32)
    for _ in range(0, n, B):  # triton 3.6 with numpy 2.4 fails here
        acc = tl.dot(a, b, acc, input_precision="ieee")
    tl.store(out + at, (acc + (a * b + a).to(tl.float32)).to(out.dtype.element_ty))
    tl.atomic_add(sums + rows, tl.sum(a - b, axis=1))


def _self_check() -> dict[str, str]:
    """Run `_probe` in each precision against the same arithmetic by torch; return those that differ, and why."""
    faults = {}
    torch_rng = torch.Generator().manual_seed(0)
    for precision, dtype in PRECISIONS.items():
        # Integers up to 8 keep every intermediate but the last cast exact in the narrowest format (at most 16 * 64 + 72
        # before it), and the last one must round in bfloat16, whose integers end at 256.
        x, y = (torch.randint(-8, 9, (16, 16), generator=torch_rng).to(dtype) for _ in range(2))
        out, sums = torch.zeros(16, 16, dtype=dtype), torch.ones(16, dtype=dtype)
        want = (x.double() @ y.double() + (x * y + x).double()).to(dtype)
        try:
            _probe[(1,)](x, y, out, sums, 16, B=16)
        except Exception as error:  # noqa: BLE001  whatever the interpreter raises, the verdict is the same
            faults[precision] = f"triton {triton.__version__} with numpy {np.__version__} raises {error!r:.200}"
            continue
        if not torch.equal(out, want) or not torch.equal(sums, 1 + (x - y).sum(1)):
            faults[precision] = f"triton {triton.__version__}'s interpreter fails the self-check"
    return faults
