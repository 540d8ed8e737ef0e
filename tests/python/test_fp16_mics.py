"""docs/diagnosis/fp16_mics_run.py, shortened: fp16 under ZeRO-3 and MiCS is one run."""

import subprocess
import sys

from command import BINARY, ROOT, needs_binary

pytestmark = needs_binary

TEXT = ROOT / "docs" / "architecture.md"


def run(*more):
    script = ROOT / "docs" / "diagnosis" / "fp16_mics_run.py"
    command = [sys.executable, script, "--reknit", BINARY, "--text", TEXT, *more]
    result = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=240
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return [line.split("|") for line in result.stdout.splitlines() if line.startswith("| ")]


def test_losses_scales_and_skips_are_those_of_one_rank(tmp_path):
    # A short window, so that the scale grows until steps are skipped.
    rows = run("--steps", "24", "--window", "2", "--out", tmp_path)
    assert len(rows) == 7
    for row in rows[2:]:
        assert int(row[-3]) > 0, "nothing was skipped: the case is too tame"
    assert (tmp_path / "fp16_mics.svg").read_text().count("<polyline") == 5
