"""The built command, for the tests: REKNIT_BIN, or build/cpu/bin/reknit."""

import os
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("REKNIT_BIN", ROOT / "build" / "cpu" / "bin" / "reknit"))
needs_binary = pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")

_LAUNCHERS = re.compile(r"^(RANK|LOCAL_|WORLD_SIZE|MASTER_|OMPI_|PMI_|SLURM_|TORCHELASTIC_)")


def unlaunched():
    """This environment without what a launcher may have put into it."""
    return {key: value for key, value in os.environ.items() if not _LAUNCHERS.match(key)}
