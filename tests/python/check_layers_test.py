"""scripts/check_layers finds each kind of planted violation, and only those."""

import pathlib

import pytest
from runs import checked

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = (ROOT / "scripts/layers.txt").read_text()


def run(tmp_path, files):
    return checked(ROOT / "scripts/check_layers", tmp_path, {"scripts/layers.txt": TABLE} | files)


@pytest.mark.parametrize(
    "path, include, part_of_reason",
    [
        ("reknit/base/x.h", '"reknit/config/y.h"', "base may include nothing"),
        ("reknit/config/x.cpp", '"reknit/kernels/y.h"', "config may include base, not kernels"),
        ("reknit/comm/x.cpp", '"reknit/store/y.h"', "not store"),
        ("reknit/models/x.h", '"reknit/store/layout.h"', "not store"),
        ("reknit/models/x.h", '"reknit/comm/y.h"', "not comm"),
        ("reknit/optim/x.cpp", '"reknit/models/y.h"', "not models"),
        ("reknit/engine/x.cpp", '"reknit/rlhf/y.h"', "not rlhf"),
        ("reknit/rlhf/x.cpp", '"apps/cli.h"', "knows nothing of what is built on it"),
        ("reknit/base/x.cpp", '"tests/support/y.h"', "knows nothing of what is built on it"),
        ("reknit/base/x.cpp", '"reknit/y.h"', "headers live in a folder"),
        ("reknit/base/x.cpp", '"reknit/misc/y.h"', "misc has no row"),
        ("reknit/misc/x.cpp", "<vector>", "no row"),
        ("reknit/base/x.h", "<torch/torch.h>", "costs every includer seconds"),
        ("reknit/base/x.h", "<ATen/ATen.h>", "costs every includer seconds"),
        ("reknit/kernels/x.cu", "<ATen/core/Tensor.h>", "raw pointers"),
        ("reknit/store/x.cu", "<cstdint>", "live in reknit/kernels only"),
    ],
)
def test_a_forbidden_include_fails_with_file_line_and_reason(
    tmp_path, path, include, part_of_reason
):
    result = run(tmp_path, {path: f"// Purpose.\n#include {include}\n"})
    assert result.returncode == 1
    assert part_of_reason in result.stdout
    assert result.stdout.startswith(f"{path}:")


def test_the_line_of_the_include_is_named(tmp_path):
    result = run(tmp_path, {"reknit/base/x.h": '// A.\n\n\n  #  include "reknit/comm/y.h"\n'})
    assert "reknit/base/x.h:4: " in result.stdout


def test_a_source_includes_its_own_header_first(tmp_path):
    result = run(
        tmp_path,
        {
            "reknit/base/x.h": "// Purpose.\n",
            "reknit/base/x.cpp": '#include <vector>\n#include "reknit/base/x.h"\n',
        },
    )
    assert result.returncode == 1
    assert "its own header first" in result.stdout


def test_allowed_includes_pass(tmp_path):
    result = run(
        tmp_path,
        {
            "reknit/models/x.h": '#include "reknit/store/param_ref.h"\n',
            "reknit/models/x.cpp": '#include "reknit/models/x.h"\n#include "reknit/base/y.h"\n',
            "reknit/store/x.cpp": '#include "reknit/comm/y.h"\n#include <ATen/ATen.h>\n',
            "reknit/base/pch.h": "#include <ATen/ATen.h>\n",
            "reknit/kernels/x.cu": '#include "reknit/base/y.h"\n#include <cuda_runtime.h>\n',
            "apps/main.cpp": '#include "apps/cli.h"\n#include "reknit/rlhf/y.h"\n',
        },
    )
    assert result.returncode == 0, result.stdout + result.stderr
