"""A page of headings, text, tables and pictures, as Markdown with files beside it or as one HTML file."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd


@dataclass(frozen=True)
class Heading:
    """A heading; level 1 is the title of the page."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Text:
    """A paragraph, or items of a list. Inline: **bold**, `code` and [links](to)."""

    lines: str | tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table of text; columns that hold numbers only are aligned to the right."""

    frame: pd.DataFrame


@dataclass(frozen=True)
class Picture:
    """A picture file beside the page, with its caption."""

    path: Path
    caption: str


@dataclass(frozen=True)
class Code:
    """Lines of a program or a shell."""

    lines: tuple[str, ...]


Block = Heading | Text | Table | Picture | Code


@dataclass
class Document:
    """Blocks in their order."""

    blocks: list[Block] = field(default_factory=list)

    def add(self, *blocks: Block) -> None:
        """Append blocks."""
        self.blocks += blocks

    def markdown(self) -> str:
        """GitHub's Markdown; pictures are links to files in the page's own folder."""
        return "\n\n".join(map(_markdown, self.blocks)) + "\n"

    def html(self) -> str:
        """One file with everything in it, pictures as data URIs: it can be sent as it is."""
        title = next((block.text for block in self.blocks if isinstance(block, Heading)), "Report")
        chapters = [block for block in self.blocks if isinstance(block, Heading) and block.level == 2]
        contents = "".join(f'<li><a href="#{_anchor(h.text)}">{_inline(h.text)}</a></li>' for h in chapters)
        body = "\n".join(map(_html, self.blocks))
        return _PAGE.format(title=html.escape(title), contents=contents, body=body)


def table(frame: pd.DataFrame) -> str:
    """A DataFrame of text as a Markdown table; numbers are aligned to the right."""
    if frame.empty:
        return "Nothing recorded."
    cells = [[str(value).replace("|", "\\|") for value in row] for row in frame.itertuples(index=False)]
    rule = ["--:" if right else "---" for right in _numeric(frame)]
    return "\n".join("| " + " | ".join(row) + " |" for row in ([*frame.columns], rule, *cells))


def _numeric(frame: pd.DataFrame) -> list[bool]:
    return [all(str(cell)[:1].isdigit() or str(cell)[:1] in "+-" for cell in frame.iloc[:, i])
            for i in range(frame.shape[1])]


def _markdown(block: Block) -> str:
    match block:
        case Heading():
            return f"{'#' * block.level} {block.text}"
        case Text():
            return block.lines if isinstance(block.lines, str) else "\n".join(f"- {line}" for line in block.lines)
        case Table():
            return table(block.frame)
        case Picture():
            return f"![{block.caption}]({block.path.name})\n\n{block.caption}"
        case Code():
            return "\n".join(["```", *block.lines, "```"])


def _html(block: Block) -> str:
    match block:
        case Heading():
            return f'<h{block.level} id="{_anchor(block.text)}">{_inline(block.text)}</h{block.level}>'
        case Text(str()):
            return f"<p>{_inline(block.lines)}</p>"
        case Text():
            return "<ul>" + "".join(f"<li>{_inline(line)}</li>" for line in block.lines) + "</ul>"
        case Table():
            return _html_table(block.frame)
        case Picture():
            data = base64.b64encode(block.path.read_bytes()).decode()
            caption = html.escape(block.caption)
            return (f'<figure><img src="data:image/png;base64,{data}" alt="{caption}">'
                    f"<figcaption>{_inline(block.caption)}</figcaption></figure>")
        case Code():
            return "<pre>" + html.escape("\n".join(block.lines)) + "</pre>"


def _html_table(frame: pd.DataFrame) -> str:
    if frame.empty:
        return "<p>Nothing recorded.</p>"
    right = _numeric(frame)
    head = "".join(f"<th>{_inline(str(column))}</th>" for column in frame.columns)
    rows = "".join("<tr>" + "".join(_cell(str(v), r) for v, r in zip(row, right, strict=True)) + "</tr>"
                   for row in frame.itertuples(index=False))
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _cell(value: str, right: bool) -> str:
    kind = {"reproduced": "good", "yes": "good", "differs": "bad", "no": "bad", "not run here": "open"}.get(value, "")
    classes = " ".join(filter(None, ["n" if right else "", kind]))
    return f'<td class="{classes}">{_inline(value)}</td>' if classes else f"<td>{_inline(value)}</td>"


def _anchor(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _inline(text: str) -> str:
    """Inline Markdown as HTML; what stands in backquotes stays as it is."""
    parts: Sequence[str] = re.split(r"`([^`]*)`", html.escape(text))
    for_each = []
    for i, part in enumerate(parts):
        if i % 2:
            for_each.append(f"<code>{part}</code>")
            continue
        part = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", part)
        for_each.append(re.sub(r"\[([^]]+)\]\(([^)]+)\)", r'<a href="\2">\1</a>', part))
    return "".join(for_each)


_PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}
h2 {{ margin-top: 2.5rem; border-bottom: 1px solid #ccc }}
table {{ border-collapse: collapse; font-size: 13px }}
th, td {{ border-bottom: 1px solid #ddd; padding: .25rem .6rem; text-align: left; vertical-align: top }}
th {{ position: sticky; top: 0; background: #fff }}
.wide {{ overflow-x: auto; max-height: 45rem; overflow-y: auto; margin: 1rem 0 }}
.n {{ text-align: right; white-space: nowrap }}
.good {{ color: #00664b }} .bad {{ color: #a63c00 }} .open {{ color: #777 }}
figure {{ margin: 1rem 0 }} img {{ max-width: 100% }} figcaption {{ color: #555 }}
pre, code {{ font: 12.5px/1.4 ui-monospace, monospace; background: #f5f5f5 }} pre {{ padding: .6rem; overflow-x: auto }}
nav ol {{ columns: 2 }}
</style>
<nav><ol>{contents}</ol></nav>
{body}
</html>
"""
