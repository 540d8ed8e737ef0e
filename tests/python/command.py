"""The built command, for the tests: REKNIT_BIN, or build/cpu/bin/reknit."""

import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("REKNIT_BIN", ROOT / "build" / "cpu" / "bin" / "reknit"))
needs_binary = pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")
