"""The driver ./dev: what it says and refuses. Nothing is installed or built here."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMANDS = ["setup", "build", "test", "demo", "bench", "format", "lint", "clean", "help"]


def run(*args, path=None, **environment):
    env = os.environ | {"REKNIT_PYTHON": sys.executable} | environment
    if path:
        env["PATH"] = f"{path}:{env['PATH']}"
    return subprocess.run([ROOT / "dev", *args], capture_output=True, text=True, env=env)


@pytest.fixture
def programs(tmp_path):
    """Makes stand-ins for programs: programs(name="shell text") returns their folder."""

    def make(**texts):
        for name, text in texts.items():
            file = tmp_path / name.replace("_", "-")
            file.write_text("#!/bin/sh\n" + text + "\n")
            file.chmod(0o755)
        return tmp_path

    return make


def test_help_says_what_every_command_does():
    for arguments in ([], ["help"], ["--help"]):
        result = run(*arguments)
        assert result.returncode == 0
        for command in COMMANDS:
            line = next(x for x in result.stdout.splitlines() if x.startswith(f"  {command}"))
            assert len(line.split()) >= 3


@pytest.mark.parametrize("arguments", [["buidl"], ["build", "gpu"], ["bench", "no_such_thing"]])
def test_an_unknown_word_is_exit_2_with_help(arguments):
    result = run(*arguments)
    assert result.returncode == 2
    assert result.stderr.startswith("error: no ")
    assert "help: " in result.stderr


def test_output_has_no_colours_when_it_is_not_a_terminal():
    assert "\x1b" not in run("bench").stdout


def test_a_missing_package_without_root_prints_the_apt_line_and_stops(programs):
    path = programs(
        dpkg_query='case "$*" in *libgtest-dev*) exit 1;; *) echo installed 99:1;; esac',
        id="echo 1000",
        sudo="exit 1",
        apt_get="echo apt-get was called >&2; exit 1",
    )
    result = run("setup", path=path)
    assert result.returncode == 2
    assert "system packages are missing: libgtest-dev\n" in result.stderr
    assert "apt-get install --yes --no-install-recommends libgtest-dev\n" in result.stderr
    assert "apt-get was called" not in result.stderr


def test_a_package_that_is_too_old_counts_as_missing(programs):
    path = programs(
        dpkg_query='case "$*" in *"g++"*) echo installed 4:9.1;; *) echo installed 99:1;; esac',
        id="echo 1000",
        sudo="exit 1",
    )
    assert "system packages are missing: g++\n" in run("setup", path=path).stderr


def test_with_root_the_missing_package_is_installed_after_its_size_is_said(programs, tmp_path):
    path = programs(
        dpkg_query=f'case "$*" in *libgtest-dev*) [ -e {tmp_path}/done ] || exit 1;; esac; '
        "echo installed 99:1",
        id="echo 0",
        apt_get=f'case "$*" in *assume-no*) echo "Need to get 1 MB";; '
        f"*--yes*libgtest-dev) touch {tmp_path}/done;; esac",
    )
    result = run("setup", path=path)
    assert result.returncode == 0, result.stderr
    assert "system packages to install: libgtest-dev\nNeed to get 1 MB\n" in result.stdout


def test_a_python_that_is_none_is_refused():
    result = run("setup", REKNIT_PYTHON="/no/such/python")
    assert result.returncode == 2
    assert "/no/such/python is not a program" in result.stderr


def test_a_complete_environment_is_reused_and_an_incomplete_one_made_anew(programs, tmp_path):
    """python3 is a stand-in that makes no real environment but records what is asked of it."""
    made = f"{tmp_path}/made"
    fake_pip = '#!/bin/sh\\necho "$@" >>' + made
    path = programs(
        python3=f'case "$*" in "-m venv"*) echo venv >>{made}; mkdir -p "$3/bin"; '
        f"printf '{fake_pip}\\n' >$3/bin/python; chmod +x $3/bin/python;; "
        f'*) exec {sys.executable} "$@";; esac'
    )
    home = tmp_path / "home"

    def setup():
        result = run("setup", path=path, REKNIT_PYTHON="", REKNIT_HOME=str(home))
        assert result.returncode == 0, result.stderr
        return result.stdout

    assert "to download" in setup()
    first = pathlib.Path(made).read_text()
    assert first.startswith("venv\n")
    assert "torch==" in first
    assert "to download" not in setup()
    assert pathlib.Path(made).read_text() == first
    next(home.glob("env-*/complete")).unlink()
    assert "to download" in setup()
    assert pathlib.Path(made).read_text() == first + first
