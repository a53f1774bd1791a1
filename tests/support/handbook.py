"""A small folder of texts, and questions of which the file with the answer is known."""

from pathlib import Path

FILES = {
    "people/holidays.md": "# Holidays\n\nYou have 28 days of vacation. Ask your lead two weeks "
    "before.\n\n# Illness\n\nIf you are ill, write to the team before nine. A doctor's note is "
    "needed from the fourth day.",
    "people/travel.md": "# Travel\n\nTrains are booked in second class, flights only above 800 km."
    "\n\nExpenses are paid back with the salary of the next month; keep the receipts.",
    "people/first_day.md": "# Your first day\n\nYou get a laptop, a badge and a key to the bicycle "
    "cellar. Lunch is with your mentor.",
    "office/kitchen.txt": "The dishwasher starts at six in the evening.\nCoffee beans are in the "
    "upper cupboard; who takes the last bag orders new ones.",
    "office/heating.txt": "The thermostat of each room goes from 17 to 23 degrees.\nIn summer the "
    "blinds close by themselves.",
    "office/printer.txt": "The printer in the second floor jams when paper is damp.\nOpen tray 3, "
    "remove the sheet, press the green button.",
    "code/retry.py": "def fetch_with_retry(url, attempts=5):\n    '''Repeat a request after "
    "failures, with growing pauses between.'''\n    for attempt in range(attempts):\n        "
    "pause(2 ** attempt)\n",
    "code/auth.py": "class TokenStore:\n    '''Login tokens, which expire after an hour.'''\n\n"
    "    def refreshToken(self, user):\n        return self.issue(user, minutes=60)\n",
    "code/schema.sql": "CREATE TABLE orders (id INTEGER, customer INTEGER, total NUMERIC);\n"
    "CREATE TABLE customers (id INTEGER, email TEXT);\n",
    "runbook/database.md": "# Restore the database\n\nBackups are made at night. To restore"
    " one, stop the service, run pg_restore, then start it.",
    "runbook/alerts.md": "# Alerts\n\nAn alert means that customers wait. Accept it within five "
    "minutes, then look at the dashboard of latencies.",
    "runbook/deploy.md": "# Releases\n\nOn Tuesdays the main branch is rolled out to one tenth of "
    "the machines, an hour later to all. Roll back with `ship undo`.",
    "notes/旅行.md": "# 京都\n\n三月の終わりに桜が咲きます。バスは混みます。",
    "notes/straße.md": "# Straße\n\nDie Müllabfuhr kommt donnerstags; Glas kommt zum Bahnhof.",
}
QUESTIONS = {
    "How many vacation days do I get?": "people/holidays.md",
    "From which day on do I need a note of a doctor?": "people/holidays.md",
    "When are my travel expenses paid back?": "people/travel.md",
    "May I fly to Berlin, or must I take the train?": "people/travel.md",
    "Who has lunch with me when I start?": "people/first_day.md",
    "Where are the coffee beans?": "office/kitchen.txt",
    "How warm can I make my room with the thermostat?": "office/heating.txt",
    "The paper jams in the printer. What should I do?": "office/printer.txt",
    "How often is a failed request repeated?": "code/retry.py",
    "When does a login token expire?": "code/auth.py",
    "Which method refreshes a token?": "code/auth.py",
    "In which table is the email of customers?": "code/schema.sql",
    "How do I restore a backup?": "runbook/database.md",
    "What should I do when an alert comes?": "runbook/alerts.md",
    "How can I roll back a release?": "runbook/deploy.md",
    "京都の桜はいつ咲きますか": "notes/旅行.md",
    "Wann kommt die Muellabfuhr, wann die Müllabfuhr?": "notes/straße.md",
}


def write(folder: Path) -> Path:
    """Write the files below a new folder."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
