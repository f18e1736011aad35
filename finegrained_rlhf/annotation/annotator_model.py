"""A model of annotators (Dawid and Skene, 1979): how often each one overlooks or invents an error.

Beside votes: with two people a majority is an intersection, and items that one person saw have another density of
errors than those that several saw. Here every label is weighed by who gave it, on single items too. The estimate is
crowd-kit's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from finegrained_rlhf.annotation.annotations import Annotation
from finegrained_rlhf.annotation.items import AnnotationItem
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.feedback.labels import SegmentRule
from finegrained_rlhf.feedback.taxonomy import Taxonomy
from finegrained_rlhf.text.segmentation import Segmenter

_STEPS = 100
Believed = Mapping[str, Mapping[tuple[str, int], bool]]
"""Of each item, whether a segment has an error, by category and the segment's place."""


def believed_errors(
    items: Mapping[str, AnnotationItem],
    annotations: Sequence[Annotation],
    taxonomy: Taxonomy,
    segmenter: Segmenter,
) -> Believed:
    """Fit the model to all labels of each category, and say which segments it believes to have an error.

    Qualification items, where everybody is watched, are left out.

    Args:
        items: by id.
        annotations: of them.
        taxonomy: of the project.
        segmenter: cuts answers as reward models will.

    Raises:
        ConfigError: crowd-kit is not installed.
    """
    try:
        import pandas as pd
        from crowdkit.aggregation import DawidSkene
    except ModuleNotFoundError as error:
        raise ConfigError(f"dawid_skene needs {error.name}: pip install '.[web]' in a checkout") from None
    believed: dict[str, dict[tuple[str, int], bool]] = {}
    for name, category in taxonomy.categories.items():
        rule = SegmentRule.of_category(category, taxonomy)
        rows = [
            ((one.item, place), one.annotator, label)
            for one in annotations
            if (marked := items[one.item].marked) is not None and items[one.item].role != "qualification"
            for place, label in enumerate(rule.label(items[one.item].answers[marked], one.feedback(), segmenter).labels)
            if label is not None
        ]
        keys = list(dict.fromkeys(key for key, _, _ in rows))
        numbers = {key: number for number, key in enumerate(keys)}
        table = pd.DataFrame(
            {
                "task": [numbers[key] for key, _, _ in rows],
                "worker": [who for _, who, _ in rows],
                "label": [label for _, _, label in rows],
            }
        )
        labels = DawidSkene(n_iter=_STEPS).fit_predict(table) if rows else {}
        for number, label in dict(labels).items():
            item, place = keys[number]
            believed.setdefault(item, {})[name, place] = bool(label)
    return believed
