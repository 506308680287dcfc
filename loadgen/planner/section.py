"""A table with a heading, and its three renderings: terminal, Markdown, HTML."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from rich.markup import escape as escape_markup
from rich.table import Table

Cell = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Section:
    """Rows of raw values; `formats` says how a column is shown (a format specification, or "" for as it is)."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    formats: tuple[str, ...] = ()
    note: str = ""

    def shown(self) -> list[list[str]]:
        """Every cell as text."""
        formats = self.formats or ("",) * len(self.columns)
        return [[_text(cell, spec) for cell, spec in zip(row, formats, strict=True)] for row in self.rows]

    def as_json(self) -> dict[str, Any]:
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return {"title": self.title, "note": self.note, "rows": rows}


def _text(cell: Cell, spec: str) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return format(cell, spec) if spec and not isinstance(cell, str) else str(cell)


def _numeric(section: Section, column: int) -> bool:
    return all(isinstance(row[column], int | float) or row[column] is None for row in section.rows)


def rich_table(section: Section) -> Table:
    table = Table(title=section.title, title_justify="left", caption=section.note or None, caption_justify="left")
    for index, column in enumerate(section.columns):
        # On a narrow terminal a number is folded, never cut.
        table.add_column(column, justify="right" if _numeric(section, index) else "left", overflow="fold")
    for row in section.shown():
        # Cells are data: a field such as results[0].us is no markup.
        table.add_row(*(escape_markup(cell) for cell in row))
    return table


def markdown(section: Section, *, level: int = 3) -> str:
    marks = ["---:" if _numeric(section, i) else "---" for i in range(len(section.columns))]
    lines = [f"{'#' * level} {section.title}", ""]
    lines += ["| " + " | ".join(section.columns) + " |", "| " + " | ".join(marks) + " |"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in section.shown()]
    return "\n".join([*lines, *(["", section.note] if section.note else [])]) + "\n"


def html_table(section: Section) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in section.columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in section.shown())
    note = f"<p>{escape(section.note)}</p>" if section.note else ""
    return f"<h2>{escape(section.title)}</h2><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"


def joined(sections: Sequence[Section], *, level: int = 3) -> str:
    """All sections as Markdown."""
    return "\n".join(markdown(section, level=level) for section in sections)
