"""A broken attention kernel beside plain float64, on one call; uses nothing of the judge, so as to contradict it."""

import torch
from test_attention_kernels import DEVICE, expected, ratio

MARGIN = 4096  # elements of memory behind a tensor


def placed(values, layout, behind):
    """Put values into memory as the layout says, `behind` in the gaps and after them; the view, and the memory."""
    order = [0, 2, 1, 3] if layout == "heads first" and values.dim() == 4 else range(values.dim())
    step, strides, size = 1 + (layout == "stepped"), [0] * values.dim(), 1
    for dim in reversed(order):
        size *= step
        strides[dim] = size
        size *= max(values.shape[dim], 1)
    memory = torch.full((size + MARGIN,), behind, dtype=values.dtype, device=DEVICE)
    view = memory.as_strided(values.shape, strides)
    view.copy_(values)
    return view, memory


def wrong(attention, t, dtype):
    """Say what is wrong with one call, an Attend, or None."""
    case = t.case
    B, Sq, Sk, H, G, D, Dv = case[:7]
    generator = torch.Generator().manual_seed(Sq + Sk + D)
    nan = float("nan")

    def normal(*shape, spread=1.0, of=dtype):
        return placed((spread * torch.randn(shape, generator=generator)).to(of), case.layout, nan)[0]

    q, k = normal(B, Sq, H, D, spread=case.spread), normal(B, Sk, G, D, spread=case.spread)
    v = normal(B, Sk, G, Dv)
    slopes = normal(H, of=torch.float32).abs_() if case.slopes else None
    inputs = {"q": q, "k": k, "v": v, "slopes": slopes}
    before = {name: x.clone() for name, x in inputs.items() if x is not None}
    out, out_memory = placed(torch.full((B, Sq, H, Dv), nan, dtype=dtype), case.layout, 7.0)
    lse, lse_memory = placed(torch.full((B, H, Sq), nan), case.layout, 7.0)
    asked = {name: getattr(case, name) for name in ("causal", "window", "scale", "softcap")} | {"config": t.config}
    # The reference first, of what the kernel was given.
    want = expected(case, q, k, v, slopes)
    try:
        attention(**inputs, out=out, lse=lse, **asked)
    except Exception as error:  # noqa: BLE001 - whatever it raises
        return f"raises {type(error).__name__}"
    for name, was in before.items():
        if not torch.equal(inputs[name], was):
            return f"{name} was modified"
    if t.check == "exact" and not torch.equal(out, want[0].to(dtype)):
        return "not the nearest"
    if t.check in {"repeat", "alone"}:
        part = slice(None) if t.check == "repeat" else slice(B - 1, None)
        again, again_lse = torch.empty_like(out[part]), torch.empty_like(lse[part])
        attention(q[part], k[part], v[part], slopes=slopes, out=again, lse=again_lse, **asked)
        if not (torch.equal(again, out[part]) and torch.equal(again_lse, lse[part])):
            return "other bits"
    if not (ratio(out, *want[:2]) <= 1 and ratio(lse, *want[2:]) <= 1):
        return "off"
    out.fill_(7.0)
    lse.fill_(7.0)
    return None if bool((out_memory == 7.0).all() & (lse_memory == 7.0).all()) else "wrote outside"
