"""One HTML page with everything in it: no script, no network, images inline."""

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from pathlib import Path

from loadgen.planner.section import Section, html_table

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a}
table{border-collapse:collapse;margin:.5rem 0}
td,th{border:1px solid #ccc;padding:.2rem .6rem;text-align:left;font-variant-numeric:tabular-nums}
th{background:#f2f2f2} img{max-width:100%} p{max-width:60rem}
"""


def html_page(title: str, sections: Sequence[Section], images: Sequence[Path] = ()) -> str:
    """A self-contained page."""
    pictures = "".join(
        f'<figure><img alt="{escape(path.stem)}" src="data:image/png;base64,{b64encode(path.read_bytes()).decode()}">'
        f"</figure>"
        for path in images
    )
    body = "".join(html_table(section) for section in sections)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>{pictures}{body}</body></html>\n"
    )
