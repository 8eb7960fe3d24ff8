"""Check the live runtime on a GPU and measure it; under eight minutes.

    python tests/gpu/check_runtime.py [--device cuda|cpu] [--json FILE] [--quick] [--seconds 440]

Every section prints what it finds; the JSON file is written anew after each. A section that crashes or
takes too long loses itself only. The exit code is 1 if a check failed or a section did not come to its
end. Needs the extras ``torch`` and ``dev``. ``--quick`` takes fewer cases and scaled-down shapes; the CPU
always takes scaled-down shapes.

This project has had no GPU so far: this script was run on the CPU only. What fails on the first GPU is
news, and the latencies that it prints there are the first ones.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from sections import TOTAL, Section, run_sections

# Seconds of a section, and of the same with --quick, which is short by itself: those are for slow machines.
SECTIONS = (
    Section("machine", "runtime_checks", "check_machine", (20, 60)),
    Section("tree passes", "runtime_checks", "check_tree_passes", (60, 120)),
    Section("draft rows", "runtime_checks", "check_draft_rows", (60, 120)),
    Section("rules in torch", "runtime_checks", "check_rules", (80, 120)),
    Section("greedy decoding", "runtime_checks", "check_greedy", (90, 120)),
    Section("output law", "runtime_checks", "check_law", (80, 120)),
    Section("reproducibility", "runtime_checks", "check_reproducible", (30, 120)),
    Section("half precision", "runtime_checks", "check_half", (40, 120)),
    Section("several GPUs", "runtime_checks", "check_several", (20, 60)),
    Section("latency", "runtime_latency", "measure_latency", (150, 120)),
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 or cpu")
    parser.add_argument("--json", type=Path, help="also write the findings to a file")
    parser.add_argument("--quick", action="store_true", help="fewer cases, scaled-down shapes")
    parser.add_argument(
        "--seconds", type=float, default=TOTAL, help="for all; sections get their share"
    )
    parser.add_argument("--only", nargs="*", help="names of sections; default: all")
    chosen = parser.parse_args(arguments)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    start = time.perf_counter()

    def write(findings) -> None:
        if chosen.json:
            about = {"device": chosen.device, "quick": chosen.quick}
            chosen.json.write_text(json.dumps({**about, **findings.as_dict()}, indent=1) + "\n")

    wanted = [s for s in SECTIONS if not chosen.only or s.name in (*chosen.only, "machine")]
    findings = run_sections(wanted, chosen.device, chosen.quick, chosen.seconds, write)
    if wanted[0].name in findings.failed:
        print(f"{chosen.device!r} cannot be used; --device cpu runs the same checks on the CPU")
    n_checks = sum(len(of_section) for of_section in findings.checks.values())
    print(f"\n{n_checks} checks in {time.perf_counter() - start:.0f} s on {chosen.device}")
    for name, what in findings.failed.items():
        print(f"FAILED {name}: {what}")
    print("nothing failed" if not findings.failed else f"{len(findings.failed)} failed")
    return 1 if findings.failed else 0


if __name__ == "__main__":
    sys.exit(main())
