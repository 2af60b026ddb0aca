"""Turn what compare.py and sweep.py measured into a page: a table, and a plot for each figure.

    python bench/report.py COMPARE.json [SWEEP.json ...] [--folder docs/bench]

Writes README.md and the PNG files that it shows. Needs `pip install "decider-native[bench]"`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

try:
    from matplotlib.figure import Figure
except ImportError:
    sys.exit('the plots need matplotlib; run `pip install "decider-native[bench]"`')

Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[1]
MARKERS = "os^dvx"


def conditions(document: Json) -> list[str]:
    """Lines that say what was measured where, and how to do it again."""
    machine, model = document["machine"], document["model"]
    lines = [
        f"- {machine['cpu']}, {machine['cores']} cores, {machine['system']}; load average {machine['load']:.1f} before",
        f"- {model['file']}: {model['description']}, {model['file_bytes'] / 1e6:,.0f} MB",
        f"- threads: {document['threads']}, context_tokens: {model['context_tokens']:,}, "
        f"medians of {document['repeats']}",
        f"- decider_native {document['decider_native']} at {document['commit']}, llama.cpp {document['llama_cpp']}, "
        f"Python {document['python']}, {document['date']}",
    ]
    if document["scale"] != 1:
        lines.append(f"- **Sizes are scaled by {document['scale']}: a trial, whose targets mean nothing.**")
    return [*lines, "", "```sh", document["command"], "```", ""]


def amount(value: float, unit: str) -> str:
    """Write a figure with its unit."""
    if unit == "bytes":
        return f"{value / (1 << 20):,.0f} MiB"
    return f"{value:,.0f} tokens/s" if unit == "tokens/s" else f"{value:.3g} s"


def comparison(document: Json) -> list[str]:
    """Lines of the table: a line per case and contestant."""
    lines = ["| case | contestant | median | runs | ratio | target | |", "|---|---|---|---|---|---|---|"]
    for case in document["cases"]:
        title = case["title"]
        for name, contestant in case["contestants"].items():
            if "left_out" in contestant:
                cells = [f"not measured: {contestant['left_out']}", "", "", ""]
            else:
                ratio = f"{contestant['ratio']:.2f}" if "ratio" in contestant else ""
                cells = [amount(contestant["median"], case["unit"]), str(len(contestant["samples"])), ratio, ""]
            verdict = ""
            if name == case["peer"]:
                cells[3] = f"{case['bound']} {case['target']:.2f}"
                verdict = {True: "met", False: "**not met**", None: "not measured"}[case["met"]]
            lines.append(f"| {title} | {name} | {' | '.join(cell.replace('|', '/') for cell in cells)} | {verdict} |")
            title = ""
    return [*lines, ""]


def plot(figure: Json, path: Path) -> None:
    """Draw one figure, a line per contestant."""
    canvas = Figure(figsize=(6, 4), layout="constrained")
    axes = canvas.subplots()
    for (name, values), marker in zip(figure["series"].items(), MARKERS, strict=False):
        axes.plot(figure["x"], values, marker=marker, label=name)
    axes.set(title=figure["title"], xlabel=figure["x_label"], ylabel=figure["y_label"])
    axes.set_ylim(bottom=0)
    axes.set_xticks(figure["x"])
    axes.grid(alpha=0.3)
    axes.legend()
    canvas.savefig(path, dpi=120, metadata={"Software": None})


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("compare", type=Path, help="what compare.py wrote")
    parser.add_argument("sweep", type=Path, nargs="*", help="what sweep.py wrote")
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "bench")
    arguments = parser.parse_args()
    compared = json.loads(arguments.compare.read_text())
    arguments.folder.mkdir(parents=True, exist_ok=True)
    lines = [
        "# Measured",
        "",
        "Written by [bench/report.py](../../bench/report.py); [bench/README.md](../../bench/README.md) says what each",
        "contestant does. For times the ratio is theirs to ours, for rates and memory ours to theirs.",
        "",
        *conditions(compared),
        *comparison(compared),
    ]
    for sweep in (json.loads(path.read_text()) for path in arguments.sweep):
        lines += ["## Growth", "", *conditions(sweep)]
        for figure in sweep["figures"]:
            plot(figure, arguments.folder / f"{figure['name']}.png")
            lines += [f"![{figure['title']}]({figure['name']}.png)", ""]
    page = arguments.folder / "README.md"
    page.write_text("\n".join(lines).rstrip() + "\n")
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
