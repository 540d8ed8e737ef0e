"""scripts/check_docs finds flags and keys that do not exist, and only those."""

import pathlib
import subprocess

import pytest
from runs import checked

ROOT = pathlib.Path(__file__).resolve().parents[2]


def check(tmp_path, page):
    """Lays out a working copy with one command, two keys and `page`, and runs the check on it."""
    files = {
        "apps/x_flags.cpp": 'app.add_option("--global-batch-size,--batch", n); // "--set"',
        "apps/y.cpp": '    {"no-save-rng", kFlag, "", kNoMeaning},',
        "reknit/config/keys_x.cpp": '{"zero_optimization"}, key("zero_optimization.stage")',
        "scripts/docs_allow.txt": "--prefix  # another program's\n",
        "docs/page.md": page,
    }
    return checked(ROOT / "scripts/check_docs", tmp_path, files)


@pytest.mark.parametrize(
    "page",
    [
        "`--batch 2`, `--global_batch_size=4` and --no-save-rng, --prefix DIR",
        "Sharded --gather--> Full --last release--> Sharded",
        "| a | --- | b-- |",
        "`zero_optimization.stage`, `store.cpp`, `--set zero_optimization.stage=3`",
        '```json\n"zero_optimization": {"stage": 3}\n```',
        '```json\n{"prompt": "a", "other": {"stage": 3}}\n```',
    ],
)
def test_what_exists_passes(tmp_path, page):
    result = check(tmp_path, page)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    "page, part",
    [
        ("a\n\n`reknit x --bach 2`", "docs/page.md:3: no program here has the flag --bach"),
        ("```\nreknit x --no-save\n```", "the flag --no-save"),
        ("`zero_optimization.stages`", "the config has no key zero_optimization.stages"),
        ("`--set zero_optimization.stag=3`", "no key zero_optimization.stag"),
        ('```json\n"zero_optimization": {"stge": 3}\n```', "no key zero_optimization.stge"),
    ],
)
def test_what_does_not_exist_is_named_with_its_place(tmp_path, page, part):
    result = check(tmp_path, page)
    assert result.returncode == 1
    assert part in result.stderr


def test_the_pages_of_this_checkout_pass():
    assert subprocess.run([ROOT / "scripts/check_docs"]).returncode == 0
