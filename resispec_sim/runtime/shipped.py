"""The small pair of models that travels with the package, and prompts in its kind of prose."""

from importlib import resources
from pathlib import Path

NAMES = ("tiny-target", "tiny-draft")


def pair_folder() -> Path:
    """Folder with the two models, their figures, their model card and the prompts."""
    return Path(str(resources.files("resispec_sim"))) / "models"


def prompts_file() -> Path:
    """File of the shipped prompts: openings of sentences, one per line."""
    return pair_folder() / "prompts.txt"
