"""Folders of Markdown files with planted facts, and questions about them, made anew by seed.

A style says what files are about: entities, and attributes with several ways to state and to ask them that share few
words. A file states some attributes of its entity; a question asks one that is stated, or one that is not: an attribute
that only other files state, an entity that no file knows, or something that no file is about.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

Value = Callable[[random.Random], str]


@dataclass(frozen=True)
class Attribute:
    """Ways to state and to ask something; `{e}` is the entity, `{v}` the value."""

    states: Sequence[str]
    asks: Sequence[str]
    value: Value


@dataclass(frozen=True)
class Style:
    """What the files of a folder are about."""

    entity: Value
    title: str
    sections: Sequence[str]
    filler: Sequence[str]
    attributes: Sequence[Attribute]
    off: Sequence[str]
    listed: float = 0.0  # share of files whose facts are items of a list


@dataclass(frozen=True)
class Asked:
    """A question; `file` and `fact` are None where no file answers it, `kind` says why."""

    text: str
    kind: str
    file: str | None = None
    fact: str | None = None


ONSETS = "b br c cl d dr f fl g gr h k l m n p pr r s st t tr v w z".split()
VOWELS = "a e i o u ae ia".split()
CODAS = "l ld m n nd r rn rt s st th x ck".split()
FIRST = (
    "Ada Bruno Celia Dario Edith Farid Greta Hugo Ines Jonas Karin Lev Mira Nadia Oskar Petra Quentin Rosa Stefan Tilda"
).split()


def word(rng: random.Random) -> str:
    """A made-up name."""
    parts = rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(ONSETS[:15]) + rng.choice(VOWELS[:5])
    return (parts + rng.choice(CODAS)).capitalize()


def person(rng: random.Random) -> str:
    return f"{rng.choice(FIRST)} {word(rng)}"


def pick(*words: str) -> Value:
    return lambda rng: rng.choice(words)


def number(low: int, high: int, form: str = "{}") -> Value:
    return lambda rng: form.format(rng.randint(low, high))


def named(form: str) -> Value:
    return lambda rng: form.format(word(rng))


COLOURS = pick("crimson", "teal", "ochre", "ivory", "violet", "olive green", "cobalt blue", "saffron")
OFF = (
    "Who won the football world cup in 1998?",
    "How do I descale an espresso machine?",
    "What is the boiling point of nitrogen?",
    "Which planet has the most moons?",
    "How many strings does a violin have?",
    "What should I feed a hedgehog in winter?",
    "Who wrote the novel Middlemarch?",
    "How long does it take to boil an egg?",
)
A = Attribute

STYLES: dict[str, Style] = {
    "handbook": Style(
        named("{} Works"),
        "{e}",
        ("About", "People", "Offices", "Products", "Benefits"),
        (
            "The teams meet every other week to compare notes.",
            "New colleagues get a tour in their first days.",
            "Feedback is collected in the spring and discussed with everybody.",
            "The canteen has a long terrace.",
            "Suppliers are visited once in a while.",
            "A newsletter goes out to all who want to read it.",
            "Most decisions are written down so that others can follow them.",
            "Growth was steady in recent times.",
        ),
        (
            A(
                ("{e} was founded in {v}.", "The company has existed since {v}."),
                ("In which year did {e} start out?", "When was {e} set up?"),
                number(1880, 2015),
            ),
            A(
                ("The managing director is {v}.", "{v} runs the company as its chief executive."),
                ("Who is the boss of {e}?", "Who leads {e}?"),
                person,
            ),
            A(
                ("Employees receive {v} days of paid leave a year.", "Annual leave amounts to {v} days."),
                ("How much vacation do people at {e} get?", "How many holidays can staff of {e} take?"),
                number(21, 35),
            ),
            A(
                ("Its headquarters stand in the town of {v}.", "The main office is in {v}."),
                ("Where is {e} based?", "In what place is the head office of {e}?"),
                word,
            ),
            A(
                ("The best-selling product is a {v}.", "Most revenue comes from a {v}."),
                ("What does {e} sell most?", "Which item makes the most money for {e}?"),
                pick("folding ladder", "garden pump", "bread slicer", "bicycle lamp", "paper press", "water filter"),
            ),
            A(
                ("The office dog is called {v}.", "A terrier named {v} greets visitors."),
                ("What is the name of the pet at {e}?", "Which animal's name would visitors of {e} hear?"),
                word,
            ),
            A(
                ("Some {v} people work here.", "The workforce counts {v} people."),
                ("How many employees has {e}?", "How big is the staff of {e}?"),
                number(40, 900),
            ),
            A(
                ("Parking costs {v} a month.", "A parking space is rented out at {v} monthly."),
                ("What do I pay to leave my car at {e}?", "How expensive is parking at {e}?"),
                number(10, 90, "{} euros"),
            ),
        ),
        OFF,
    ),
    "travel": Style(
        named("Port {}"),
        "A weekend in {e}",
        ("Getting there", "What to see", "Eating", "Where to stay", "Good to know"),
        (
            "The light in the early evening is a joy.",
            "Bring shoes that you can walk in.",
            "Markets open at dawn.",
            "Locals are used to visitors and glad to help.",
            "The alleys behind the harbour are worth a stroll.",
            "In winter many shutters stay closed.",
            "A short shower is no reason to stay in.",
            "Maps are sold at kiosks.",
        ),
        (
            A(
                ("The ferry to {e} leaves at {v}.", "Boats set off at {v} every morning."),
                ("What time does the ship for {e} depart?", "When can I catch the ferry to {e}?"),
                lambda r: f"{r.randint(5, 10)}:{r.choice(('05', '15', '25', '40', '50'))}",
            ),
            A(
                ("The lighthouse is {v} metres tall.", "Its lighthouse rises {v} metres above the cliffs."),
                ("How high is the lighthouse of {e}?", "What is the height of the beacon in {e}?"),
                number(18, 96),
            ),
            A(
                ("The dish to try is {v}.", "Nobody should leave without tasting {v}."),
                ("Which food is {e} known for?", "What should I eat in {e}?"),
                pick(
                    "smoked eel pie",
                    "fennel soup",
                    "plum dumplings",
                    "salted lamb stew",
                    "quince tart",
                    "barley risotto",
                ),
            ),
            A(
                ("A room at the {v} inn is the nicest choice.", "For the night we recommend the {v} guesthouse."),
                ("Where can I sleep in {e}?", "Which hotel is a good pick in {e}?"),
                word,
            ),
            A(
                ("The old town was rebuilt after the fire of {v}.", "In {v} flames destroyed most houses."),
                ("When did {e} burn down?", "In what year was {e} hit by a blaze?"),
                number(1610, 1890),
            ),
            A(
                ("The museum is closed on {v}s.", "On {v}s the museum keeps its doors shut."),
                ("On which weekday can the museum in {e} not be visited?", "When is the museum of {e} shut?"),
                pick("Monday", "Tuesday", "Wednesday", "Thursday"),
            ),
            A(
                ("A day pass for the tram is {v}.", "Trams can be used all day for {v}."),
                ("What is the fare for public transport in {e}?", "How much is a tram ticket in {e}?"),
                number(3, 14, "{} crowns"),
            ),
            A(
                ("The beach to the {v} is best for children.", "Families prefer the shore in the {v}."),
                ("Which beach of {e} suits kids?", "Where should we swim with small children in {e}?"),
                pick("north", "south", "east", "west"),
            ),
        ),
        OFF,
    ),
    "services": Style(
        lambda r: f"{word(r).lower()}-{r.choice(('api', 'worker', 'gateway', 'store', 'sync'))}",
        "{e}",
        ("Overview", "Operations", "Configuration", "Limits", "Contacts"),
        (
            "It was split off from the monolith.",
            "Dashboards are linked from the team page.",
            "Logs are structured.",
            "Deployments are automatic after review.",
            "The code is covered by contract tests.",
            "It has no state.",
            "Alerts that nobody acts on are removed.",
            "Its clients retry with backoff.",
        ),
        (
            A(
                ("Port: {v}", "`{e}` listens on port {v}."),
                ("On which port does {e} run?", "What port do I connect to for {e}?"),
                number(3000, 9900),
            ),
            A(
                ("Timeout: {v} seconds", "Requests are cut off after {v} seconds."),
                ("How long may a call to {e} take?", "What is the time limit of requests to {e}?"),
                number(2, 95),
            ),
            A(
                ("Owner: team {v}", "Team {v} looks after it."),
                ("Who is responsible for {e}?", "Which team maintains {e}?"),
                word,
            ),
            A(
                ("Language: {v}", "The service is written in {v}."),
                ("What programming language is {e} implemented in?", "In which language was {e} coded?"),
                pick("Rust", "Kotlin", "Go", "Elixir", "Scala", "OCaml"),
            ),
            A(
                ("Database: {v}", "Data is kept in {v}."),
                ("Where does {e} store its data?", "Which database is used by {e}?"),
                pick("PostgreSQL", "Cassandra", "SQLite", "MariaDB", "Redis", "DynamoDB"),
            ),
            A(
                ("Backups: every {v} hours", "A snapshot is taken every {v} hours."),
                ("How often is {e} backed up?", "What is the interval between backups of {e}?"),
                number(2, 47),
            ),
            A(
                ("Memory limit: {v} MiB", "A container gets {v} MiB of memory at most."),
                ("How much RAM can {e} use?", "What is the memory quota of {e}?"),
                number(100, 4000),
            ),
            A(
                ("Region: {v}", "It is hosted in the {v} region."),
                ("Where is {e} deployed?", "In what region does {e} live?"),
                pick("Frankfurt", "Oregon", "Singapore", "Dublin", "Mumbai", "Montreal"),
            ),
        ),
        OFF,
        listed=0.6,
    ),
    "registry": Style(
        lambda r: f"the {word(r)} {r.choice(('vault', 'bridge', 'depot', 'reactor', 'archive', 'pump house'))}",
        "Register",
        ("General", "Access", "History", "Upkeep"),
        (
            "Entries are checked once a quarter.",
            "Older sheets are kept in the cellar.",
            "Spelling follows the map.",
            "Visitors sign in at the gate.",
            "The sheet replaces all earlier ones.",
            "Questions go to the front desk.",
            "A copy lies with the district.",
            "Photographs are filed elsewhere.",
        ),
        (
            A(
                ("The access code of {e} is {v}.",),
                ("What is the access code of {e}?", "Which code opens {e}?"),
                number(1000, 9999),
            ),
            A(("The caretaker of {e} is {v}.",), ("Who is the caretaker of {e}?", "Who takes care of {e}?"), person),
            A(("{e} was painted {v}.",), ("What colour is {e}?", "In which colour was {e} painted?"), COLOURS),
            A(
                ("{e} was built in {v}.",),
                ("When was {e} built?", "In what year was {e} constructed?"),
                number(1850, 1999),
            ),
            A(
                ("The floor area of {e} is {v}.",),
                ("What is the floor area of {e}?", "How large is {e}?"),
                number(40, 900, "{} square metres"),
            ),
            A(("{e} is owned by {v}.",), ("Who owns {e}?", "To which company does {e} belong?"), named("{} Limited")),
            A(
                ("Repairs of {e} cost {v} last year.",),
                ("How much did repairs of {e} cost?", "What was spent on mending {e}?"),
                number(2, 90, "{},000 euros"),
            ),
            A(
                ("The alarm of {e} is tested every {v}.",),
                ("How often is the alarm of {e} tested?", "On which day is the alarm of {e} tried?"),
                pick("Monday", "Tuesday", "Friday"),
            ),
        ),
        OFF,
    ),
    # Below: never used to choose weights or thresholds.
    "chronicle": Style(
        person,
        "{e}",
        ("Early life", "Career", "Later years", "Legacy"),
        (
            "Few letters from these years survive.",
            "Contemporaries describe a patient character.",
            "The sources disagree about the details.",
            "Much of this is known from diaries of friends.",
            "Money was a constant worry in the family.",
            "The following decade brought calmer days.",
            "A portrait hangs in the reading room of the archive.",
            "Several biographies have appeared since.",
        ),
        (
            A(
                (
                    "{e} was born in {v}, the youngest of four children.",
                    "The family lived in {v} when the child came into the world.",
                ),
                ("What is the birthplace of {e}?", "Where did {e} come from originally?"),
                word,
            ),
            A(
                ("At university the subject of choice was {v}.", "A degree in {v} followed at the academy."),
                ("What did {e} study?", "Which field was {e} educated in?"),
                pick("geology", "theology", "law", "botany", "astronomy", "medicine"),
            ),
            A(
                ("The invention of the {v} brought fame.", "Fame came with a new kind of {v}."),
                ("What is {e} famous for having devised?", "Which device made {e} well known?"),
                pick("barometer", "loom", "printing roller", "diving bell", "signal lamp", "mechanical harp"),
            ),
            A(
                ("In {v} a stroke ended a long life.", "Death came in the winter of {v}."),
                ("When did {e} die?", "In what year did {e} pass away?"),
                number(1790, 1950),
            ),
            A(
                ("The marriage to {v} was a happy one.", "A wedding with {v} took place in a small chapel."),
                ("Who was the spouse of {e}?", "Whom did {e} marry?"),
                person,
            ),
            A(
                ("A {v} medal was awarded for the life's work.", "The academy honoured the work with its {v} medal."),
                ("Which prize did {e} win?", "What distinction was given to {e}?"),
                word,
            ),
            A(
                ("The collection of {v} went to the state library.", "A private passion was collecting {v}."),
                ("What did {e} like to collect?", "Which objects did {e} gather as a hobby?"),
                pick("beetles", "sundials", "playing cards", "sea shells", "old keys", "clay pipes"),
            ),
            A(
                ("A bronze statue stands in {v} Square.", "{v} Square has a monument to the scholar."),
                ("Where can one find a memorial of {e}?", "On which square is there a sculpture showing {e}?"),
                word,
            ),
        ),
        OFF,
    ),
    "laboratory": Style(
        lambda r: f"{word(r)}-{r.randint(2, 99)}",
        "Notebook: instrument {e}",
        ("Purpose", "Set-up", "Calibration", "Notes"),
        (
            "Gloves are worn at all times.",
            "Readings are copied into the shared sheet.",
            "The bench was cleaned.",
            "Two colleagues repeated the series independently.",
            "No drift was seen overnight.",
            "Spare parts lie in the second drawer.",
            "A short log entry is enough.",
            "Ask before moving anything.",
        ),
        (
            A(
                ("It is warmed up for {v} minutes before use.", "Let the device run {v} minutes until it is stable."),
                ("How long does {e} need to heat up?", "What is the start-up time of {e}?"),
                number(4, 85),
            ),
            A(
                ("The chamber is cooled to minus {v} degrees.", "Inside it is kept at minus {v} degrees."),
                ("How cold is it inside {e}?", "At which temperature does {e} operate?"),
                number(5, 140),
            ),
            A(
                ("The lamp emits at {v} nanometres.", "Light of {v} nanometres excites the sample."),
                ("What wavelength does {e} use?", "Which colour of light, in nm, does {e} send out?"),
                number(210, 980),
            ),
            A(
                ("{v} signs for the yearly inspection.", "The yearly inspection is done by {v}."),
                ("Who checks {e} every twelve months?", "Which person examines {e} annually?"),
                person,
            ),
            A(
                ("The carrier gas is {v}.", "{v} flows through the column as a carrier."),
                ("What gas runs through {e}?", "Which gas do I need for {e}?"),
                pick("argon", "helium", "neon", "krypton"),
            ),
            A(
                ("A spare key hangs in room {v}.", "Room {v} has the second key."),
                ("Where do I find another key for {e}?", "In which room is the extra key to {e}?"),
                number(100, 480),
            ),
            A(
                ("It was bought for {v}.", "The purchase price was {v}."),
                ("What did {e} cost?", "How much money was spent on {e}?"),
                number(3000, 90000, "{} francs"),
            ),
            A(
                ("The detector is replaced after {v} runs.", "After {v} runs a new detector goes in."),
                ("How many measurements does the sensor of {e} last?", "When must the detector of {e} be swapped?"),
                number(150, 4000),
            ),
        ),
        OFF,
    ),
    "minutes": Style(
        named("Project {}"),
        "Minutes: {e}",
        ("Attendance", "Report", "Decisions", "Next steps"),
        (
            "The chair thanked everybody for coming.",
            "There were no remarks on the last protocol.",
            "The discussion was lively but friendly.",
            "Slides will be sent round.",
            "Some points were moved to later.",
            "A guest from the city council listened in.",
            "Coffee was served in the break.",
            "Nobody objected.",
        ),
        (
            A(
                ("The deadline was moved to {v}.", "Delivery is now planned for {v}."),
                ("By when must {e} be finished?", "What is the due date of {e}?"),
                lambda r: f"{r.randint(1, 28)} {r.choice(('March', 'May', 'July', 'October', 'November'))}",
            ),
            A(
                ("The group approved a budget of {v}.", "Funds of {v} were granted."),
                ("How much money does {e} have?", "What sum was allotted to {e}?"),
                number(11, 99, "{},500 dollars"),
            ),
            A(
                ("{v} will take over as coordinator.", "Coordination passes to {v}."),
                ("Who is in charge of {e} from now on?", "Who manages {e}?"),
                person,
            ),
            A(
                ("The main risk is {v}.", "What worries the group most is {v}."),
                ("What could go wrong in {e}?", "Which danger threatens {e}?"),
                pick(
                    "a shortage of steel",
                    "the lack of permits",
                    "flooding of the site",
                    "late software",
                    "noise complaints",
                ),
            ),
            A(
                ("The next meeting is in room {v}.", "We meet again in room {v}."),
                ("Where will the {e} group gather next?", "In which room is the coming session of {e}?"),
                named("{}"),
            ),
            A(
                ("The supplier {v} got the contract.", "It was decided to buy from {v}."),
                ("Which vendor was chosen for {e}?", "From whom does {e} purchase?"),
                named("{} Brothers"),
            ),
            A(
                ("The vote ended {v}.", "With {v} the motion was carried."),
                ("What was the result of the ballot about {e}?", "How did people vote on {e}?"),
                lambda r: f"{r.randint(9, 19)} to {r.randint(1, 8)}",
            ),
            A(
                ("The pilot starts in the district of {v}.", "{v} is the district where it is tried first."),
                ("Where is {e} tested first?", "In which part of town does {e} begin?"),
                word,
            ),
        ),
        OFF,
        listed=0.4,
    ),
    "garden": Style(
        lambda r: f"{r.choice(('Silver', 'Royal', 'Early', 'Giant', 'Blue'))} {word(r)}",
        "{e}",
        ("Description", "Growing", "Care", "Harvest"),
        (
            "It is a favourite of many allotment keepers.",
            "Slugs can be a nuisance.",
            "Good compost never hurts.",
            "The leaves smell faintly when rubbed.",
            "Seed is easily had from specialist growers.",
            "Old stems may be left for insects.",
            "It looks well beside grasses.",
            "Patience is rewarded.",
        ),
        (
            A(
                ("Plants reach {v} centimetres.", "Expect stems of {v} centimetres."),
                ("How tall does {e} grow?", "What height does {e} attain?"),
                number(20, 240),
            ),
            A(
                ("The flowers are {v}.", "It blooms in {v}."),
                ("What colour are the blossoms of {e}?", "Which shade does {e} flower in?"),
                COLOURS,
            ),
            A(
                ("Sow the seed in {v}.", "{v} is the month to put seeds in the ground."),
                ("When should I plant {e}?", "In what month is {e} sown?"),
                pick("March", "April", "May", "August", "September"),
            ),
            A(
                ("Leave {v} centimetres between plants.", "Seedlings stand {v} centimetres apart."),
                ("What spacing does {e} need?", "How far from each other do I set {e}?"),
                number(8, 120),
            ),
            A(
                ("It tolerates frost down to minus {v} degrees.", "Cold of minus {v} degrees does no harm."),
                ("How hardy is {e}?", "What low temperature can {e} survive?"),
                number(2, 30),
            ),
            A(
                ("The variety was bred by {v}.", "{v} raised this variety in a small nursery."),
                ("Who created {e}?", "Which breeder do we owe {e} to?"),
                person,
            ),
            A(
                ("It prefers soil that is {v}.", "A {v} soil suits it."),
                ("What ground does {e} like?", "Which type of earth is right for {e}?"),
                pick("sandy", "chalky", "loamy", "peaty", "clayey"),
            ),
            A(
                ("Water it every {v} days.", "It wants a drink every {v} days."),
                ("How often does {e} need watering?", "How frequently must I irrigate {e}?"),
                number(2, 16),
            ),
        ),
        OFF,
    ),
    "museum": Style(
        named("the {} Casket"),
        "Room guide: {e}",
        ("The object", "Origin", "Conservation", "On display"),
        (
            "Visitors often stop here for longer than they planned.",
            "Photographs are allowed without flash.",
            "The label was rewritten last year.",
            "School classes like to draw it.",
            "A bench stands nearby.",
            "The audio guide has a longer story.",
            "Its shape invites comparison with its neighbours.",
            "Dust is the enemy.",
        ),
        (
            A(
                ("It is carved from {v}.", "The maker used {v} throughout."),
                ("What material is {e} made of?", "Out of what was {e} produced?"),
                pick("walrus ivory", "boxwood", "soapstone", "alabaster", "jet", "horn"),
            ),
            A(
                ("It was dug up near {v}.", "Farmers came upon it close to {v}."),
                ("Where was {e} discovered?", "What is the find spot of {e}?"),
                word,
            ),
            A(
                ("The object weighs {v} grams.", "On the scales it shows {v} grams."),
                ("How heavy is {e}?", "What is the weight of {e}?"),
                number(120, 8800),
            ),
            A(
                ("It was a gift of {v}.", "{v} donated it to the house."),
                ("Who gave {e} to the museum?", "From whom did the museum get {e}?"),
                person,
            ),
            A(
                ("The piece came into the collection in {v}.", "Since {v} it has belonged to the museum."),
                ("When was {e} acquired?", "In which year did {e} enter the collection?"),
                number(1801, 1999),
            ),
            A(
                ("It stands in showcase {v}.", "Look for it in showcase {v}."),
                ("In which cabinet is {e} shown?", "Where exactly is {e} exhibited?"),
                number(3, 88),
            ),
            A(
                ("The lid shows a {v}.", "A {v} is depicted on its cover."),
                ("What picture decorates {e}?", "Which scene can be seen on top of {e}?"),
                pick("stag hunt", "sea battle", "harvest dance", "royal wedding", "ship of fools"),
            ),
            A(
                ("Its insurance value is {v}.", "It is insured for {v}."),
                ("How much is {e} worth?", "What is the estimated price of {e}?"),
                number(20, 900, "{},000 pounds"),
            ),
        ),
        OFF,
    ),
}
DEV, TEST = ("handbook", "travel", "services", "registry"), ("chronicle", "laboratory", "minutes", "garden", "museum")


def make_folder(
    folder: Path, seed: int, style: str, files: int = 200, answerable: int = 15, not_answerable: int = 5
) -> list[Asked]:
    """Write the files of a folder and give the questions about them, those that are answered there first."""
    rng, form = random.Random(f"{style} {seed}"), STYLES[style]
    folder.mkdir(parents=True, exist_ok=True)
    entities: list[str] = []
    while len(entities) < files + not_answerable:
        if (name := form.entity(rng)) not in entities:
            entities.append(name)
    stated: list[dict[int, tuple[str, str]]] = []
    for place, name in enumerate(entities[:files]):
        facts = {}
        for number_ in sorted(rng.sample(range(len(form.attributes)), 5)):
            attribute = form.attributes[number_]
            facts[number_] = (rng.choice(attribute.states), attribute.value(rng))
        stated.append(facts)
        text = _text(form, name, [s.format(e=name, v=v) for s, v in facts.values()], rng)
        (folder / f"{place:03d}-{name.lower().replace(' ', '-')}.md").write_text(text, encoding="utf-8")
    names = sorted(path.name for path in folder.glob("*.md"))
    asked = []
    for place in rng.sample(range(files), answerable):
        which = rng.choice(list(stated[place]))
        statement, value = stated[place][which]
        question = rng.choice(form.attributes[which].asks).format(e=entities[place])
        asked.append(Asked(question, "stated", names[place], statement.format(e=entities[place], v=value)))
    for turn in range(not_answerable):
        which = rng.randrange(len(form.attributes))
        if turn % 5 < 3:
            place = rng.choice([i for i in range(files) if which not in stated[i]])
            asked.append(Asked(rng.choice(form.attributes[which].asks).format(e=entities[place]), "not stated"))
        elif turn % 5 == 3:
            asked.append(
                Asked(rng.choice(form.attributes[which].asks).format(e=entities[files + turn]), "unknown entity")
            )
        else:
            asked.append(Asked(rng.choice(form.off), "off topic"))
    return asked


def _text(form: Style, name: str, facts: list[str], rng: random.Random) -> str:
    """A file: a title, sections with filler and facts in them."""
    sections = rng.sample(form.sections, min(len(form.sections), 3))
    lines = [f"# {form.title.format(e=name)}", "", " ".join(rng.sample(form.filler, 2)), ""]
    listed = rng.random() < form.listed
    parts: list[list[str]] = [[] for _ in sections]
    for fact in rng.sample(facts, len(facts)):
        rng.choice(parts).append(fact)
    for section, held in zip(sections, parts, strict=True):
        lines += [f"## {section}", ""]
        if listed:
            lines += [" ".join(rng.sample(form.filler, 2)), "", *(f"- {fact}" for fact in held), ""]
        else:
            sentences = held + rng.sample(form.filler, 3)
            rng.shuffle(sentences)
            lines += [" ".join(s if s.endswith(".") else f"{s}." for s in sentences), ""]
    return "\n".join(lines)
