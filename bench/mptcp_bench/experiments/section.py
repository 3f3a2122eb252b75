"""A result of ours in words, for the report."""

from __future__ import annotations

from pathlib import Path

from ..document import ExperimentDocument
from ..sections import Figure, Section, word


def section(found: ExperimentDocument, directory: Path) -> Section:
    """Return *found* in words, with its pictures, which are in *directory*."""
    figures, warnings = [], []
    for name in found.pictures:
        picture = directory / f"{Path(name).name}.svg"
        try:
            figures.append(Figure(picture.read_bytes(), f"{found.experiment}: {found.title}"))
        except OSError as error:
            warnings.append(f"The picture {picture.name} cannot be shown: {error.strerror}.")
    return Section(
        document=found,
        label=found.experiment,
        aims=found.aims,
        figures=tuple(figures),
        warnings=tuple(warnings),
        tables=found.tables,
        parameters=tuple((name, word(value)) for name, value in found.parameters.items()),
    )
