"""Small talk for the pocket model: greetings, who it is, and a little general knowledge in plain templates."""

from __future__ import annotations

from random import Random

from posttrain.environments.school.words import COLOURS, NUMBER_WORDS, listed

Talk = tuple[str, str]

_CAPITALS = dict(
    pair.split(":")
    for pair in listed(
        "France:Paris Italy:Rome Spain:Madrid Germany:Berlin Japan:Tokyo China:Beijing Egypt:Cairo Norway:Oslo Greece:Athens "
        "Poland:Warsaw Austria:Vienna Portugal:Lisbon Ireland:Dublin Sweden:Stockholm Finland:Helsinki Denmark:Copenhagen "
        "Russia:Moscow Canada:Ottawa Cuba:Havana Peru:Lima Chile:Santiago Kenya:Nairobi Ghana:Accra Turkey:Ankara "
        "Hungary:Budapest Belgium:Brussels England:London Thailand:Bangkok"
    )
)
_OPPOSITES = [
    tuple(pair.split(":"))
    for pair in listed(
        "hot:cold big:small up:down left:right day:night old:new fast:slow open:closed happy:sad wet:dry hard:soft "
        "light:dark high:low early:late full:empty near:far rich:poor strong:weak long:short black:white yes:no good:bad "
        "in:out on:off clean:dirty loud:quiet first:last thick:thin"
    )
]
_SOUNDS = {"cat": "meow", "dog": "woof", "cow": "moo", "duck": "quack", "sheep": "baa", "pig": "oink", "lion": "roar"}
_LEGS = {"dog": 4, "bird": 2, "spider": 8, "ant": 6, "horse": 4, "hen": 2, "bee": 6, "cat": 4, "fish": 0, "snake": 0}
_LOOKS = {
    "grass": "green",
    "snow": "white",
    "the sky": "blue",
    "a lemon": "yellow",
    "a tomato": "red",
    "coal": "black",
    "milk": "white",
    "a banana": "yellow",
    "blood": "red",
    "a carrot": "orange",
    "a frog": "green",
    "the sea": "blue",
    "chocolate": "brown",
    "an elephant": "grey",
}
_KINDS = {
    "animal": listed("dog cat horse lion frog duck sheep wolf bear"),
    "fruit": listed("apple pear plum lemon banana cherry peach"),
    "colour": COLOURS,
    "drink": listed("water milk tea coffee juice lemonade"),
    "tool": listed("hammer saw drill spade brush"),
}
_FIXED: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (
        ("Hello!", "Hi!", "Hello", "Hi", "Hey", "Good morning!", "Hello there!", "Good day!", "Hi there"),
        (
            "Hello! What shall we work on?",
            "Hi! Ask me something.",
            "Hello! How can I help you?",
            "Good day! Shall we count?",
        ),
    ),
    (
        ("Who are you?", "What are you?", "What is your name?", "Tell me about yourself.", "Are you a person?"),
        ("I am Pocket, a small model that lives inside posttrain.",),
    ),
    (
        ("How are you?", "How are you today?", "How do you feel?", "Are you well?"),
        ("I am fine, thank you. How are you?", "Very well, thank you!", "Good, and ready to count."),
    ),
    (
        ("What can you do?", "Can you help me?", "What do you know?", "How can you help me?", "Help"),
        (
            "I can count, sort, compare, calculate, spell and tell the time.",
            "I do small school tasks: sums, words, dates and units.",
        ),
    ),
    (
        ("Thank you!", "Thanks!", "Thank you very much.", "Thanks a lot!", "Thank you"),
        ("You are welcome!", "Gladly!", "You are welcome. Anything else?"),
    ),
    (
        ("Goodbye!", "Bye!", "See you!", "Good night!", "Goodbye", "Bye"),
        ("Goodbye! Come back soon.", "Bye! It was nice to talk.", "See you soon!"),
    ),
    (
        ("Are you smart?", "Are you a big model?", "How big are you?", "Are you good at maths?"),
        ("I am small, but I learn.", "I am very small, so please check my answers."),
    ),
    (
        ("Tell me a joke.", "Make me laugh.", "A joke, please."),
        ("Why is six afraid of seven? Because seven ate nine.",),
    ),
    (("Who made you?", "Where do you come from?"), ("I was trained by a script in the posttrain repository.",)),
    (
        ("What is posttrain?", "What is post-training?", "What does posttrain do?"),
        ("posttrain makes a model better from feedback.",),
    ),
    (("How are you trained?", "How do you learn?"), ("I learn from examples first, and then from rewards.",)),
    (("Do you like me?", "Are you my friend?"), ("Yes, I like to work with you.", "I am happy to help you.")),
)


def _capital(rng: Random) -> Talk:
    country, city = rng.choice(_CAPITAL_LIST)
    if rng.random() < 0.3:
        return f"{city} is the capital of which country?", f"{country}."
    return rng.choice(("What is the capital of {}?", "Name the capital of {}.")).format(country), f"{city}."


def _opposite(rng: Random) -> Talk:
    a, b = rng.sample(rng.choice(_OPPOSITES), 2)
    return rng.choice(("What is the opposite of {}?", "Tell me the opposite of {}.")).format(a), f"{b.capitalize()}."


def _animal(rng: Random) -> Talk:
    if rng.random() < 0.5:
        animal, sound = rng.choice(list(_SOUNDS.items()))
        return f"What does a {animal} say?", f"{sound.capitalize()}!"
    animal, legs = rng.choice(list(_LEGS.items()))
    return f"How many legs does a {animal} have?", f"{legs}."


def _look(rng: Random) -> Talk:
    thing, colour = rng.choice(list(_LOOKS.items()))
    return f"What colour is {thing}?", f"{colour.capitalize()}."


def _kind(rng: Random) -> Talk:
    kind = rng.choice(list(_KINDS))
    member = rng.choice(_KINDS[kind])
    article = "an" if kind[0] in "aeiou" else "a"
    if rng.random() < 0.5:
        return f"Name {article} {kind}.", f"{member.capitalize()}."
    other = rng.choice(list(_KINDS))
    article = "an" if other[0] in "aeiou" else "a"
    right = member in _KINDS[other]
    return (f"Is {member} {article} {other}?", "Yes." if right else f"No, {member} is not {article} {other}.")


def _number(rng: Random) -> Talk:
    n = rng.randrange(1, 10)
    kind = rng.randrange(3)
    if kind == 0:
        return f"Write {n} as a word.", NUMBER_WORDS[n]
    if kind == 1:
        return (f"What comes after {NUMBER_WORDS[n]}?", f"{NUMBER_WORDS[n + 1].capitalize()}.")
    m = rng.randrange(1, 90)
    return f"Count from {m} to {m + 4}.", " ".join(str(x) for x in range(m, m + 5))


_CAPITAL_LIST = list(_CAPITALS.items())
_KNOWLEDGE = (_capital, _capital, _opposite, _opposite, _animal, _look, _kind, _number)


def small_talk(rng: Random) -> Talk:
    """A question and an answer that no grader needs."""
    if rng.random() < 0.45:
        asks, answers = rng.choice(_FIXED)
        return rng.choice(asks), rng.choice(answers)
    return rng.choice(_KNOWLEDGE)(rng)
