"""reknit pretrain --resume and reknit export with a folder that DeepSpeed wrote."""

import json
import shutil
import subprocess

import pytest
from command import BINARY, ROOT, needs_binary
from runs import write_tokens
from test_pretrain import metrics, run

pytestmark = needs_binary

FIXTURE = ROOT / "tests" / "golden" / "deepspeed" / "zero2_groups"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    prefix = tmp_path_factory.mktemp("data") / "text"
    write_tokens(prefix, [[(7 * i + j * j) % 37 for j in range(40)] for i in range(20)])
    return prefix


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """The config that the folder was trained with, which the golden run keeps."""
    path = tmp_path_factory.mktemp("config") / "ds.json"
    settings = json.loads((FIXTURE / "golden.json").read_text())["config"]
    del settings["train_micro_batch_size_per_gpu"]
    path.write_text(json.dumps(settings))
    return path


def pretrain(data, config, out, resume, *more):
    return [
        *(BINARY, "pretrain", "--model", FIXTURE / "config.json", "--data-path", data),
        *("--config", config, "--seq-length", 12, "--device", "cpu", "--steps", 6),
        *("--save-interval", 1, "--eval-iters", 0, "--out", out, "--resume", resume, *more),
    ]


def test_it_goes_on_after_deepspeeds_last_step_and_then_from_its_own(data, config, tmp_path):
    said = run(*pretrain(data, config, tmp_path / "two", FIXTURE, "--ranks", 2))
    assert "ZeRO-2 over 3 ranks, step 3 (0 skipped), 18 sequences" in said.stdout + said.stderr
    lines = metrics(tmp_path / "two")
    assert [line["step"] for line in lines] == [4, 5, 6]
    rates = [line["lr"] for line in lines]
    assert rates == pytest.approx([0.01, 0.008875, 0.00775])  # WarmupDecayLR, from its 4th update
    one = tmp_path / "one"
    run(*pretrain(data, config, one, FIXTURE, "--ranks", 1, "--set", "zero_optimization.stage=0"))
    for mine, other in zip(metrics(one), lines, strict=True):
        assert mine["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert mine["lr"] == other["lr"]
    shutil.rmtree(one / "step-000006")
    run(*pretrain(data, config, one, "auto", "--ranks", 2))
    assert metrics(one)[-1]["loss"] == pytest.approx(lines[-1]["loss"], rel=1e-5)


def test_a_missing_rank_is_one_sentence_and_exit_3(data, config, tmp_path):
    damaged = tmp_path / "damaged"
    shutil.copytree(FIXTURE, damaged)
    name = "zero_pp_rank_2_mp_rank_00_optim_states.pt"
    (damaged / "global_step3" / name).unlink()
    said = run(*pretrain(data, config, tmp_path / "run", damaged, "--ranks", 2), code=3)
    assert f"lacks {name}: its files say 3 ranks" in said.stderr
    assert said.stderr.count("error:") == 1


def test_its_model_is_exported_for_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    out = tmp_path / "model"
    said = run(BINARY, "export", FIXTURE, "--model-config", FIXTURE / "config.json", "--out", out)
    assert str(out) in said.stdout
    model, report = transformers.AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not report["missing_keys"] and not report["mismatched_keys"]
    assert all(weight.isfinite().all() for weight in model.parameters())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((), "does not say what its model is"),
        (("--model-config", FIXTURE / "config.json", "--model", "actor"), "holds one model"),
    ],
)
def test_an_export_says_what_it_lacks(tmp_path, more, words):
    done = subprocess.run(
        [BINARY, "export", FIXTURE, "--out", tmp_path / "model", *more],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "model").exists()
