"""The repository's own text as training data, and files of settings: shared by the comparisons of quality."""

import json
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def collect(folder, pattern, roots, each):
    """Copies files below `roots`, every `each`-th of them to be validated on; by their whole paths, so that order lasts."""
    files = sorted(path for root in roots for path in root.glob(pattern) if "target" not in path.parts)
    shutil.rmtree(folder, ignore_errors=True)
    for number, path in enumerate(files):
        to = folder / ("validation" if number % each == each - 1 else "train") / path.relative_to(ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to)
    return parts(folder)


def parts(folder):
    """The settings that name the copies in a folder."""
    return dict(data=[str(folder / "train")], eval_data=[str(folder / "validation")])


def settings(path, values):
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))
    return path
