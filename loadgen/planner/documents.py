"""The documents that the command itself writes: error tables between markers, figures, and the workload page."""

from pathlib import Path

from common.errors import InvalidInput
from loadgen.planner.accuracy import accuracy_sections
from loadgen.planner.figures import draw_all
from loadgen.planner.fit import Constants
from loadgen.planner.section import joined
from loadgen.planner.workload_page import workload_page

BEGIN, END = "<!-- errors: begin (tandem plan --write-docs docs) -->", "<!-- errors: end -->"


def write_documents(constants: Constants, folder: Path) -> list[Path]:
    """Rewrite what is produced in `folder`: planner.md between its markers, planner-workloads.md, figures/."""
    page = folder / "planner.md"
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput("write_docs", folder, f"a folder with planner.md ({error.strerror})") from error
    page.write_text(with_errors(text, constants), encoding="utf-8")
    workloads = folder / "planner-workloads.md"
    workloads.write_text(workload_page(constants), encoding="utf-8")
    return [page, workloads, *draw_all(constants.stack("report-2025"), folder / "figures")]


def with_errors(text: str, constants: Constants) -> str:
    """`text` with fresh error tables between the markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InvalidInput("write_docs", "planner.md", f"the markers {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{joined(accuracy_sections(constants))}\n{END}{after}"
