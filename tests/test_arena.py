import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rooftest.arena import BLOCK_BYTES, Arena, Placement


def place(dtype="float32", shape=(3, 4), stride=(4, 1), offset_bytes=256):
    return Placement("a", dtype, shape, stride, offset_bytes)


def test_size_is_rounded_up_to_whole_blocks():
    assert Arena("cpu", 1).bytes.numel() == BLOCK_BYTES
    assert Arena("cpu", BLOCK_BYTES + 1).bytes.numel() == 2 * BLOCK_BYTES


def test_view_has_the_dtype_shape_strides_and_place_asked_for():
    arena = Arena("cpu", 4096)
    arena.bytes.zero_()
    view = place("bfloat16", (3, 4), (10, 2), 302).view(arena.bytes)
    view.fill_(1.0)
    assert (view.dtype, tuple(view.shape), view.stride()) == (torch.bfloat16, (3, 4), (10, 2))
    one = torch.ones(1, dtype=torch.bfloat16).view(torch.uint8)
    expected = torch.zeros(BLOCK_BYTES, dtype=torch.uint8)
    for row in range(3):
        for column in range(4):
            first = 302 + 2 * (10 * row + 2 * column)
            expected[first : first + 2] = one
    assert torch.equal(arena.bytes, expected)


def test_view_of_no_elements():
    assert place(shape=(0, 4)).view(Arena("cpu", 1).bytes).shape == (0, 4)


def test_view_outside_the_arena_is_refused():
    with pytest.raises(RuntimeError):
        place(offset_bytes=BLOCK_BYTES - 4).view(Arena("cpu", 1).bytes)


def test_misplaced_view_is_refused():
    with pytest.raises(ValueError, match="a: offset 258 is no multiple of 4 bytes"):
        place(offset_bytes=258).view(Arena("cpu", 1).bytes)


def test_both_sides_see_the_same_bytes():
    arena = Arena("cpu", 4096)
    other = Arena.attach(arena.handle())
    other.bytes[7] = 9
    assert arena.bytes[7] == 9
    assert other.bytes.data_ptr() != arena.bytes.data_ptr()


def test_another_process_sees_the_same_bytes():
    arena = Arena("cpu", 4096)
    arena.bytes.zero_()
    code = f"from rooftest.arena import Arena; Arena.attach({arena.handle()!r}).bytes[7] = 9"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert arena.bytes.nonzero().tolist() == [[7]]


def test_memory_goes_back_with_the_last_view():
    def mapped():
        return Path("/proc/self/maps").read_text().count("rooftest-arena")

    before, files = mapped(), len(list(Path("/proc/self/fd").iterdir()))
    arena = Arena("cpu", 4096)
    view = place().view(arena.bytes)
    arena.close()
    arena.close()
    view.fill_(1.0)
    assert view.sum() == 12
    assert mapped() == before + 1
    del view
    assert mapped() == before
    assert len(list(Path("/proc/self/fd").iterdir())) == files


def test_no_file_with_a_name_holds_the_memory():
    arena = Arena("cpu", 1)
    assert Path(arena.handle()["path"]).readlink() == Path("/memfd:rooftest-arena (deleted)")
