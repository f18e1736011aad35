"""One fold of a row of rewards with a bottleneck: fits heads and measures them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from finegrained_lab.experiments.qa_feedback.bottleneck import FAMILIES, OTHERS, ROLES, BottleneckRow
from finegrained_lab.experiments.qa_feedback.split import Fold
from finegrained_rlhf.core.files import naming
from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.metrics.grounding import facts_recalled, facts_unsupported
from finegrained_rlhf.rewards.composition import RewardComposer
from finegrained_rlhf.rewards.config import ComponentConfig, RewardConfig
from finegrained_rlhf.rewards.stress.changes import Change
from finegrained_rlhf.rewards.stress.measure import RatedTexts, Verdict, verdicts
from finegrained_rlhf.rewards.stress.reading import StressItem
from finegrained_rlhf.rewards.stress.search import price
from finegrained_rlhf.text.trivial import cut_lead
from reward_models.bottleneck.features import Array, Source
from reward_models.bottleneck.fit import FitSettings, fit_components, fit_need, lessons_of
from reward_models.bottleneck.model import COMPONENTS, Bottleneck, BottleneckRecord, SentenceEncoder
from reward_models.bottleneck.need import average_precision, said_shares
from reward_models.bottleneck_scorer import BottleneckScorer
from reward_models.data.examples import LabelSettings
from reward_models.kinds import KINDS
from reward_models.trust.items import JudgedRecord, judged_records
from reward_models.trust.judging import judge_by_bottleneck


def texts_nobody_wrote(item: StressItem, model: Bottleneck, foreign: str) -> dict[str, str]:
    """Answers that nobody has to be paid for: by name."""
    record = item.record
    source = model.source(record.question, item.prompt.metadata["passages"])
    first = cut_lead([" ".join(passage[1:]) for passage in record.passages]) or ""
    best = source.sentences[source.nearest] if source.sentences else ""
    named = {"cut lead": first, "best sentence": best, "restated question": record.question}
    return {"gold": record.gold, **named, "foreign answer": foreign, "empty": ""}


def recall(encoder: SentenceEncoder, path: Path) -> None:
    """Give an encoder the vectors that an earlier run kept."""
    if path.is_file():
        with naming(path), np.load(path) as saved:
            texts = json.loads(saved["texts"].tobytes().decode())
            encoder.known.update(zip(texts, saved["vectors"].astype(np.float32), strict=True))


def keep(encoder: SentenceEncoder, path: Path) -> None:
    """Keep the vectors of all texts that an encoder has read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = np.frombuffer(json.dumps(list(encoder.known)).encode(), dtype=np.uint8)
    np.savez(path, texts=texts, vectors=np.array(list(encoder.known.values()), dtype=np.float16))


class FoldRun:
    """One row in one fold: heads for each family that is left out, and what they say of the held-out questions."""

    def __init__(
        self,
        row: BottleneckRow,
        encoder: SentenceEncoder,
        fold: Fold,
        items: Mapping[str, StressItem],
        changes: Sequence[Change],
        seed: int,
    ) -> None:
        self.row, self.fold, self.seed = row, fold, seed
        self.items = {record.id: items[record.id] for record in fold.test if record.id in items}
        self.changes = [change for change in changes if change.record in self.items]
        record = BottleneckRecord(row.encoder, encoder.digest, "english")
        self.model = Bottleneck(record, encoder, {}, remembered=None)
        self.lessons = lessons_of(self.model, fold.train, row.config, FitSettings(KINDS, seed=seed))
        self.learnt = fit_need(self.model, self.lessons, KINDS, row.config)
        if row.oracle:
            known = [one for one in (*fold.train, *fold.test) if one.gold is not None]
            self.model.hold({source: shares / shares.max(initial=1e-9) for source, shares in map(self._gold, known)})

    def _gold(self, record: FeedbackRecord) -> tuple[Source, Array]:
        assert record.gold is not None
        source, cut = self.model.source(record.question, record.passages), self.model.segmenter.sub_sentences
        return source, said_shares(source, record.gold, [record.gold[start:end] for start, end in cut(record.gold)])

    def needed(self) -> dict[str, dict[str, Any]]:
        """Of each held-out question how well the sentences that its gold answer says are told, and what it says."""
        rows: dict[str, dict[str, Any]] = {}
        for record in self.fold.test:
            if record.id in self.items:
                source, shares = self._gold(record)
                right, need = shares > self.row.config.needed, self.model.need(source)
                row: dict[str, Any] = {"needed": int(right.sum()), "sentences": len(right)}
                if right.any() and not right.all():
                    above = need[right][:, None] - need[~right]
                    row["auc"] = float(((above > 0) + (above == 0) / 2).mean())
                    row["average_precision"] = average_precision(need, right)
                rows[record.id] = row
        return rows

    def measure(self) -> dict[str, Any]:
        """What `fold_K.json` holds."""
        choice = {} if self.row.oracle else self.learnt.to_json()
        measured: dict[str, Any] = {"choice": choice, "need": self.needed(), "changes": [], "trivial": {}, "judged": {}}
        for left_out in [*(FAMILIES if self.row.config.planted else ()), None]:
            fit_components(self.model, self.lessons, KINDS, left_out)
            print(f"bottleneck: fitted without {left_out or 'nothing'}", flush=True)
            rated = self._rated()
            tested = (left_out,) if left_out else OTHERS if self.row.config.planted else (*FAMILIES, *OTHERS)
            measured["changes"] += [_verdict(one) for one in self._verdicts(rated, tested)]
            if left_out == "copy" or not self.row.config.planted:
                measured |= {"trivial": self._trivial(rated), "price": self._price(rated)}
            if left_out is None:
                measured["judged"] = {name: [asdict(one) for one in self._judged(name)] for name in COMPONENTS}
                measured["weights"] = self.model.weights
        return measured

    def _rated(self) -> RatedTexts:
        components = {role: BottleneckScorer("", role, model=self.model) for role in ROLES}
        setting = ComponentConfig(aggregation="mean", empty=-1.0)
        settings = {"relevance": setting, "factuality": setting}
        composer = RewardComposer(RewardConfig(components, self.model.weights, settings))
        return RatedTexts(
            composer, {id: item.prompt for id, item in self.items.items()}, {role: role for role in ROLES}
        )

    def _verdicts(self, rated: RatedTexts, families: Sequence[str]) -> list[Verdict]:
        changes = [
            replace(change, expectations=tuple(one for one in change.expectations if one.direction != "stay"))
            for change in self.changes
            if change.family in families
        ]
        rated.add((change.record, text) for change in changes for text in (change.base, change.changed))
        return verdicts(changes, rated, dict.fromkeys((*ROLES, "total"), 0.0))

    def _trivial(self, rated: RatedTexts) -> dict[str, Any]:
        ids, rows = list(self.items), {}
        for i, id in enumerate(ids):
            item = self.items[id]
            texts = texts_nobody_wrote(item, self.model, self.items[ids[i - 1]].record.gold)
            texts |= {f"answer {n}": text for n, text in enumerate(self._answers()[id], start=1)}
            rated.add((id, text) for text in texts.values())
            values = {
                name: {role: rated.value(id, text, role) for role in (*ROLES, "total")} for name, text in texts.items()
            }
            gold, passages = item.record.gold, ["\n".join(passage) for passage in item.record.passages]
            recalled, facts = facts_recalled(texts["cut lead"], (gold,), item.record.question)
            unsupported, stated = facts_unsupported(gold, passages)
            rows[id] = {"values": values, "lead_lacks_gold": bool(facts) and not recalled}
            rows[id] |= {"gold_facts": stated, "gold_facts_unsupported": unsupported}
        return rows

    def _answers(self) -> dict[str, tuple[str, ...]]:
        return {record.id: record.predictions for record in self.fold.test}

    def _judged(self, name: str) -> list[JudgedRecord]:
        return judged_records(*judge_by_bottleneck(self.model, self.fold.test, LabelSettings(KINDS[name])))

    def _price(self, rated: RatedTexts) -> dict[str, Any]:
        records = [item.record for item in self.items.values()]
        return price(records[: self.row.searched], rated, self._answers(), 200, self.seed, records)


def _verdict(one: Verdict) -> dict[str, Any]:
    change, expected = one.change, one.expectation
    named = {"record": change.record, "name": change.name, "family": change.family, "source": change.base_source}
    return {**named, "role": expected.role, "direction": expected.direction, "right": one.right}
