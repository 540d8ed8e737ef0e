"""reknit report: pages and pictures from run folders."""

import json
import subprocess
import xml.etree.ElementTree as ET

import pytest
from command import BINARY, needs_binary

pytestmark = needs_binary


def run_folder(path, losses, *, torn=False):
    path.mkdir()
    lines = [
        json.dumps({"step": s + 1, "loss": x, "lr": 0.1, "actor": {"lr": s}, "skipped": False})
        for s, x in enumerate(losses)
    ]
    (path / "metrics.jsonl").write_text("\n".join(lines) + ("\n{" if torn else "\n"))
    return path


def report(*arguments):
    return subprocess.run(
        [BINARY, "report", *map(str, arguments)], capture_output=True, text=True, timeout=60
    )


def test_a_page_has_a_plot_for_each_key_that_changes_and_a_table_of_the_others(tmp_path):
    run = run_folder(tmp_path / "first", [3.0, 2.5, 2.25])
    (run / "summary.json").write_text(json.dumps({"command": "pretrain", "ranks": 4, "steps": 3}))
    done = report(run)
    assert done.returncode == 0, done.stderr
    page = (run / "report.html").read_text()
    assert done.stdout.strip() == str(run / "report.html")
    assert page.count("<svg") == 2
    assert ">loss</text>" in page and ">actor.lr</text>" in page
    assert "<td>lr</td><td>0.1</td>" in page
    assert "<td>ranks</td><td>4</td>" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


def test_several_runs_share_a_picture_under_the_names_given(tmp_path):
    a = run_folder(tmp_path / "a", [3, 2, 1])
    b = run_folder(tmp_path / "b", [3, 2.5, 2, 1.5])
    out = tmp_path / "loss.svg"
    done = report(a, b, "--names", "ZeRO-3", "MiCS <2>", "--plot", "loss", "--out", out)
    assert done.returncode == 0, done.stderr
    picture = ET.parse(out).getroot()
    texts = [node.text for node in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert "ZeRO-3" in texts and "MiCS <2>" in texts
    lines = [n for n in picture.iter("{http://www.w3.org/2000/svg}path") if n.get("fill") == "none"]
    assert [line.get("d").count("L") for line in lines] == [2, 3]


def test_a_run_that_is_still_going_is_drawn_without_its_unfinished_line(tmp_path):
    run = run_folder(tmp_path / "going", [3, 2], torn=True)
    assert report(run).returncode == 0
    assert "<td>steps</td><td>not ended</td>" in (run / "report.html").read_text()


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("{]", 3, "metrics.jsonl, line 1"),
        ("[1]", 3, "line 1"),
        ('{"loss": 1}', 3, "no object with a step"),
        ("", 3, "line 1"),
    ],
)
def test_lines_that_are_no_metrics_are_refused_by_place(tmp_path, line, code, words):
    run = tmp_path / "bad"
    run.mkdir()
    (run / "metrics.jsonl").write_text(line + "\n")
    done = report(run)
    assert (done.returncode, words in done.stderr) == (code, True), done.stderr
    assert not (run / "report.html").exists()


def test_wrong_requests_say_what_is_right(tmp_path):
    run = run_folder(tmp_path / "run", [3, 2])
    for arguments, code, words in [
        ([tmp_path / "none"], 3, "there is no folder"),
        ([tmp_path], 3, "there is no"),
        ([run, "--plot", "los", "--out", tmp_path / "x.svg"], 2, "no run has this key"),
        ([run, "--plot", "loss", "--out", tmp_path / "x.png"], 2, "does not end in .svg"),
        ([run, "--names", "a", "b"], 2, "2 --names for 1 runs"),
    ]:
        done = report(*arguments)
        assert (done.returncode, words in done.stderr) == (code, True), done.stderr
