"""A small dump to replay, and how tests look figures up in a report."""

import os

import numpy as np
from rich.console import Console

from resispec_sim import write_dump

V, N_PROMPTS, LENGTH = 12, 3, 7
SHAPED = "resispec[capacity,minimal]"


def small_dump(tmp_path_factory):
    rng = np.random.default_rng(5)
    targets, drafts, tokens = [], [], []
    for _ in range(N_PROMPTS):
        target = rng.normal(size=(LENGTH, V)) * 2
        probs = np.exp(target) / np.exp(target).sum(axis=1, keepdims=True)
        targets.append(target)
        drafts.append(target + rng.normal(size=(LENGTH, V)))
        tokens.append([int(rng.choice(V, p=row)) for row in probs])
    folder = tmp_path_factory.mktemp("dumps") / "small"
    return write_dump(folder, targets, drafts, tokens, dtype="float32")


def printed(report, width=110):
    console = Console(width=width, record=True, file=open(os.devnull, "w"))
    with console.file:
        console.print(report.table())
        return console.export_text()


def group_of(report, siblings, rule, temperature=1.0):
    (figures,) = [
        figures
        for group in report.summary["groups"]
        for figures in group["rules"]
        if (group["siblings"], group["temperature"]) == (siblings, temperature)
        and figures["rule"] == rule
    ]
    return figures
