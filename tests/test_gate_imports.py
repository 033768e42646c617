"""In base's process every module that head has in its tree comes from base's, however head finds it."""

import importlib
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest

from rooftest.gate import same
from rooftest.rows import parse_row

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text) if isinstance(text, bytes) else path.write_text(text)


def base(tmp_path, code, path=()):
    """What a fresh interpreter prints that takes head's modules from base; `path` stands first in its sys.path."""
    start = f"""
        import sys
        sys.path[:0] = {[str(p) for p in path]!r}
        from rooftest.gate import imports
        imports.install({str(tmp_path / "head")!r}, {str(tmp_path / "base")!r})
    """
    code = textwrap.dedent(start) + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    return done.stdout.split() if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


@pytest.fixture
def trees(tmp_path):
    for side in ("head", "base"):
        write(
            tmp_path / side,
            {
                "flat/__init__.py": "from flat.deep import WHERE",
                "flat/deep.py": f"WHERE = {side!r}",
                "src/inner/__init__.py": f"WHERE = {side!r}",
                "single.py": f"WHERE = {side!r}",
                "space/part.py": f"WHERE = {side!r}",
            },
        )
    return tmp_path


@pytest.mark.parametrize(
    "module", ["flat", "flat.deep", "single", "space.part", "inner"], ids=lambda name: name.replace(".", " ")
)
def test_every_layout_comes_from_base(trees, module):
    code = f"import {module}; print({module}.WHERE, {module}.__file__.startswith({str(trees / 'base')!r}))"
    assert base(trees, code, [trees / "head", trees / "head" / "src"]) == ["base", "True"]


def test_an_editable_installs_finder_is_asked_and_moved(trees):
    finder = f"""
        from importlib.machinery import PathFinder
        from importlib.util import spec_from_file_location
        class Editable:
            @classmethod
            def find_spec(cls, name, path=None, target=None):
                if name == "mapped":
                    return spec_from_file_location(name, {str(trees / "head" / "flat" / "__init__.py")!r})
                if name.startswith("mapped."):
                    return PathFinder.find_spec(name, [{str(trees / "head" / "flat")!r}])
        sys.meta_path.append(Editable)
    """
    (trees / "base" / "flat" / "__init__.py").write_text("")
    where = "import mapped.deep; print(mapped.deep.WHERE)"
    assert base(trees, textwrap.dedent(finder) + where) == ["base"]
    (trees / "base" / "flat" / "deep.py").unlink()  # no other finder may give head's
    said = base(trees, textwrap.dedent(finder) + where)
    assert said == "ModuleNotFoundError: No module named 'mapped.deep' in the base tree"


def test_a_module_that_base_lacks_is_missing_and_one_that_only_base_has_is_there(trees):
    (trees / "base" / "single.py").rename(trees / "base" / "older.py")
    assert base(trees, "import older; print(older.WHERE)", [trees / "head"]) == ["base"]
    assert "ModuleNotFoundError" in base(trees, "import single", [trees / "head"])


def test_a_compiled_extension_is_bases_own(trees):
    for side in ("head", "base"):
        (trees / side / f"native{SUFFIX}").write_bytes(side.encode())
    code = "import importlib.util as u; print(u.find_spec('native').origin)"
    assert base(trees, code, [trees / "head"]) == [str(trees / "base" / f"native{SUFFIX}")]
    (trees / "base" / f"native{SUFFIX}").unlink()
    assert base(trees, "import native", [trees / "head"]).endswith("No module named 'native'")


def test_what_is_installed_is_the_same_on_both_sides_even_within_a_tree(trees):
    place = trees / "head" / ".venv" / "lib" / "site-packages"
    write(place, {"library.py": "WHERE = 'installed'"})
    assert base(trees, "import library; print(library.WHERE)", [place]) == ["installed"]


def test_the_harness_stays_heads(tmp_path):
    root = Path(__file__).parents[1]
    code = f"""
        from rooftest.gate import imports
        imports.install({str(root)!r}, {str(tmp_path)!r})
        import rooftest.specs.gemm as found; print(found.__file__)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == root / "specs" / "gemm.py"


def test_the_working_folder_is_bases(trees):
    head = trees / "head"
    code = f"from rooftest.gate import imports; imports.install({str(head)!r}, {str(trees / 'base')!r}); "
    code += "print(open('single.py').read())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=head, check=True)
    assert done.stdout.strip() == "WHERE = 'base'"


def test_a_process_that_has_loaded_heads_tree_already_is_refused(trees):
    code = (
        f"import sys; sys.path.insert(0, {str(trees / 'head')!r}); import single; from rooftest.gate import imports; "
    )
    code += f"imports.install({str(trees / 'head')!r}, {str(trees / 'base')!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip().endswith("RuntimeError: loaded before base's tree could take its place: single")


# --- whether two sides run the same ---------------------------------------------------------------------------------


def row(**keys):
    return parse_row("k", {"op": "gemm", "call": "ops.py:matmul", **keys}, "t")


LAUNCH = {"name": "k", "code": "0a", "grid": [1, 1, 1], "launch": {"num_warps": 4}, "arguments": {"n": "8"}}
OTHER = {"name": "j", "code": "0b", "grid": [2, 1, 1], "launch": {"num_warps": 8}, "arguments": {"n": "9"}}
FILES = {"ops.py": "1", "tuned.json": "1"}


def seen(files, launches=None):
    return {"files": files, "launches": launches}


@pytest.mark.parametrize(
    ("base", "head", "words"),
    [
        (seen(FILES), seen(FILES), []),
        (seen(FILES), seen({**FILES, "ops.py": "2"}), ["ops.py"]),
        (seen(FILES), seen({"ops.py": "1"}), ["tuned.json"]),
        (seen(FILES, [LAUNCH]), seen({**FILES, "ops.py": "2"}, [LAUNCH]), []),
        *(
            (seen(FILES, [LAUNCH]), seen({**FILES, "ops.py": "2"}, [{**LAUNCH, key: OTHER[key]}]), ["ops.py"])
            for key in LAUNCH
        ),
        (seen(FILES, [LAUNCH]), seen({**FILES, "ops.py": "2"}, [LAUNCH, LAUNCH]), ["ops.py"]),
        (seen(FILES, [LAUNCH]), seen({**FILES, "ops.py": "2"}), ["ops.py"]),
        (seen({}), seen({}), ["no file of either tree was read"]),
    ],
)
def test_equal_files_or_equal_launches_are_the_same(base, head, words):
    assert same.differences(base, head, (row(), row())) == words


def test_a_row_that_says_to_run_something_else_is_a_change():
    assert same.differences(seen(FILES), seen(FILES), (row(), row(claims=["deterministic"]))) == []
    assert same.differences(seen(FILES), seen(FILES), (row(), row(prepare="ops.py:pack"))) == ["row: prepare"]
    assert same.differences(seen(FILES, [LAUNCH]), seen(FILES, [LAUNCH]), (row(), row(args={"c": "out"}))) == []


def test_a_watch_sees_what_is_read_however_it_is_read_and_not_what_is_written(tmp_path):
    code = f"""
        import os, sys, pathlib
        from rooftest.gate import same
        root = pathlib.Path({str(tmp_path)!r})
        for name in "abcd":
            (root / name).write_text(name)
        watch = same.Watch(str(root))
        open(root / "a").read(); os.close(os.open(root / "b", os.O_RDONLY)); (root / "w").write_text("")
        os.chdir(root); open("c").read()
        print(*sorted(watch.files()))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["a", "b", "c"]


def test_arguments_are_told_without_their_addresses():
    torch = importlib.import_module("torch")
    assert same._word(torch.zeros(2, 3)) == same._word(torch.ones(2, 3)) == "torch.float32 [2, 3] [3, 1] []"
    assert same._word(torch.zeros(3, 2).t()) != same._word(torch.zeros(2, 3))
    assert (same._word(3), same._word("x"), same._word(print)) == ("3", "'x'", "print")
