"""Results that depend on what is beside them, or before them, where the row claims otherwise; each within its bound."""

from broken.attention.call import Broken, on

_CONFIG = "    BM, BN, num_warps = CONFIGS[config] if isinstance(config, str) else config or pick(ops)\n"


def _halved(rule):
    """Half as many keys a tile, or twice as many, where the rule (an expression on the host) holds."""
    return (_CONFIG, f"{_CONFIG}    BN = BN * 2 if {rule} else BN\n")


FAULTS = (
    Broken(
        "tile_by_batch", "det", "A large batch takes other tiles of keys.",
        "a batch of two and more, and more keys than a tile (16 and more)", (_halved("ops.B > 1"),),
        right=(on(16, 16, B=3, check="alone"), on(16, 70, check="repeat"), on(16, 70, B=3)),
        wrong=(on(16, 70, B=3, check="alone"),), rung="determinism",
    ),
    Broken(
        "tile_by_turns", "det", "Every other call takes other tiles of keys, as a tuner does that is still trying.",
        "more keys than a tile (16 and more), and the call before",
        (_halved("CALLS.append(0) or len(CALLS) % 2"),
         ("class Config(NamedTuple)", "CALLS = []\n\n\nclass Config(NamedTuple)")),
        right=(on(16, 16, check="repeat"), on(16, 70)), wrong=(on(16, 70, check="repeat"),), rung="determinism",
    ),
)  # fmt: skip
