"""The words of instances: names of files and people, and sentences."""

from arpo.envs.desktop.templates.template import Draw


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NOUNS = _words("""
    agenda album answer apple atlas badge basket bicycle blanket bottle bridge bucket budget button cabin calendar
    camera candle carpet castle cellar chart cheese chest circle coffee contract corner cotton diary dinner doctor
    dragon drawer engine essay family farmer feather festival flower forest garden guitar hammer harbour holiday
    honey hotel invoice island jacket journal kettle kitchen ladder lecture lemon letter library lunch market
    meadow melody menu mirror morning museum notebook novel orange orchard package paint palace paper parcel pencil
    piano picture pillow planet pocket poem potato project pumpkin puzzle rabbit receipt recipe report ribbon river
    rocket saddle salad school script season shelter silver sketch soup station story summer sunset survey table
    teacher theatre ticket tractor travel tunnel umbrella vacation valley village violin wagon wallet weather
    window winter workshop
""")
ADJECTIVES = _words("""
    big blue brave bright broken busy calm clean clever cold dark deep dry early empty fast final fresh gentle
    golden green happy heavy large late light little long loud narrow new old open plain quick quiet red round
    sharp short silent simple small soft spare strong sweet tall thin tiny warm white wide young
""")
PEOPLE = _words("""
    Ada Alice Anna Ben Boris Carla Clara Daniel David Elena Emil Erik Eva Felix Fiona Greta Hanna Hugo Ida Ines
    Ivan Jonas Julia Karl Kira Laura Leo Lina Lucas Maria Max Mia Nadia Nina Noah Olga Oscar Paula Peter Rosa Ruth
    Sam Sara Simon Sofia Tara Tim Tom Ursula Victor Vera Walter Yara Zoe
""")
VERBS = _words("""
    bought carried cleaned counted described drew found kept lost moved opened packed borrowed saw sold used wanted
""")


def file_name(draw: Draw, ending: str = "txt") -> str:
    """Return a name such as `late-poem.txt`: of some 8,000."""
    return f"{draw.choice(ADJECTIVES)}-{draw.choice(NOUNS)}.{ending}"


def file_names(draw: Draw, count: int, ending: str = "txt") -> list[str]:
    """Return different names, of different nouns, in their alphabetical order."""
    return sorted(f"{draw.choice(ADJECTIVES)}-{noun}.{ending}" for noun in draw.sample(NOUNS, count))


def sentence(draw: Draw) -> str:
    """Return a sentence such as `Ada found the late poem.`"""
    return f"{draw.choice(PEOPLE)} {draw.choice(VERBS)} the {draw.choice(ADJECTIVES)} {draw.choice(NOUNS)}."


def sentences(draw: Draw, count: int) -> list[str]:
    """Return different sentences."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[sentence(draw)] = None
    return list(found)
