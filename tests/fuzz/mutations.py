"""Damage to bytes and texts, from a seeded generator: what a net does to an input that was right."""

import re

WORD = re.compile(r"[%@]?[\w.]+|[^\w\s]|\n")
SMALL = (0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 1000, 1 << 15, 1 << 16, 1 << 20)
NUMBERS = (*SMALL, *((1 << bits) + by for bits in (24, 31, 32, 48, 62, 63, 64) for by in (-1, 0, 1)), 10**30, 10**400)
"""Near which things end: small ones, powers of two, the ends of integer types, and beyond any."""


def damaged_bytes(rng, data, times=3):
    """Bits flipped, bytes set, pieces removed, repeated, moved or cut off."""
    data = bytearray(data)
    for _ in range(rng.randint(1, times)):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((1, 1, 2, 4, 8, rng.randint(1, 4096))))
        match rng.randrange(7):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(data):
                data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 2:
                del data[at:end]
            case 3:
                data[at:at] = data[at:end]
            case 4:
                width = rng.choice((1, 2, 4, 8))
                data[at : at + width] = (rng.choice(NUMBERS) % (1 << 8 * width)).to_bytes(width, "little")
            case 5:
                del data[at:]
            case 6:
                data[at:at] = rng.randbytes(rng.randint(1, 16))
    return bytes(data)


def damaged_text(rng, text, words, times=3):
    """Words replaced by others of this text, of `words`, by numbers; words and lines removed, repeated, swapped."""
    for _ in range(rng.randint(1, times)):
        text = _once(rng, text, words)
    return text


def _once(rng, text, words):
    if rng.randrange(4) == 0:
        return _lines(rng, text)
    found = list(WORD.finditer(text))
    if not found:
        return text
    one, other = rng.choice(found), rng.choice(found)
    alike = [w for w in (m[0] for m in found) if _kind(w) == _kind(one[0])]
    match rng.randrange(12):
        case 0 | 1 | 6 | 7 | 8:
            new = rng.choice(alike)
        case 2:
            new = rng.choice(words)
        case 3:
            new = ""
        case 4:
            new = one[0] + other[0]
        case 5:
            new = damaged_bytes(rng, one[0].encode(), 1).decode(errors="replace")
        case _:
            numbers = [m for m in found if m[0][0].isdigit()]
            one = rng.choice(numbers) if numbers else one
            new = rng.choice((str(rng.choice(NUMBERS)), f"-{one[0]}", str(rng.choice(SMALL)), "1.5", "nan"))
    return text[: one.start()] + new + text[one.end() :]


def _lines(rng, text):
    lines = text.split("\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(3):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, lines[other])
        case 2:
            lines[at], lines[other] = lines[other], lines[at]
    return "\n".join(lines)


def _kind(word):
    return "number" if word[0].isdigit() else word[0] if not word[0].isalnum() else "word"
