"""What folders of people who work are about; weights of evidence were fitted on them."""

from __future__ import annotations

from finegrained_lab.worlds.folders.make import COLOURS, OFF, A, Style, named, number, person, pick, word

WORK: dict[str, Style] = {
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
}
