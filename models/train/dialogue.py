"""Question-and-answer pairs cut from the texts, so that a chat prompt gets a sensible continuation.

Every answer is the source's own words. A pair is (question, thought, answer); the thought is empty for most pairs.
"""

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from models.train.sources import Document

_SENTENCE_END = re.compile(r'(?<=[.!?;]["\']) +|(?<=[.!?]) +')
_WORD = re.compile(r"[a-z]{4,}")
_SPEAKER = re.compile(r"^([A-Z][A-Za-z' ]{1,24})\.$")

_MANNER = {
    "kjv": "the King James Bible",
    "web": "the Bible in modern English",
    "shakespeare": "Shakespeare",
    "austen": "Jane Austen",
    "spurgeon": "Spurgeon",
    "henry": "Matthew Henry",
    "bierce": "Ambrose Bierce",
}
_ABOUT = (
    "Tell me about {topic}.",
    "What can you say of {topic}?",
    "Speak to me of {topic}.",
    "Write a few lines about {topic}.",
    "What is written about {topic}?",
    "What do you know about {topic}?",
)
_ABOUT_AS = (
    "Tell me about {topic} in the words of {manner}.",
    "Write about {topic} in the manner of {manner}.",
    "What does {manner} say of {topic}?",
)
_CONTINUE = (
    "Continue: {start}",
    "Go on from here: {start}",
    "Finish this passage: {start}",
    "What comes after this? {start}",
)
_GREETINGS = (
    "Hello!",
    "Hello, who are you?",
    "Good morrow.",
    "Hi",
    "Who are you?",
    "What are you?",
    "What can you do?",
)
_SELF = (
    "I am a small model that has read the King James Bible, Shakespeare and Jane Austen."
    " Ask me to speak of any matter.",
    "Good morrow, friend. I have read old books, and I speak as they do. Of what shall I tell thee?",
    "I am a little model of language, taught by old books. Give me a line and I shall continue it.",
)
_STOP_WORDS = frozenset(
    """
    about after again also because been before being came chapter come cometh could does done doth even ever every from
    hath have here himself into itself know like made make many might more most much must never nothing only other over
    psalm said saith same says shall should some such take taken tell than that their them then there therefore these
    they thing things think this those thou though through thus thee till unto until upon verse verses well went were
    what when where which whom whose will with without would your yourself very
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True, slots=True)
class Dialogue:
    question: str
    thought: str
    answer: str


def _topics(documents: Sequence[Document]) -> frozenset[str]:
    """Words common enough to learn and rare enough to name a subject: 40 to 6,000 uses, mostly after an article."""
    uses, after_article = Counter[str](), Counter[str]()
    for document in documents:
        text = document.text.lower()
        uses.update(_WORD.findall(text))
        after_article.update(re.findall(r"\b(?:the|a|an|my|thy|his|of|our|their) ([a-z]{4,})\b", text))
    return frozenset(
        w for w, n in uses.items() if 40 <= n <= 6000 and after_article[w] > 0.45 * n and w not in _STOP_WORDS
    )


def _passages(document: Document, draw: random.Random) -> Iterator[str]:
    """Runs of whole sentences of 80 to 480 characters."""
    for paragraph in document.paragraphs:
        sentences = [s for s in _SENTENCE_END.split(paragraph) if s]
        while sentences:
            length, taken = 0, 0
            limit = draw.randint(100, 480)
            while taken < len(sentences) and (taken == 0 or length + len(sentences[taken]) <= limit):
                length += len(sentences[taken]) + 1
                taken += 1
            passage, sentences = " ".join(sentences[:taken]), sentences[taken:]
            if 80 <= len(passage) <= 480 and passage[0].isupper() and passage[-1] in ".!?\"'":
                yield passage


def _speeches(document: Document) -> Iterator[tuple[str, str]]:
    """(speaker, speech) of a scene whose speakers stand on lines of their own."""
    speaker, lines = "", list[str]()
    for line in (*document.paragraphs, ""):
        name = _SPEAKER.match(line)
        if name or not line.strip() or line.startswith("["):
            if speaker and lines and sum(map(len, lines)) <= 480:
                yield speaker, "\n".join(lines)
            speaker, lines = (name.group(1) if name else ""), []
        else:
            lines.append(line.strip())


def _about(passage: str, source: str, topics: frozenset[str], draw: random.Random) -> Dialogue | None:
    found = sorted({w for w in _WORD.findall(passage.lower()) if w in topics})
    if not found:
        return None
    topic = draw.choice(found)
    if draw.random() < 0.3:
        question = draw.choice(_ABOUT_AS).format(topic=topic, manner=_MANNER[source])
    else:
        question = draw.choice(_ABOUT).format(topic=topic)
    thought = ""
    if draw.random() < 0.25:
        thought = f"The question is about {topic}. I remember a passage of {_MANNER[source]} that speaks of {topic}."
    return Dialogue(question, thought, passage)


def _continuation(passage: str, draw: random.Random) -> Dialogue | None:
    words = passage.split(" ")
    if len(words) < 16:
        return None
    cut = draw.randint(5, min(24, len(words) - 8))
    return Dialogue(draw.choice(_CONTINUE).format(start=" ".join(words[:cut])), "", " ".join(words[cut:]))


def write_dialogues(documents: Sequence[Document], count: int, seed: int) -> list[Dialogue]:
    """`count` dialogues, drawn evenly over the sources, in a fixed order for a seed."""
    draw = random.Random(seed)
    topics = _topics(documents)
    by_source = dict[str, list[Dialogue]]()
    for document in documents:
        made = by_source.setdefault(document.source, [])
        if document.source == "bierce":
            word, _, meaning = document.text.partition(", ")
            if 40 <= len(meaning) <= 600:
                made.append(Dialogue(f"Define {word.lower()}.", "", f"{word}, {meaning}"))
            continue
        if document.source == "shakespeare":
            for speaker, speech in _speeches(document):
                if len(speech) >= 60:
                    made.append(Dialogue(f"Speak as {speaker.title()} in {document.title or 'a play'}.", "", speech))
                    if dialogue := _about(speech, document.source, topics, draw):
                        made.append(dialogue)
            continue
        for passage in _passages(document, draw):
            make_continuation = draw.random() < 0.35
            dialogue = (
                _continuation(passage, draw) if make_continuation else _about(passage, document.source, topics, draw)
            )
            if dialogue:
                made.append(dialogue)
    share = count // len(by_source)
    dialogues = [d for made in by_source.values() for d in draw.sample(made, min(share, len(made)))]
    dialogues += [Dialogue(draw.choice(_GREETINGS), "", draw.choice(_SELF)) for _ in range(count // 200)]
    draw.shuffle(dialogues)
    return dialogues
