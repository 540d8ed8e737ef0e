"""scripts/check_shape measures files and functions, and caps them."""

import pathlib

from runs import checked

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(tmp_path, files):
    return checked(ROOT / "scripts/check_shape", tmp_path, {"scripts/shape_allow.txt": ""} | files)


def function(num_lines, head="void f(int a) {", statement="  a = 1;"):
    return "\n".join([head] + [statement] * (num_lines - 2) + ["}"]) + "\n"


def file(body, suffix="cpp"):
    return {f"reknit/base/x.{suffix}": "// What it is for.\n" + body}


def test_functions_at_the_limits_pass_and_one_line_more_does_not(tmp_path):
    assert "notes" in run(tmp_path, file(function(60))).stdout
    soft = run(tmp_path, file(function(61)))
    assert soft.returncode == 0
    assert "note: reknit/base/x.cpp:2: f: lines 61, aim at 60" in soft.stdout
    assert run(tmp_path, file(function(100))).returncode == 0
    hard = run(tmp_path, file(function(101)))
    assert hard.returncode == 1
    assert "reknit/base/x.cpp:2: f: lines 101, the limit is 100" in hard.stdout


def test_a_kernel_may_have_120_lines(tmp_path):
    head = "__global__ void __launch_bounds__(256) k(float* x) {"
    assert run(tmp_path, file(function(120, head), "cu")).returncode == 0
    assert ": k: lines 121" in run(tmp_path, file(function(121, head), "cu")).stdout


def test_functions_are_found_in_classes_templates_and_after_odd_text(tmp_path):
    body = (
        "int i;\nnamespace a {\nclass B : public C {\n public:\n"
        + 'const char* t = R"x(}}} void g() { )x";  // } {\n'
        + "char c = '{'; int n = 1'000;\n"
        + "#define M(x) do { x } while (0)\n"
        + function(100, "template <class T, class U = A<B<int>>>\nFoo<T> method(T) const {")
        + "};\n"
        + function(101, "D::D(int a) : b_(a), c_(f(a)) {")
        + function(101, "bool operator==(const B& l, const B& r) {")
        + function(101, "TEST(Layout, CoversEverything) {")
        + "int table[] = {\n"
        + "  1,\n" * 110
        + "};\n}\n"
    )
    result = run(tmp_path, file(body))
    found = [line.split(": ")[1] for line in result.stdout.splitlines() if ": lines 101" in line]
    assert found == ["method", "D::D", "operator==", "Layout.CoversEverything"]


def test_branches_are_capped(tmp_path):
    many = function(26, statement="  if (a) a = 1;")
    assert run(tmp_path, file(many)).returncode == 0
    more = function(28, statement="  if (a) a = 1;")
    assert "f: branches 27, the limit is 25" in run(tmp_path, file(more)).stdout
    comments = function(40, statement="  // if (a && b)")
    assert run(tmp_path, file(comments)).returncode == 0


def test_file_lengths_are_capped(tmp_path):
    assert run(tmp_path, file("int a;\n" * 799)).returncode == 0
    assert "lines 801" in run(tmp_path, file("int a;\n" * 800)).stdout
    (tmp_path / "reknit/base/x.cpp").unlink()
    assert run(tmp_path, file("int a;\n" * 399, "h")).returncode == 0
    assert "lines 401" in run(tmp_path, file("int a;\n" * 400, "h")).stdout


def test_python_functions_are_measured(tmp_path):
    body = '"""What it is for."""\n\n\ndef f(a):\n' + "    a = 1\n" * 100
    result = run(tmp_path, {"scripts/tool.py": body})
    assert "scripts/tool.py:4: f: lines 101" in result.stdout


def test_a_file_without_a_purpose_fails(tmp_path):
    result = run(tmp_path, {"reknit/base/x.h": "#pragma once\n// Late words.\n"})
    assert result.returncode == 1
    assert "x.h:1: no purpose" in result.stdout


def test_a_header_may_speak_for_the_source_and_the_test_named_after_it(tmp_path):
    include = '#include "reknit/base/x.h"\n'
    own = {"reknit/base/x.cpp": include, "tests/base/x_test.cpp": include}
    assert run(tmp_path, own).returncode == 0
    result = run(tmp_path, {"tests/base/y_test.cpp": include})
    assert "tests/base/y_test.cpp:1: no purpose" in result.stdout


def test_the_allow_list_needs_a_reason_and_must_be_needed(tmp_path):
    listed = {"scripts/shape_allow.txt": "reknit/base/x.cpp::f one table, read as a whole\n"}
    assert run(tmp_path, file(function(101)) | listed).returncode == 0
    stale = run(tmp_path, file(function(10)) | listed)
    assert stale.returncode == 1
    assert "delete the entry" in stale.stdout
    bare = {"scripts/shape_allow.txt": "reknit/base/x.cpp::f\n"}
    result = run(tmp_path, file(function(101)) | bare)
    assert result.returncode == 1
    assert "has no reason" in result.stderr
