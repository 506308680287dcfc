"""The command a user meets."""

import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from common.errors import InvalidInput
from loadgen.planner.cli import app
from loadgen.planner.documents import BEGIN, END, with_errors
from loadgen.planner.fit import Constants
from loadgen.planner.minimise import minimise
from loadgen.planner.section import Section, html_table, markdown, rich_table
from loadgen.planner.stacks import committed_constants

CONSTANTS = Constants.from_json(committed_constants())
ROOT = Path(__file__).parents[3]


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_figures_come_with_their_errors_as_png_json_and_one_page(tmp_path):
    out, page, data = tmp_path / "figures", tmp_path / "plan.html", tmp_path / "plan.json"
    result = run("--figures", out, "--html", page, "--json", data)
    assert result.exit_code == 0, result.output
    names = {"throughput", "breakdown", "microbatch", "roofline-group-gemm", "roofline-gemm"}
    assert {path.stem for path in out.glob("*.png")} == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in out.iterdir())
    text = page.read_text()
    assert text.count("data:image/png;base64,") == 5
    assert "http" not in text
    assert "<script" not in text
    report = json.loads(data.read_text())["sections"][0]
    assert report["title"] == "The reference report"
    assert {row["report"] for row in report["rows"]} >= {2667, 2651, 1896, 1802, 593, 367, 1012, 237, 555, 270, 5.0}
    assert all(abs(row["error"]) <= 0.10 for row in report["rows"])


def test_a_workload_gets_a_split(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("num_prefill_tokens,num_decode_tokens\n2000,500\n3000,700\n")
    data = tmp_path / "plan.json"
    result = run(
        "--workload", trace, "--ttft", "3s", "--itl", "60ms", "--hardware", "h200", "--gpus", 16, "--json", data
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    (section,) = json.loads(data.read_text())["sections"]
    answer = {row[""]: row["answer"] for row in section["rows"]}
    assert answer["prefill"].startswith("1 x EP8")
    assert answer["decode"].startswith("1 x EP8")
    assert "60 ms" in answer["bounds"]


def test_one_deployment_is_taken_apart():
    result = run("--ep", 128, "--hardware", "h100", "--batch", 128, "--stack", "report-2025", "--schedule", "none")
    assert result.exit_code == 0, result.output
    for part in ("mla decode", "combine, busy and exposed", "head and sampling", "latent cache", "datasheet"):
        assert part in result.output


def test_without_a_question_it_sweeps():
    result = run("--hardware", "h200", "--gpus", 8)
    assert result.exit_code == 0, result.output
    assert "best throughput at each output speed" in result.output
    assert "Fastest schedule" in result.output
    assert "141 GB a GPU" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--hardware", "a100"), "hardware = a100: one of gb200"),
        (("--ep", 7), "ep = 7"),
        (("--ep", 8, "--tp", 3), "tp = 3"),
        (("--ep", 8, "--batch", 128), "batch = 128: 141 GB"),
        (("--workload", "nothing"), "workload = nothing"),
        (("--workload", "chat", "--itl", "soon"), "itl = soon"),
        (("--workload", "chat", "--hit-rate", "1.5"), "hit_rate = 1.5"),
        (("--stack", "mine"), "stack = mine"),
        (("--model", "gpt"), "model = gpt"),
        (("--gpu-hour-usd", "0"), "gpu_hour_usd = 0"),
        (("--gpus", 4, "--hardware", "h100"), "gpus = 4"),
        (("--ep", 8, "--workload", "chat"), "ep = 8: not together with workload"),
        (("--rate", 5), "rate = 5.0: not with a sweep; only --workload reads it"),
        (("--tp", 8), "tp = 8: not with a sweep; only --ep reads it"),
        (("--workload", "chat", "--cached", 9), "cached = 9.0: not with --workload"),
        (("--workload", "chat", "--rate", 5, "--gpus", 8), "gpus = 8: not together with rate"),
        (("--workload", "chat", "--rate", 1e30, "--ttft", "5s"), "what 4,096 GPUs carry"),
        (("--fit", "--hardware", "h100"), "hardware = h100: not with --fit"),
        (("--figures", "out", "--tables", "/nowhere"), "tables = /nowhere: a folder"),
        (("--ep", 8, "--redundant", -1), "redundant_experts = -1: at least 0"),
        (("--ep", 8, "--cached", "1e300"), "needs 2.3e+297 = weights"),
        (("--ep", 8, "--model", "deepseek-v2-lite", "--drafts", 1), "draft_tokens = 1: 0"),
        (("--ep", 8, "--json", "/nowhere/x.json"), "json = /nowhere/x.json"),
        (("--figures", "/proc/x"), "figures = /proc/x"),
    ],
)
def test_impossible_questions_end_with_code_2_and_say_why(arguments, words):
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output


def test_a_figure_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "throughput.png").mkdir()
    result = run("--figures", tmp_path)
    assert result.exit_code == 2
    assert f"figures = {tmp_path / 'throughput.png'}: a file that can be written" in result.output


def test_the_documented_error_tables_are_the_commands():
    text = (ROOT / "docs/planner.md").read_text(encoding="utf-8")
    assert with_errors(text, CONSTANTS) == text
    with pytest.raises(InvalidInput):
        with_errors("no markers", CONSTANTS)
    assert BEGIN in text
    assert END in text


def test_documents_need_a_folder_with_the_page(tmp_path):
    assert run("--write-docs", tmp_path).exit_code == 2


def test_committed_figures_are_small():
    figures = list((ROOT / "docs/figures").glob("*.png"))
    assert len(figures) >= 5
    assert all(path.stat().st_size < 150_000 for path in figures)


def test_sections_render_alike_everywhere():
    section = Section("T", ("name", "us"), (("a|b", 1234.5), ("<c>", None)), ("", ",.0f"), "why")
    assert section.shown() == [["a|b", "1,234"], ["<c>", "–"]]
    assert "| a\\|b | 1,234 |" in markdown(section)
    assert "| --- | ---: |" in markdown(section)
    assert "&lt;c&gt;" in html_table(section)
    assert rich_table(section).row_count == 2


def test_brackets_in_cells_are_text(capsys):
    Console(width=80).print(rich_table(Section("T", ("field",), (("results[0].us",), ("[bold]",)))))
    shown = capsys.readouterr().out
    assert "results[0].us" in shown
    assert "[bold]" in shown


def test_the_minimiser_finds_a_curved_valley():
    found = minimise(lambda x: float((1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2), [-1.2, 1.0])
    assert found == pytest.approx([1.0, 1.0], abs=1e-3)
