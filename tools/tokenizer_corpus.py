#!/usr/bin/env python3
"""Writes more than 10,000 ugly texts with the ids that the `tokenizers` package gives them.

  tokenizer_corpus.py --model DIR --output FILE

The ids are those of DIR/tokenizer.json; the same seed gives the same bytes. FILE is little-endian;
a string or a list begins with its length in 8 bytes: the string MAGIC, the string DIR, a list of
(text, list of int32 ids, decoded text), a list of (list of int32 ids, decoded text).
"""

import argparse
import random
import struct
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, pre_tokenizers

MAGIC = "outrider tokenizer corpus 1"
SEED = 20240229

SPACES = [
    chr(c)
    for c in (
        9,
        10,
        11,
        12,
        13,
        32,
        0x85,
        0xA0,
        0x1680,
        *range(0x2000, 0x200B),
        0x2028,
        0x2029,
        0x202F,
        0x205F,
        0x3000,
    )
]
NOT_SPACES = ["\u180e", "\u200b", "\u200c", "\u200d", "\u2060", "\ufeff", "\x1c", "\x1f", "\u00ad"]
SENTENCES = [
    "The quick brown fox can't jump over 13 lazy dogs; it'll try, though, won't it?",
    "Ils n'étaient pas là : « où êtes-vous, François ? » — à l'hôtel, près de l'église.",
    "Größenwahn überfällt Fußgänger in Köln; das kostet 1.234,56 €.",
    "El niño comió ñoquis en Logroño. ¿Cuándo? ¡Ayer, a las 18:30!",
    "Съешь же ещё этих мягких французских булок да выпей чаю.",
    "Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία, ἀλλ' οὐκ ἔστιν.",
    "素早い茶色の狐がのろまな犬を飛び越える。カタカナもﾊﾝｶｸも混ぜて、２０２４年。",
    "敏捷的棕色狐狸跳过懒狗,价格是¥一百二十三。「你好」，世界！",
    "다람쥐 헌 쳇바퀴에 타고파. 한글 자모: ㄱㄴㄷ ㅏㅑㅓ.",
    "السماء زرقاء والأرض خضراء، أليس كذلك؟ الأرقام ١٢٣٤٥ والتشكيل مُهِمٌّ.",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה; נִקּוּד חשוב.",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतंत्रता १२३ है।",
    "আমার সোনার বাংলা, আমি তোমায় ভালোবাসি ৪৫৬।",
    "அனைவரும் சுதந்திரமாகவே பிறக்கின்றனர் ௧௨௩.",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า ๑๒๓ กว่าบรรดาฝูงสัตว์เดรัจฉาน",
    "ყველა ადამიანი იბადება თავისუფალი და თანასწორი.",
    "Բոլոր մարդիկ ծնվում են ազատ ու հավասար։",
    "የሰው ልጅ ሁሉ ሲወለድ ነጻና በክብርና በመብትም እኩልነት ያለው ነው። ፩፪፫",
    "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm.",
    "İstanbul'da ığdır ve şişli; pijamalı hasta yağız şoföre çabucak güvendi.",
    "លោកគ្រូ ១២៣ မြန်မာစာ ၁၂၃ ລາວ ໑໒໓ བོད་ཡིག ༡༢༣ ᠮᠣᠩᠭᠣᠯ",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛 𐍈𐌰𐌹𐌺 𓂀𓃒 𒀀𒁀 𞤀𞤣𞤤𞤢𞤥 𠜎𠜱𠝹",
    "x² + y₁ ≤ ½·Ⅻ ⅓ ① ㊿ ٪ ‰ ∑∫√∞ ≠ ← → ⇌ ₿ № ™ ª º",
]
CODE = [
    'def f(x: int = 0) -> list[str]:\n    return [f"{i:>{x}}" for i in range(x) if i % 2]  # why?\n',
    "for (int i = 0; i < (int)v.size(); ++i) { a[i] += b->c[i] * 1.5e-7f; }\r\n",
    '\tif err := json.Unmarshal(data, &v); err != nil {\n\t\treturn nil, errors.New("x")\n\t}\n',
    "SELECT t.id, COUNT(*) FROM \"t\" WHERE a<>'it''s' AND b>=0x1F GROUP BY 1;--end\n",
    '<div class="a-b c" data-x=\'{"k":[1,2,3]}\'>&nbsp;&#8364;</div>\n\n\n',
    "$ git log --oneline | awk '{print $1}' | xargs -I{} echo {} >> /dev/null 2>&1 &&\\\n    true",
    "\\begin{align*} \\frac{\\partial u}{\\partial t} &= \\nabla^2 u \\\\ \\end{align*}",
    "https://example.org/a_b/c?d=e&f=%20g#h user.name+tag@example.co.uk 192.168.0.1:8080",
    "    8 spaces\n        16 spaces\n   \t mixed \t\n \n  \n",
    "0b1010 0xDEADBEEF 1_000_000 3.14159 -273.15 +1e10 00:00:59.999 2024-02-29T12:34:56Z",
]
EMOJI = [
    "😀",
    "👍🏽",
    "👨‍👩‍👧‍👦",
    "🏳️‍🌈",
    "🏴󠁧󠁢󠁳󠁣󠁴󠁿",
    "🇩🇪🇫🇷",
    "1️⃣",
    "#️⃣",
    "❤️‍🔥",
    "🧑🏿‍🚀",
    "☃︎",
    "🤷🏻‍♀️",
    "🫨",
    "🪿",
    "‼️",
]
CONTRACTIONS = [
    "'s",
    "'t",
    "'re",
    "'ve",
    "'m",
    "'ll",
    "'d",
    "'S",
    "'T",
    "'LL",
    "'Re",
    "'\u017f",
    "'\u212a",
    "\u2019s",
    "''s",
    "'",
    "'l",
    "'r",
]
MARKS = [
    "\u0301",
    "\u0308",
    "\u0327",
    "\u20dd",
    "\ufe0f",
    "\u093c",
    "\u0e31",
    "\u05b4",
    "\u1ab0",
    "\u3099",
]


def random_character(rng: random.Random) -> str:
    while True:
        limit = rng.choice((0x80, 0x250, 0x3000, 0x10000, 0x20000, 0x110000))
        character = chr(rng.randrange(limit))
        if unicodedata.category(character) != "Cs":
            return character


def sweep() -> Iterator[str]:
    """Every code point where scripts live, and some others, beside a letter, a digit, a space."""
    points = [c for c in range(0x20000) if not 0xD800 <= c < 0xE000]
    points += [
        *range(0x20000, 0x2F800, 61),
        *range(0x2A6D0, 0x2A700),
        *range(0x2B730, 0x2B750),
        *range(0x2EBE0, 0x2EE70),
        *range(0x2F800, 0x2FA30),
        *range(0x31340, 0x323C0),
        *range(0xE0000, 0xE0200),
        *range(0x40000, 0x110000, 0x1111),
    ]
    for begin in range(0, len(points), 16):
        yield "".join(f"a{c}1{c} {c}.{c}\n{c}{c}" for c in map(chr, points[begin : begin + 16]))


def runs() -> Iterator[str]:
    for unit in (
        " ",
        "\n",
        "\t",
        "\r\n",
        "\u00a0",
        "\u3000",
        "a",
        "A",
        "7",
        "é",
        "界",
        "😀",
        "-",
        "=",
        ".",
        "'",
        "\u0301",
        "\u200d",
        "\0",
        " a",
        "a ",
        " \n",
        "ab",
        "'s",
        "1a",
        "the",
    ):
        for length in (*range(1, 40), 63, 64, 65, 127, 128, 129, 1000):
            yield unit * length
            if length < 20:
                yield "x" + unit * length + "y"
    rng = random.Random(SEED)
    letters = "".join(rng.choice("etaoinshrdlucmfwypvbgkqjxz") for _ in range(100_000))
    for unit in ("a", " ", "7", "\n", "界", "ing"):
        yield unit * (100_000 // len(unit))
    yield letters
    yield letters[:50_000].upper()
    yield " ".join(letters[i : i + 3] for i in range(0, 60_000, 3))


def mixtures(rng: random.Random, specials: list[str]) -> Iterator[str]:
    words = sorted({word for sentence in SENTENCES for word in sentence.split()})
    pools = {
        "words": (words, 60),
        "code": ([piece for line in CODE for piece in line.split(" ")], 30),
        "spaces": (SPACES, 30),
        "not spaces": (NOT_SPACES, 8),
        "emoji": (EMOJI, 15),
        "contractions": (CONTRACTIONS, 15),
        "marks": (MARKS, 10),
        "plain": ([" "], 50),
        "digits": ([str(n) for n in range(0, 3000, 7)] + ["٣", "９", "Ⅷ", "¾", "𝟗", "०"], 15),
        "specials": (specials, 6),
        "controls": ([chr(c) for c in (*range(32), 127, *range(0x80, 0xA0))], 6),
        "broken specials": ([s[:k] for s in specials for k in range(1, len(s))] or [""], 3),
        "ends": (["\ufffe", "\uffff", "\U0010ffff", "\U000f0000", "\ue000", "\ufffd"], 2),
    }
    names, weights = list(pools), [weight for _, weight in pools.values()]
    for _ in range(6000):
        parts = [
            rng.choice(pools[name][0]) for name in rng.choices(names, weights, k=rng.randint(1, 30))
        ]
        yield "".join(parts)
    for _ in range(1500):
        yield "".join(random_character(rng) for _ in range(rng.randint(1, 40)))
    for _ in range(500):
        yield unicodedata.normalize(
            rng.choice(("NFC", "NFD", "NFKC", "NFKD")), " ".join(rng.sample(words, 12))
        )


def corpus(tokenizer: Tokenizer) -> Iterator[str]:
    rng = random.Random(SEED)
    specials = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    yield ""
    yield from SENTENCES
    yield from CODE
    yield "".join(CODE) + "\n".join(SENTENCES)
    for special in specials:
        yield from (
            special,
            f"a{special}b",
            f" {special} ",
            f"{special}{special}\n",
            f"\n {special}\t\u3000x",
            f"_{special}é",
            f"{special[:-1]}{special}",
            f"<{special}>",
            special.upper(),
        )
    yield from runs()
    yield from mixtures(rng, specials)
    yield from sweep()


def random_ids(tokenizer: Tokenizer) -> Iterator[list[int]]:
    """Ids that no text encodes to: characters cut anywhere, special tokens between their bytes."""
    rng = random.Random(SEED)
    alphabet = [
        i for i in map(tokenizer.token_to_id, pre_tokenizers.ByteLevel.alphabet()) if i is not None
    ]
    alphabet.sort()
    size = tokenizer.get_vocab_size()
    for _ in range(3000):
        ids = []
        for _ in range(rng.randint(1, 30)):
            ids.append(rng.choice(alphabet) if rng.random() < 0.6 else rng.randrange(size))
        yield ids


def write_corpus(model: Path, output: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    def text(value: str) -> bytes:
        data = value.encode()
        return struct.pack("<Q", len(data)) + data

    def ids(values: list[int]) -> bytes:
        return struct.pack(f"<Q{len(values)}i", len(values), *values)

    lines = list(corpus(tokenizer))
    encoded = [encoding.ids for encoding in tokenizer.encode_batch(lines)]
    decodes = list(random_ids(tokenizer))
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_suffix(".partial")
    with partial.open("wb") as file:
        file.write(text(MAGIC) + text(str(model.resolve())) + struct.pack("<Q", len(lines)))
        for line, line_ids in zip(lines, encoded):
            file.write(text(line) + ids(line_ids) + text(tokenizer.decode(line_ids)))
        file.write(struct.pack("<Q", len(decodes)))
        for sequence in decodes:
            file.write(ids(sequence) + text(tokenizer.decode(sequence)))
    partial.replace(output)
    print(f"{output}: {len(lines)} texts, {len(decodes)} sequences of ids")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="directory with tokenizer.json")
    parser.add_argument("--output", type=Path, required=True, help="file to write")
    arguments = parser.parse_args()
    write_corpus(arguments.model, arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
