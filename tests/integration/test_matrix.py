"""Exact tokens in fp32 against transformers, through prefill engines, block copies and decode engines.

A pairwise design over models, layouts of both groups, schedules, drafts, cache states, chunks, preemption and resume.
The long version (`make test-matrix`) has 40 prompts of 1 to 700 tokens and 64 tokens of text each.
"""

import itertools
import random
from dataclasses import dataclass, field

import pytest

from common.engine.settings import DecodeSettings, EngineShape, PrefillSettings
from common.parallel.schedule import Schedule
from common.request import GeneratedToken
from tests.fakes.engines import Cluster, Journey, make_work
from tests.fakes.model_ranks import model_ranks
from tests.fakes.pairwise import Case, pairwise
from tests.oracle.transformers_model import LEAST_GAP
from tests.oracle.zoo import Zoo

BLOCK_TOKENS = 16
VOCAB = 512
WHOLE = 1024
LAYOUTS = ("ep1 tp1", "ep2 tp1", "ep2 tp2", "ep4 tp1", "ep4 tp2")
FACTORS: dict[str, tuple[object, ...]] = {
    "model": ("base", "six_heads", "one_group", "no_q_lora"),
    "prefill": LAYOUTS,
    "decode": LAYOUTS,
    "schedule": tuple(Schedule),
    "drafts": (0, 1, 2),
    "cache": ("cold", "warm", "partly warm"),
    "chunk": (16, 64, WHOLE),
    "preempt": (False, True),
    "resume": (False, True),
}

PLAIN: Case = {
    "prefill": "ep1 tp1",
    "decode": "ep1 tp1",
    "schedule": Schedule.NONE,
    "drafts": 0,
    "cache": "cold",
    "chunk": WHOLE,
    "preempt": False,
    "resume": False,
}


@dataclass(frozen=True)
class Scale:
    """How much one case does."""

    lengths: tuple[int, ...]
    tokens: int


@dataclass
class Texts:
    """Prompts whose every greedy choice is clear, with the oracle's text, by model and scale.

    The simplest pair of engines proposes a text and the oracle judges it whole: if each token is the oracle's own
    choice after those before it, then the text is what the oracle would have written, at a sixtieth of the time.
    """

    zoo: Zoo
    known: dict[tuple[str, Scale], list[tuple[list[int], list[int]]]] = field(default_factory=dict)

    def of(self, model: str, scale: Scale) -> list[tuple[list[int], list[int]]]:
        key = (model, scale)
        if key not in self.known:
            clear: dict[int, tuple[list[int], list[int]]] = {}
            for attempt in itertools.count():
                missing = [length for length in scale.lengths if length not in clear]
                if not missing:
                    break
                prompts = [random.Random(f"{n} {attempt}").choices(range(2, VOCAB), k=n) for n in missing]
                for token_ids, text in self._propose(model, prompts, scale):
                    if self._judge(model, token_ids, text):
                        clear[len(token_ids)] = (token_ids, text)
            self.known[key] = [clear[length] for length in scale.lengths]
        return self.known[key]

    def _propose(self, model: str, prompts: list[list[int]], scale: Scale) -> list[tuple[list[int], list[int]]]:
        cluster = build(self.zoo, {**PLAIN, "model": model}, scale)
        journeys = [cluster.submit(make_work(token_ids, scale.tokens)) for token_ids in prompts]
        cluster.run()
        return [(token_ids, journey.token_ids) for token_ids, journey in zip(prompts, journeys, strict=True)]

    def _judge(self, model: str, token_ids: list[int], text: list[int]) -> bool:
        """False where a choice is too close to be a test; a wrong one is a failure."""
        oracle = self.zoo.oracle(self.zoo.checkpoint(model))
        logits = oracle.logits([*token_ids, *text[:-1]])[len(token_ids) - 1 :]
        best = logits.topk(2, dim=-1).values
        if bool((best[:, 0] - best[:, 1] <= LEAST_GAP).any()):
            return False
        assert logits.argmax(-1).tolist() == text
        return True


@pytest.fixture(scope="session")
def texts(zoo: Zoo) -> Texts:
    return Texts(zoo)


def layout(name: object) -> tuple[int, int]:
    world, tp = str(name).split()
    return int(world[2:]), int(tp[2:])


def build(zoo: Zoo, case: Case, scale: Scale) -> Cluster:
    """Groups of the case's layouts, with pools for everything."""
    directory = zoo.checkpoint(str(case["model"]))
    schedule = Schedule(case["schedule"])
    longest = max(scale.lengths) + scale.tokens + 1
    ranks = []
    for group in ("prefill", "decode"):
        world, tp = layout(case[group])
        ranks.append(model_ranks(directory, world=world, tp=tp, schedule=schedule))
    total = sum(-(-(length + scale.tokens + 4) // BLOCK_TOKENS) for length in scale.lengths) + len(scale.lengths)

    def shape(blocks: int) -> EngineShape:
        return EngineShape(
            total_blocks=blocks,
            context_tokens=longest + 8,
            block_tokens=BLOCK_TOKENS,
            max_running=64,
            max_step_tokens=2048,
            draft_tokens=int(str(case["drafts"])),
        )

    prefill = PrefillSettings(shape(total), chunk_tokens=int(str(case["chunk"])), lease_s=60.0)
    cluster = Cluster(ranks[0], ranks[1], prefill, DecodeSettings(shape(total)))
    if case["preempt"]:
        cluster.squeeze = lambda step: step * step % 7 < 3  # without a period that a resume could fall in with
    return cluster


def check(zoo: Zoo, texts: Texts, case: Case, scale: Scale) -> None:
    cluster = build(zoo, case, scale)
    pairs = texts.of(str(case["model"]), scale)
    places = [place(i, cluster) for i in range(len(pairs))]
    if case["cache"] != "cold":
        warming = []
        for (token_ids, _), where in zip(pairs, places, strict=True):
            kept = token_ids if case["cache"] == "warm" else token_ids[: len(token_ids) // 2 + 1]
            warming.append(cluster.submit(make_work(kept, 2), **where))
        cluster.run(*warming)
    journeys = []
    for (token_ids, text), where in zip(pairs, places, strict=True):
        work = make_work(token_ids, scale.tokens)
        if case["resume"]:
            sent = [GeneratedToken(len(token_ids) + i, token) for i, token in enumerate(text[: scale.tokens // 2])]
            journey = Journey(work, sent, **where)
            cluster.resume(journey)
        else:
            journey = cluster.submit(work, **where)
        journeys.append(journey)
    cluster.run(*journeys)
    for journey, (_, text) in zip(journeys, pairs, strict=True):
        assert journey.error is None
        assert journey.token_ids == text, f"prompt of {journey.work.prompt_tokens}"
    if case["cache"] != "cold":
        assert sum(journey.cached_tokens[0] for journey in journeys) > 0
    if case["preempt"]:
        assert sum(journey.preemptions for journey in journeys) > 0
    if case["drafts"]:
        assert sum(journey.drafted for journey in journeys) > 0
    cluster.check_idle()


def place(i: int, cluster: Cluster) -> dict[str, int]:
    """In turn over the instances, but the last of several stays without work."""
    busy = [max(1, len(group.instances) - 1) for group in (cluster.prefills, cluster.decodes)]
    return {"prefill": i % busy[0], "decode": i % busy[1]}


DESIGN = pairwise(FACTORS)
LONG = Scale(
    lengths=(
        *(1, 2, 3, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 79, 80, 81, 95, 100),
        *(113, 127, 128, 129, 143, 160, 177, 192, 209, 240, 255, 256, 257, 300, 352, 401, 512, 575, 640, 700),
    ),
    tokens=64,
)
SHORT = Scale(lengths=(1, 2, 15, 16, 17, 64, 129, 300), tokens=20)


def name(case: Case) -> str:
    parts = {**case, "schedule": Schedule(case["schedule"]).name.lower(), "preempt": "", "resume": ""}
    flags = [flag for flag in ("preempt", "resume") if case[flag]]
    return ", ".join([str(part) for part in parts.values() if part != ""] + flags)


def test_the_design_meets_every_pair() -> None:
    for a, b in itertools.combinations(FACTORS, 2):
        met = {(case[a], case[b]) for case in DESIGN}
        assert met == set(itertools.product(FACTORS[a], FACTORS[b]))


@pytest.mark.matrix
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("case", DESIGN, ids=name)
def test_exact_tokens(zoo: Zoo, texts: Texts, case: Case) -> None:
    check(zoo, texts, case, LONG)


@pytest.mark.parametrize("case", DESIGN, ids=name)
def test_exact_tokens_of_few_prompts(zoo: Zoo, texts: Texts, case: Case) -> None:
    check(zoo, texts, case, SHORT)


EP128: Case = {**PLAIN, "model": "ep128", "decode": "ep128 tp1", "schedule": Schedule.DUAL_MICROBATCH, "drafts": 1}


def test_exact_tokens_over_128_ranks(zoo: Zoo, texts: Texts) -> None:
    """Two experts a rank; most ranks never have a token, and all take part in every step."""
    check(zoo, texts, EP128, Scale(lengths=(1, 17, 40), tokens=8))


@pytest.mark.matrix
@pytest.mark.timeout(1200)
def test_exact_tokens_of_many_prompts_over_128_ranks(zoo: Zoo, texts: Texts) -> None:
    check(zoo, texts, EP128, LONG)
