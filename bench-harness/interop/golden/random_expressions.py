"""Prints expressions that nobody thought of: `random_expressions.py COUNT [SEED]`, one a line, most of them well-formed."""
import random
import sys

rand = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 92)
WORDS = "a b c TAGS = <> > >= < <= ( ) , + - NOT AND OR BETWEEN IN IS NULL TRUE CONTAINS STARTSWITH ENDSWITH 5 0 1.5 'x' '5' -- /* */ # x".split()


def one(*choices):
    return rand.choice(choices)


def name():
    return one("a", "a", "b", "b", "c", "TAGS", "none")


def text():
    return one("'x'", "'y'", "''", "'5'", "'TRUE'", "'it''s'", "'true'", "'-1'", "'TagA'")


def number():
    return one("0", "1", "5", "5L", "7", "100", "2147483648", "9223372036854775807", "1.5", "5.0", ".5", "1e3", "4.9e-324", "8.", "-1", "-1.5", "+5", "- 5")


def scalar(depth):
    if depth <= 0 or rand.random() < 0.75:
        return one(name(), name(), number(), number(), text())
    return one("(%s)", "-%s", "+%s", "- %s") % scalar(depth - 1)


def operand(depth):
    return scalar(1) if depth <= 0 or rand.random() < 0.85 else "(%s)" % condition(depth - 1)


def condition(depth):
    kind = rand.randrange(12) if depth > 0 else rand.randrange(8)
    no = one("", "", "NOT ")
    if kind < 2:
        return f"{operand(depth)} {one('=', '<>')} {operand(depth)}"
    if kind == 2:
        return f"{scalar(1)} {one('>', '>=', '<', '<=')} {scalar(1)}"
    if kind == 3:
        return f"{one(name(), scalar(1))} {no}BETWEEN {one(number(), scalar(1))} AND {one(number(), scalar(1))}"
    if kind == 4:
        return f"{name()} {no}IN ({', '.join(text() for _ in range(rand.randrange(1, 4)))})"
    if kind == 5:
        return f"{operand(depth)} IS {no}NULL"
    if kind == 6:
        return f"{one(name(), name(), scalar(1))} {no}{one('CONTAINS', 'STARTSWITH', 'ENDSWITH')} {text()}"
    if kind == 7:
        return one(name(), "TRUE", "FALSE", "NULL")
    if kind < 10:
        return f" {one('AND', 'OR')} ".join(condition(depth - 1) for _ in range(rand.randrange(2, 4)))
    if kind == 10:
        return one("NOT (%s)", "NOT (%s)", "NOT %s") % condition(depth - 1)
    return "(%s)" % condition(depth - 1)


def spoiled(line):
    words = line.split(" ")
    at = rand.randrange(len(words))
    match rand.randrange(4):
        case 0:
            del words[at]
        case 1:
            words.insert(at, rand.choice(WORDS))
        case 2:
            words[at] = rand.choice(WORDS)
        case _:
            words = words[: at + 1]
    return " ".join(words)


for _ in range(int(sys.argv[1])):
    line = condition(rand.randrange(4))
    print(spoiled(line) if rand.random() < 0.2 else line)
