"""What folders about places and people are about; weights of evidence were fitted on them."""

from __future__ import annotations

from finegrained_lab.worlds.folders.make import COLOURS, OFF, A, Style, named, number, person, pick, word

PLACES: dict[str, Style] = {
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
