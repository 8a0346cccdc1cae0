"""Draw a report: every subject's times, with its ratios in the title. Needs the extra `plots`."""

from __future__ import annotations

from pathlib import Path

from bench.measuring import BenchReport


def plot(report: BenchReport, path: Path) -> None:
    """One row per subject, from p10 to p99, the median marked; milliseconds on a logarithmic scale."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = list(report.measured.rounds)[::-1]
    figure, axes = plt.subplots(figsize=(10, 1.2 + 0.42 * len(names)), layout="constrained")
    for row, name in enumerate(names):
        p10, p50, p90, p99 = (s * 1000 for s in report.measured.quantiles(name).values())
        axes.plot([p10, p99], [row, row], color="0.75", linewidth=2)
        axes.plot([p10, p90], [row, row], color="C0", linewidth=6, solid_capstyle="butt")
        axes.plot([p50], [row], color="black", marker="|", markersize=14)
    axes.set_yticks(range(len(names)), names)
    axes.set_xscale("log")
    axes.set_xlabel("ms a call: p10 to p90, thin to p99, median marked")
    goals = [f"{f.name}: {f.ratio:.2f}, {f.verdict}" for f in report.figures if f.verdict]
    axes.set_title("\n".join([report.bench, *goals]), loc="left", fontsize=9)
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)
