"""The plot of cost against the vocabulary's size and the number of siblings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from resispec_sim.bench.report import scaling_frame
from resispec_sim.errors import InputError

NAME = "performance"


def plot_scaling(rows: Any, ax: Any, xlabel: str) -> Any:
    """Draw seconds over `x` per figure, both logarithmic, into the axes, which are returned.

    Parameters
    ----------
    rows : DataFrame
        Rows of one kind of `resispec_sim.bench.report.scaling_frame`.
    ax : matplotlib Axes
    xlabel : str
    """
    for figure, of_figure in rows.groupby("figure", sort=False):
        slope = of_figure["slope"].iloc[0]
        ax.plot(
            of_figure["x"], of_figure["seconds"], marker="o", label=f"{figure} (slope {slope:.2f})"
        )
    ax.set(xscale="log", yscale="log", xlabel=xlabel, ylabel="seconds per position")
    ticks = sorted(rows["x"].unique())
    ax.set_xticks(ticks, [f"{x // 1024}k" if x >= 1024 else str(x) for x in ticks])
    ax.minorticks_off()
    ax.grid(alpha=0.3)
    ax.legend(fontsize=8)
    return ax


def save_plot(results: dict[str, Any], folder: str | os.PathLike[str]) -> Path:
    """Write ``performance.png`` and its data, ``performance.csv``; the folder is made if need be.

    Returns
    -------
    Path
        Of the picture.

    Raises
    ------
    InputError
        If the results lack the part ``scaling``.
    """
    if "scaling" not in results:
        raise InputError("the plot shows the part 'scaling', which was not measured")
    from matplotlib.figure import Figure

    frame = scaling_frame(results["scaling"])
    # a Figure of its own: pyplot would choose a window system
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    plot_scaling(frame[frame["against"] == "V"], left, "tokens V")
    size = f"V = {results['scaling']['vocab_size']:,}"
    plot_scaling(frame[frame["against"] == "n"], right, f"siblings n ({size})")
    machine = results["machine"]
    figure.suptitle(
        f"one core of {machine['cpu']}, {machine['date']}; medians over {results['scaling']['n_pairs']} "
        "made-up pairs",
        fontsize=9,
    )
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    frame.to_csv(path / f"{NAME}.csv", index=False)
    picture = path / f"{NAME}.png"
    figure.savefig(picture, dpi=110, metadata={"Software": None})
    return picture
