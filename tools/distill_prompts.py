"""Prompts for distilling a draft: chat, code, summaries and plain prose, without end, and
conversations in which the target writes the user's part, too ("own": at most its first words come
from here, or from the vocabulary).

Every other text is put together from the lists below, which were written for this file (and have
its licence), but for the signatures and docstrings of Python's own standard library (PSF licence),
read where the interpreter has them. Each list is cut in two: held-out prompts are made of every
eighth entry, module and word, training prompts of the others, so no topic is in both, but for
inflections of a word.
"""

import argparse
import ast
import hashlib
import json
import random
import re
import sysconfig
from pathlib import Path
from typing import NamedTuple

KINDS = ("chat", "code", "summary", "plain", "own")
SHARES = (0.1, 0.1, 0.05, 0.05, 0.7)  # of KINDS, among the prompts
HELD_OUT_EVERY = 8
RUN_WORDS = 8  # in a row, that two texts have in common by more than chance

TOPICS = """volcanoes|growing tomatoes|learning the guitar|black holes|the water cycle|bees
chess openings|saving money|public speaking|sleeping better|the printing press|solar panels
baking bread|coral reefs|running a marathon|electric cars|the immune system|photography at night
medieval castles|vaccines|keeping a diary|ocean currents|writing a novel|glaciers|training a puppy
the human heart|recycling|time management|satellites|earthquakes|knitting|the history of tea
how aeroplanes fly|desert animals|job interviews|making cheese|the moon landing|dinosaurs
mountain hiking|renting a flat|rainforests|learning a language|batteries|the Silk Road|whales
home insulation|opera|street markets|lightning|teaching children to read|bridges|spices|the brain
working from home|planting trees|sailing|robots|ancient Egypt|good manners|pasta|migrating birds
inflation|camping with children|museums|jazz|the nervous system|composting|wind turbines
calligraphy|mushrooms|the Olympic Games|lighthouses|swimming|friendship|the stock market|honey
telescopes|small talk|house plants|storms at sea|trains|the Renaissance|healthy snacks|rivers
libraries|magnets|volunteering|snow|stage fright|folk music|beekeeping|the periodic table
city parks|maps|owls|antibiotics|long flights|silk|clay pots|fractions|remote islands|gravity
dental care|radio|wolves|democracy|budgets|dreams|gardens in winter|perfume"""

AUDIENCES = """a child of eight|a curious teenager|a busy parent|a retired engineer
a complete novice|a new colleague|a class of students|my grandmother|a traveller
an impatient reader|a biologist|a small business owner|a musician|someone who dislikes science
a farmer|a nurse"""

TASKS = """Tell {audience} about {topic}.|What should {audience} know about {topic}?
Give me five facts about {topic}.|Write a short poem about {topic}.
Write a story that has to do with {topic}.|What are common mistakes with regard to {topic}?
Make a list of ten questions about {topic}.|Write a letter to {audience} about {topic}.
Describe {topic} in one paragraph.|Why does {topic} matter?
Write a dialogue between two friends about {topic}.
What is the difference between {topic} and {other}?|Plan a lesson about {topic} for {audience}.
How did {topic} change over the last hundred years?|Give arguments for and against {topic}.
Write an advertisement that mentions {topic}.
What would you recommend to {audience} who wants to learn about {topic}?
Invent a riddle about {topic}.|Write a news article of six sentences about {topic}.
Write an email that invites {audience} to a talk on {topic}.
I am interested in {topic} and in {other}. What do they have in common?|Write a speech on {topic}.
Give me a step-by-step guide concerning {topic}.
Which books about {topic} are worth reading, and why?|Make a table with two columns about {topic}.
Define the most important words to do with {topic}.
Help me to write an introduction to an essay about {topic}.|What is hard about {topic}?
Translate into French: I have always been interested in {topic}.
Compare {topic} with {other} in four sentences.
Write a product review in which {topic} and {other} both come up.|Is {topic} overrated?"""

STYLES = """|||||| Keep it short.| Use simple words.| Use bullet points.| Be funny.
 Answer in two sentences.
 Answer formally.| Give an example.| Number your points.| Be precise.| Do not use lists.
 In about 100 words."""

FOLLOW_UPS = """Can you say more about the last point?|Summarise your answer in one sentence.|Why?
Now say the same for {audience}.|Thank you! What about {topic}?|Give me an example.
Make it shorter.|Rewrite your answer as a list.|Rewrite it more formally.|What are the drawbacks?
Are you sure?|And how does this relate to {topic}?|Write a title for what you wrote.|Continue.
What else?|Which three words are the most important in your answer?
Could you explain that in another way?"""

LANGUAGES = "Python|Python|Python|Python|JavaScript|Java|C++|C|Rust|Go|TypeScript|Bash"
VERBS = """reverses|sorts|counts the duplicates in|removes the duplicates from
finds the largest element of|finds the median of|rotates|shuffles|splits into chunks of equal size
prints|copies|compares two of|computes the average of|filters the even elements of|merges two of
checks whether it is empty, for|sums up|groups the elements of|finds the longest run in
converts to a string|pads|searches for a value in"""
OBJECTS = """a list of integers|a string|a matrix|a linked list|a dictionary|a list of words
a CSV file|a list of dates|a stack|a queue|a binary tree|a set of names|a text file
a list of floats|an array of bytes|a list of tuples|a JSON document|a sentence|a graph
a sorted array|a list of prices|a log file"""
CODE_TASKS = """Write a {language} function that {verb} {object}.
In {language}, how does one write code that {verb} {object}?
Write a {language} program that reads {object} and {verb} {other_object}.
Write a {language} class that holds {object}.
Write unit tests in {language} for a function that {verb} {object}.
Explain step by step how to program, in {language}, something that {verb} {object}.
What is wrong with using {object} in {language} for everything?
Write a comment for a {language} function that {verb} {object}."""
CODE_FOLLOW_UPS = """Add error handling.|Explain the code line by line.|Can it be made faster?
Add comments.|Write a test for it.|Now do it in Python.|What is its complexity?|Use shorter names.
Show how to call it."""

PLACES = """the harbour|a mountain village|the northern suburbs|the old factory|the market square
a school by the river|the botanical garden|a valley of orchards|the railway station
the university hospital|an island community|the football ground|the concert hall|a fishing port
the airport|the city archive"""
EVENTS = """a new bridge was opened to traffic|engineers found cracks in a water main
a food festival drew record crowds|volunteers planted four thousand trees
a power cut lasted for nine hours|the council approved a cycle lane
researchers presented a cheaper filter|the theatre company cancelled its season
a bakery hired eleven apprentices|an exhibition of early photographs began
heavy rain flooded several cellars|a robot began to sort parcels
ticket prices were raised by eight per cent|a rare bird was seen for the first time since 1954"""
CAUSES = """after months of planning|because of a shortage of skilled workers
although funds were low|following a petition with two thousand signatures
despite warnings from experts|thanks to a donation|as part of a national programme
after an unusually cold winter|since the former contract had ended"""
EFFECTS = """Residents were divided about the outcome.
Officials expect the work to end by the autumn.|Nearby shops reported more customers than usual.
A second report is due in March.|Nobody was hurt.|The cost is put at three million.
Similar projects elsewhere have failed.|Schools will be offered free visits.
Critics said that the money could have been better spent.|The mayor called it a turning point.
Several families had to move for a week.|A hotline has been set up for questions."""
SUMMARY_TASKS = """Give a summary of this text:|Sum up the following in a few words:
What is this text about?|Write a headline for the following text:
List the key points of this text:|Rewrite this text in simpler words:
Which questions does this text leave open?
Repeat the first sentence of this text, then comment on it:"""

OPENINGS = r"""It was late in the evening when|The history of {topic} begins with
Most people think of {topic} as|Chapter 3\n\n{Topic}\n\n|In recent years, {topic}
My first encounter with {topic} was|Dear editor,\n\nI read with interest
Once there was a woman who knew all about {topic}.|The following report deals with {topic}.
{Topic}, as every visitor learns,|She opened the letter and read:|According to a study of {topic},
There are three reasons to care about {topic}. First,|Near {place},|Ingredients:\n
Q: What is the use of {topic}?\nA:|Abstract. We study {topic} and|The town lies near {place} and
Nobody remembered who had first spoken of {topic}, but|For a long time {topic} and {other} were"""

MODULES = """argparse ast bisect calendar cmd codecs colorsys compileall configparser contextlib
copy csv dataclasses datetime decimal difflib dis enum filecmp fileinput fnmatch fractions ftplib
functools getopt getpass gettext glob graphlib gzip hashlib heapq hmac imaplib inspect ipaddress
keyword linecache locale mailbox mimetypes netrc numbers operator optparse os pathlib pickle
pickletools platform plistlib poplib posixpath pprint profile pstats queue quopri random reprlib
sched secrets selectors shelve shlex shutil smtplib socketserver ssl stat statistics string
subprocess symtable tabnanny tarfile tempfile textwrap threading timeit token tokenize trace
traceback typing uuid warnings wave weakref webbrowser zipapp"""


# Half of what the user says in the target's words begins like this, an empty one with nothing, so
# that there are texts to sum up or to mend, and code to explain, other than those above.
OWN_STARTS = r"""||||||||||||||||||||||||||How|What|Why|Can you|Tell me|Explain|I|My|Plan|Suggest|Give me
Write|Write a Python function that|Write a|Write a story|Write a short email|In SQL,|Is it
Summarize the following text:\n\n|Summarize in one sentence:|Here is an article:\n\n
Shorten this text:\n\n|What is the main point of this passage?\n\n|List the facts in this text:\n\n
Correct the mistakes in this text:\n\n|Rewrite this paragraph in the past tense:\n\n
Make this email more polite:\n\n|Translate this sentence|Repeat this text, but
What does this code do?\n\n```python\n|Find the error in this code:\n\n```python\n
Rename the variables in this function:\n\n```python\n|Add comments to this code:\n\n```"""

# The other half begins like this, with a word of the target's vocabulary, so that what is asked for
# does not end where these lists do. Where the vocabulary has no words, all is of OWN_STARTS.
WORD_STARTS = """What is {word}|How do I {word}|Explain {word}|Tell me about {word}|Why is {word}
I need {word}|My {word}|Give me a list of {word}|Write a story about {word}|Can you {word}
Write an email about {word}|What does {word} mean|How does {word}|When was {word}|Who {word}
What are the {word}|I want to {word}|Is {word}|Compare {word} and|Describe {word}|Help me {word}
Write a poem about {word}|Give me tips on {word}|Use the word {word} in|Write a paragraph on {word}
What is the difference between {word} and|Translate {word}|Which {word}|Our {word}|How many {word}
Write a function that {word}|Write a program for {word}|Where can I find {word}|Suggest {word}
I was thinking about {word}|Summarize the history of {word}|What happens if {word}|Design {word}"""


class Prompt(NamedTuple):
    kind: str
    text: str  # of "own" no more than its beginning, which may be empty
    chat: bool  # whether the chat template goes around it


def entries(text: str, held_out: bool | None = None) -> list[str]:
    """The parts between bars and line ends; with held_out, of one side of the cut."""
    parts = [part.replace("\\n", "\n") for line in text.splitlines() for part in line.split("|")]
    return part_of(parts, held_out)


def part_of(parts: list, held_out: bool | None) -> list:
    if held_out is None:
        return parts
    return [part for i, part in enumerate(parts) if (i % HELD_OUT_EVERY == 0) == held_out]


def library_functions(held_out: bool) -> list[str]:
    """Heads of functions of the standard library: decorators left out, signature, docstring."""
    directory, heads = Path(sysconfig.get_path("stdlib")), []
    for name in part_of(MODULES.split(), held_out):
        path = directory / f"{name}.py"
        if not path.exists():  # a package, or not in this version
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef) or not (doc := ast.get_docstring(node)):
                continue
            if 30 <= len(doc) <= 400 and '"""' not in doc and "\\" not in doc:
                body = doc.replace("\n", "\n    ").replace("\n    \n", "\n\n")
                head = f"def {node.name}({ast.unparse(node.args)}):"
                heads.append(f'{head}\n    """{body}\n    """\n')
    if not heads:
        raise RuntimeError(f"no function with a docstring found below {directory}")
    return heads


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def runs(words: list[str], length: int = RUN_WORDS) -> set[tuple[str, ...]]:
    """All that are so many words in a row."""
    return {tuple(words[i:i + length]) for i in range(len(words) - length + 1)}


class Excluded:
    """Prompts that nothing trained on may share a run of RUN_WORDS words with, or all of a shorter
    one: JSON Lines, each an object with a `text`, as the bench's prompts are."""

    def __init__(self, path: str) -> None:
        """Made by argparse of a flag's value, which prints what is raised."""
        self.runs: dict[int, set[tuple[str, ...]]] = {}  # by their length
        try:
            data = Path(path).read_bytes()
            lines = data.decode().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise argparse.ArgumentTypeError(f"{path}: {error}") from error
        self.sha256 = hashlib.sha256(data).hexdigest()
        for number, line in enumerate(lines, 1):
            try:
                words = words_of(json.loads(line)["text"])
            except (ValueError, KeyError, TypeError, AttributeError):
                words = []
            if not words:
                raise argparse.ArgumentTypeError(
                    f'{path}: line {number} is {line[:60]!r}; expected an object with words as its '
                    f'"text"')
            length = min(RUN_WORDS, len(words))
            self.runs.setdefault(length, set()).update(runs(words, length))

    def shares(self, text: str) -> bool:
        words = words_of(text)
        return any(runs(words, length) & found for length, found in self.runs.items())


class PromptSource:
    """Draws prompts; what it draws depends on the seed, the side of the cut and the interpreter."""

    def __init__(self, seed: str, held_out: bool, words: list[str], own: bool = True) -> None:
        """words: of the vocabulary; own: whether there are conversations that the target writes
        both sides of."""
        self.shares = [share if own or kind != "own" else 0 for kind, share in zip(KINDS, SHARES)]
        self.random = random.Random(f"{seed} {held_out}")
        self.topics = entries(TOPICS, held_out)
        self.objects = entries(OBJECTS, held_out)
        self.places = entries(PLACES, held_out)
        self.events = entries(EVENTS, held_out)
        others = {word for text in (TOPICS, OBJECTS, PLACES, EVENTS)
                  for entry in entries(text, not held_out) for word in entry.split()}
        self.words = [word for word in part_of(words, held_out) if word not in others]
        self.functions = library_functions(held_out)

    def draw(self) -> Prompt:
        kind = self.random.choices(KINDS, self.shares)[0]
        text = getattr(self, kind)()
        return Prompt(kind, text, chat=kind != "plain" and not text.startswith("def "))

    def follow_up(self, kind: str) -> str:
        """What the user says next in a conversation of this kind."""
        pick = self.random.random()
        if pick < 0.5:
            return self.fill(CODE_FOLLOW_UPS if kind == "code" else FOLLOW_UPS)
        return getattr(self, kind if kind != "plain" else "chat")()

    def chat(self) -> str:
        return self.fill(TASKS) + self.random.choice(entries(STYLES))

    def code(self) -> str:
        pick = self.random.random()
        if pick < 0.3:
            return self.random.choice(self.functions)
        if pick < 0.4:
            return ("What does this function do?\n\n```python\n"
                    + self.random.choice(self.functions) + "```")
        return self.fill(CODE_TASKS)

    def summary(self) -> str:
        count = self.random.randint(1, 3)
        sentences = []
        for event in self.random.sample(self.events, min(count, len(self.events))):
            sentences.append(self.fill(f"At {{place}}, {event} {{cause}}."))
            sentences += self.random.sample(entries(EFFECTS), self.random.randint(1, 2))
        return self.fill(SUMMARY_TASKS) + "\n\n" + " ".join(sentences)

    def plain(self) -> str:
        return self.fill(OPENINGS)

    def own(self) -> str:
        """How the target is to begin what the user says."""
        if self.words and self.random.random() < 0.5:
            word = self.random.choice(self.words)
            return self.random.choice(entries(WORD_STARTS)).format(word=word)
        return self.random.choice(entries(OWN_STARTS))

    def fill(self, templates: str) -> str:
        choose = self.random.choice
        topic, other = self.random.sample(self.topics, 2)
        text = choose(entries(templates))
        values = {"topic": topic, "Topic": topic[0].upper() + topic[1:], "other": other,
                  "audience": choose(entries(AUDIENCES)), "language": choose(entries(LANGUAGES)),
                  "verb": choose(entries(VERBS)), "object": choose(self.objects),
                  "other_object": choose(self.objects), "place": choose(self.places),
                  "cause": choose(entries(CAUSES))}
        for name, value in values.items():
            text = text.replace("{" + name + "}", value)
        return text
