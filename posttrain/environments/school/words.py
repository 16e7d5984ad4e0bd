"""The vocabulary of the school: names, things, everyday words by length, and made-up words."""

from __future__ import annotations

from random import Random


def listed(text: str) -> list[str]:
    """A list written as one line of words."""
    return text.split()


NAMES = listed(
    "Tom Mia Ben Ana Leo Zoe Max Eva Sam Lily Jack Nora Finn Ruby Paul Emma Noah Ella Luke Anna Omar Sara Ivan Rosa Hugo "
    "Lena Adam Maya Carl Iris Amir Jana Theo Nina Erik Lucy Raj Mei Kofi Yuki Dora Alex Kim Olga Pia Timo Vera Will"
)

FOODS = listed(
    "apples pears plums figs nuts eggs buns cakes cookies sweets grapes lemons cherries peaches berries carrots"
)
THINGS = listed(
    "pens books cups coins cards balls hats keys stamps shells stones boxes toys marbles stickers flowers pencils kites "
    "buttons beads bottles candles photos tickets leaves ribbons spoons plates blocks feathers"
)
ITEMS = listed("pen book cup coin card ball hat key stamp shell stone box toy kite bell lamp rope brush spoon plate")
COLOURS = listed("red blue green yellow black white pink brown grey orange")
ANIMALS = listed("cat dog cow pig hen fox owl bee ant frog duck goat bear wolf lion mouse horse sheep tiger zebra")
NUMBER_WORDS = listed("zero one two three four five six seven eight nine ten")

_WORDS = listed(
    "ant arm bag bat bed bee box boy bus cap car cat cow cup day dog ear egg eye fan fig fox fun gas gem hat hen ice ink "
    "jam jar key kid leg lid lip map mix mud net nut oak oil owl pan pen pig pot rain red rug sea sky sun tea toe top toy "
    "van web zoo able bean bear bell bird blue boat bone book cake card cave clay coat cold corn dark deer desk dish door "
    "drum duck dust east face farm fast fire fish flag fork frog game gate girl goat gold good hand harp hill home hope "
    "horn iron jump king kite lake lamp land leaf lime lion long milk mill mind moon nest nose note pair palm park path "
    "pear pine play pond rice ring road roof rope rose salt sand seed shoe silk snow soap song soup star step swim tail "
    "tent time tree tuna vase wall wave wind wing wolf wood yard zero apple beach berry bread brush chair chalk cheek "
    "chess clock cloud coral crown dance dream eagle earth fence field flame floor fruit glass globe grape grass green "
    "heart honey horse house juice knife lemon light maple melon metal money mouse music night ocean olive onion paint "
    "paper peach pearl piano plant plate queen quiet river robin salad sheep shell shirt skirt smile snail spoon stone "
    "storm sugar sweet table teeth tiger toast torch tower train truck tulip uncle voice wagon water whale wheat wheel "
    "world zebra animal answer banana basket beetle bottle bridge bubble butter button candle carpet carrot castle cheese "
    "cherry circle coffee cookie cotton dinner doctor dollar donkey dragon engine family farmer father finger flower "
    "forest friend garden guitar hammer island jacket kettle kitten ladder letter lizard marble market meadow mirror "
    "monkey mother museum needle number office orange parrot pencil pepper pillow planet pocket potato puddle puppet "
    "puzzle rabbit ribbon rocket saddle school season shadow silver sister spider spring square summer sunset tomato "
    "turtle valley violin wallet window winter wizard yellow balloon bedroom blanket brother cabbage captain chicken "
    "country cousin dolphin evening feather freedom giraffe holiday journey kitchen lantern leopard library machine "
    "morning mystery octopus penguin picture popcorn present problem rainbow raccoon sandals seagull sparrow teacher "
    "tractor trumpet unicorn village volcano weather whisper airplane baseball bathroom birthday building butterfly "
    "cardinal children computer dinosaur elephant eleven envelope festival football hospital icecream keyboard kangaroo "
    "language magazine mountain mushroom necklace notebook painting passenger question sandwich seahorse snowball "
    "squirrel stranger sunshine treasure umbrella vacation vegetable adventure alligator apartment breakfast broccoli "
    "celebrate chocolate crocodile furniture hamburger important invisible jellyfish lemonade newspaper orchestra "
    "pineapple professor raspberry satellite screwdriver spaghetti starfish strawberry submarine telephone television "
    "watermelon wonderful yesterday blackberry classroom helicopter lighthouse microphone motorcycle playground "
    "rhinoceros skateboard toothbrush typewriter waterfall understand"
)

BY_LENGTH: dict[int, list[str]] = {}
for _word in _WORDS:
    BY_LENGTH.setdefault(len(_word), []).append(_word)

_CONSONANTS = "bcdfghjklmnpqrstvwxyzbdlmnrst"
_VOWELS = "aeiouaeio"


def made_up(rng: Random, n: int) -> str:
    """A word nobody knows: consonants and vowels in turn, now and then one too many."""
    letters, vowel = [], rng.random() < 0.3
    for _ in range(n):
        letters.append(rng.choice(_VOWELS if vowel else _CONSONANTS))
        vowel = not vowel if rng.random() < 0.85 else vowel
    return "".join(letters)


def word(rng: Random, n: int) -> str:
    """A word of n letters, known or made up in equal parts, so that spelling is a skill and not a list learned by heart."""
    known = BY_LENGTH.get(n)
    return rng.choice(known) if known and rng.random() < 0.5 else made_up(rng, n)
