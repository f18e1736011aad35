"""What folders are about that nothing was chosen on; who wrote them did not know how questions are answered."""

from __future__ import annotations

import random

from finegrained_lab.worlds.folders.make import COLOURS, A, Style, Value, named, number, person, pick, word

MONTHS = ("January", "February", "April", "May", "June", "August", "September", "October", "December")


def date(low: int, high: int) -> Value:
    """A date with its year between the two, both included."""
    return lambda r: f"{r.randint(1, 28)} {r.choice(MONTHS)} {r.randint(low, high)}"


def club(rng: random.Random) -> str:
    """The name of a made-up football club."""
    return rng.choice(("FC {}", "SV {}", "{} United", "{} Rovers", "{} Athletic")).format(word(rng))


UNSEEN: dict[str, Style] = {
    "recipes": Style(
        lambda r: f"{word(r)} {r.choice(('bake', 'casserole', 'pie', 'gratin', 'hotpot'))}",
        "{e}",
        ("Ingredients", "Method", "Serving", "Notes for the kitchen"),
        (
            "Taste before you send it out.",
            "Use the large trays from the lower shelf.",
            "Chop everything evenly so that no piece stays raw.",
            "Wipe the work surface between steps.",
            "The vegetables can be peeled the evening before.",
            "It was a hit at the summer party.",
            "Go easy on the salt, the stock has plenty.",
            "Fresh herbs go in last.",
        ),
        (
            A(
                ("The quantities are for {v} portions.", "One batch feeds {v} people."),
                ("How many portions does the recipe for {e} make?", "How many people can I feed with a batch of {e}?"),
                number(20, 180),
            ),
            A(
                ("Bake at {v} degrees until the top is golden.", "Set the oven to {v} degrees well in advance."),
                ("At what temperature do I bake {e}?", "How hot should the oven be for {e}?"),
                number(140, 230),
            ),
            A(
                ("Cooking time is {v} minutes.", "After {v} minutes it is ready to come out."),
                ("What is the cooking time of {e}?", "How long does it take until {e} is ready?"),
                number(25, 140),
            ),
            A(
                ("Contains {v}, so mark it on the board.", "Guests who are allergic to {v} must be warned."),
                ("Which allergen does {e} contain?", "What could be a problem in {e} for someone with an allergy?"),
                pick("celery", "mustard", "sesame", "lupin", "hazelnuts", "soya", "milk"),
            ),
            A(
                ("Guests pay {v} at the counter.", "The price was set at {v}."),
                ("What is the price of {e}?", "How much do guests pay for a plate of {e}?"),
                lambda r: f"{r.randint(3, 8)}.{r.choice((20, 40, 60, 80, 90))} euros",
            ),
            A(
                ("The recipe comes from {v}, now retired.", "{v} brought this dish into our kitchen."),
                ("Who does the recipe for {e} come from?", "Which cook introduced {e}?"),
                person,
            ),
            A(
                ("Serve with {v}.", "The usual side dish is {v}."),
                ("What is {e} served with?", "Which side dish goes with {e}?"),
                pick(
                    "braised red cabbage",
                    "buttered peas",
                    "pickled beetroot",
                    "flatbread",
                    "cucumber salad",
                    "wild rice",
                ),
            ),
            A(
                ("It is on the menu every other {v}.", "{v} is the day when we make it for lunch."),
                ("On which day is {e} on the menu?", "When can I have {e} for lunch?"),
                pick("Monday", "Tuesday", "Wednesday", "Thursday", "Friday"),
            ),
        ),
        (
            "How do I renew my passport?",
            "What is the capital of Mongolia?",
            "Who painted The Night Watch?",
            "Why does my router keep losing the connection?",
            "In which year did the Berlin Wall fall?",
            "How far away is the moon?",
            "Why do cats purr?",
            "What does a notary do?",
        ),
    ),
    "vessels": Style(
        lambda r: f"{r.choice(('MV', 'MS', 'SS'))} {word(r)}",
        "Vessel profile: {e}",
        ("Particulars", "Machinery", "Crew", "Trade", "Remarks"),
        (
            "The mess was refurbished during a recent stay in dock.",
            "Lifeboat drills are held as the rules require.",
            "Surveyors had only minor remarks.",
            "The paintwork suffers in salty air.",
            "Drawings can be seen at the office on request.",
            "Spare parts are ordered through the agent.",
            "Her radio equipment is up to date.",
            "Those who served aboard speak well of her.",
        ),
        (
            A(
                ("She measures {v} metres from bow to stern.", "Length overall is {v} metres."),
                ("What is the length of {e}?", "How long is {e}?"),
                number(48, 320),
            ),
            A(
                ("She sails under the flag of {v}.", "The country of registration is {v}."),
                ("Which flag does {e} fly?", "In what country is {e} registered?"),
                pick("Panama", "Malta", "Liberia", "Norway", "Cyprus", "the Bahamas"),
            ),
            A(
                ("Her present captain is {v}.", "{v} took command after the last refit."),
                ("Who is the captain of {e}?", "Who is in command of {e}?"),
                person,
            ),
            A(
                ("She was launched on {v}.", "Her hull first touched the water on {v}."),
                ("When was {e} launched?", "On what date was {e} put afloat?"),
                date(1968, 2019),
            ),
            A(
                ("{v} built her to a standard design.", "She came out of the shipyard of {v}."),
                ("Who built {e}?", "At which shipyard was {e} constructed?"),
                named("{} & Sons"),
            ),
            A(
                ("Service speed is {v} knots.", "Fully loaded she makes {v} knots."),
                ("How many knots can {e} do?", "How fast does {e} go?"),
                number(9, 28),
            ),
            A(
                ("She mostly carries {v}.", "Her usual cargo is {v}."),
                ("What does {e} carry?", "What sort of cargo is loaded on {e}?"),
                pick("iron ore", "bananas", "wood pellets", "cement", "frozen fish", "fertiliser", "used cars"),
            ),
            A(
                ("Her day rate is {v}.", "Charterers are asked {v} for each day."),
                ("What is the day rate of {e}?", "How much does it cost to charter {e}?"),
                number(6, 48, "{},500 dollars"),
            ),
        ),
        (
            "What is a good birthday present for a teenager?",
            "How do I remove red wine stains from a carpet?",
            "Who composed The Magic Flute?",
            "How many chromosomes do humans have?",
            "Which vitamin is found in carrots?",
            "How do I tie a bow tie?",
            "What is the square root of 1764?",
            "When should roses be pruned?",
        ),
    ),
    "clubs": Style(
        club,
        "{e}",
        ("History", "Ground", "Team", "Supporters"),
        (
            "Training is open to the public on some afternoons.",
            "The youth sides are doing well.",
            "Scarves and mugs are sold in the shop by the gate.",
            "The pitch was relaid after a wet winter.",
            "Injuries spoiled much of the last campaign.",
            "The board promises to spend wisely.",
            "Old match programmes are sought after.",
            "Volunteers help with the catering.",
        ),
        (
            A(
                ("Home matches are played at {v}.", "The ground is known as {v}."),
                ("Where does {e} play its home matches?", "What is the name of the ground of {e}?"),
                named("{} Park"),
            ),
            A(
                ("There is room for {v} spectators.", "Since the rebuilding the capacity has been {v}."),
                ("How many spectators fit into the stadium of {e}?", "What is the capacity of the stadium of {e}?"),
                number(2100, 48000),
            ),
            A(
                ("{v} coaches the first eleven.", "{v} was hired as manager in the summer."),
                ("Who coaches {e}?", "Who trains the players of {e}?"),
                person,
            ),
            A(
                ("The players wear {v} shirts.", "The kit is {v} from head to toe."),
                ("What colour are the shirts of {e}?", "What does the kit of {e} look like?"),
                COLOURS,
            ),
            A(
                ("Fans call the team the {v}.", "Its nickname, the {v}, goes back to a newspaper cartoon."),
                ("What is the nickname of {e}?", "What do fans call {e}?"),
                pick("Herons", "Tanners", "Millers", "Wasps", "Lamplighters", "Badgers", "Bakers"),
            ),
            A(
                ("The fiercest rival is {v}.", "The derby against {v} is the highlight of every year."),
                ("Who is the biggest rival of {e}?", "Which opponent does {e} face in the derby?"),
                named("{} Town"),
            ),
            A(
                ("A season ticket costs {v}.", "Adults pay {v} to get into all home games."),
                ("How much is a season ticket for {e}?", "What would I pay to see every home game of {e}?"),
                number(120, 690, "{} pounds"),
            ),
            A(
                ("The cup was won just once, in {v}.", "In {v} the club lifted its only major trophy."),
                ("When did {e} win the cup?", "In which year did {e} get its hands on a trophy?"),
                number(1921, 2012),
            ),
        ),
        (
            "How do I sharpen a kitchen knife?",
            "What causes a rainbow?",
            "Who was the first woman to win a Nobel Prize?",
            "Which documents do I need to register a car?",
            "How do bees make honey?",
            "What is the longest river in Asia?",
            "How do I fold a fitted sheet?",
            "Is it safe to take aspirin while pregnant?",
        ),
    ),
    "releases": Style(
        lambda r: f"{word(r)} {r.randint(1, 9)}.{r.randint(0, 12)}",
        "Release notes: {e}",
        ("Highlights", "Changes", "Upgrading", "Known problems", "Credits"),
        (
            "As always, make a backup first.",
            "Many small glitches were ironed out.",
            "Translations were refreshed by volunteers.",
            "Administrators should read the whole page.",
            "Nightly builds are meant for testers only.",
            "The tutorial has new screenshots.",
            "Some menus were tidied up.",
            "Start-up is noticeably quicker.",
        ),
        (
            A(
                ("Released on {v}", "{e} has been available since {v}."),
                ("When was {e} released?", "On what day did {e} come out?"),
                date(2018, 2023),
            ),
            A(
                ("Requires {v} or newer", "It no longer starts on a runtime older than {v}."),
                ("What does {e} require?", "Which runtime do I have to install for {e}?"),
                pick("Java 17", "Python 3.9", "Node 18", ".NET 6", "Ruby 3.1", "PHP 8.1"),
            ),
            A(
                ("Download size: {v} MB", "The installer has shrunk to {v} MB."),
                ("How big is the download of {e}?", "How large is the installer of {e}?"),
                number(14, 480),
            ),
            A(
                ("Export to {v} was added.", "New: documents can be saved as {v}"),
                ("Which export format is new in {e}?", "What other file type can {e} write now?"),
                pick("EPUB", "SVG", "Parquet", "LaTeX", "CSV", "DOCX"),
            ),
            A(
                ("Removed: {v}", "We said goodbye to {v}, which hardly anybody used."),
                ("What was removed in {e}?", "Which feature is gone in {e}?"),
                pick("print preview", "offline mode", "the built-in chat", "fax support", "the spell checker"),
            ),
            A(
                ("Known issue: {v}", "One bug is still open: {v}."),
                ("What known issue does {e} have?", "Which bug has not been fixed in {e}?"),
                pick(
                    "search fails on names with accents",
                    "scrolling stutters in large tables",
                    "dark mode hides the cursor",
                    "thumbnails are sometimes blank",
                    "the tray icon vanishes after sleep",
                ),
            ),
            A(
                ("Security fixes will be provided until {v}.", "Support ends in {v}."),
                ("Until when does {e} get security fixes?", "When does support for {e} run out?"),
                lambda r: f"{r.choice(MONTHS)} {r.randint(2025, 2031)}",
            ),
            A(
                ("This release was put together by {v}.", "{v} coordinated the work of all contributors."),
                ("Who put {e} together?", "Who was the release manager of {e}?"),
                person,
            ),
        ),
        (
            "How many bones are in the human foot?",
            "What is the best way to cook asparagus?",
            "Who wrote the Brandenburg Concertos?",
            "How tall is Kilimanjaro?",
            "When do swallows fly south?",
            "How do I get rid of moths in the wardrobe?",
            "Which king had six wives?",
            "What is the difference between jam and marmalade?",
        ),
        listed=0.6,
    ),
    "wards": Style(
        named("{} Ward"),
        "Information sheet: {e}",
        ("About us", "Visiting", "Daily routine", "Staff", "During your stay"),
        (
            "Please clean your hands as you enter.",
            "Flowers are best left at home.",
            "The day room has books and puzzles.",
            "Mobile phones should be set to silent.",
            "Just ask if anything is unclear.",
            "Valuables can be locked away.",
            "Volunteers bring round newspapers and snacks.",
            "We know that being ill is unsettling.",
        ),
        (
            A(
                ("Visiting hours: {v}", "Relatives may come in from {v}."),
                ("What are the visiting hours of {e}?", "When may relatives see somebody on {e}?"),
                lambda r: f"{r.randint(10, 14)}:{r.choice(('00', '15', '30'))} to {r.randint(16, 20)}:30",
            ),
            A(
                ("The ward has {v} beds.", "There is space for {v} patients."),
                ("How many beds are there on {e}?", "How many patients can {e} take?"),
                number(8, 44),
            ),
            A(
                ("The senior nurse is {v}.", "{v} is in charge of the care team."),
                ("Who is the senior nurse on {e}?", "Who is in charge of {e}?"),
                person,
            ),
            A(
                ("Extension: {v}", "To reach the nurses' station by phone, dial {v}."),
                ("What is the extension of {e}?", "Which phone number should I dial for {e}?"),
                number(2000, 7999),
            ),
            A(
                ("We are in the {v} Wing.", "From the main entrance, follow the signs to the {v} Wing."),
                ("Which wing is {e} in?", "Where in the hospital do I find {e}?"),
                word,
            ),
            A(
                ("We look after people with {v}.", "Most patients are admitted because of {v}."),
                ("What kind of cases does {e} treat?", "Why are patients usually admitted to {e}?"),
                pick("burns", "strokes", "kidney failure", "broken hips", "severe asthma", "eating disorders"),
            ),
            A(
                ("A bedside television costs {v} a day.", "Screens can be rented for {v} a day."),
                ("How much is a bedside television on {e}?", "What does it cost to watch TV on {e}?"),
                lambda r: f"{r.randint(2, 9)}.{r.choice((25, 50, 75))} pounds",
            ),
            A(
                ("The doctors' round begins at {v}.", "Medical staff see every patient from {v} onwards."),
                ("At what time is the ward round on {e}?", "When do the doctors come by on {e}?"),
                lambda r: f"{r.randint(7, 10)}:{r.choice(('05', '15', '30', '45'))}",
            ),
        ),
        (
            "How do I change a bicycle tyre?",
            "What is the exchange rate of the yen?",
            "Who directed Casablanca?",
            "How many players are in a volleyball team?",
            "Which wood is best for a cutting board?",
            "When did the Romans leave Britain?",
            "How do I write a cover letter?",
            "What do tadpoles eat?",
        ),
        listed=0.4,
    ),
}
