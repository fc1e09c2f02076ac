"""A profile of Thunderbird: an account whose server nobody reaches, and local folders."""

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

PROFILE = "t5q2a5hp.default-release"  # where graders look for what was changed
PROFILES = f"""[Profile0]
Name=default-release
IsRelative=1
Path={PROFILE}
Default=1

[General]
StartWithLastProfile=1
Version=2
"""
USER, HOST = "anonym-x2024@outlook.com", "outlook.office365.com"


def preferences(prefix: str, **values: object) -> Mapping[str, object]:
    return {f"{prefix}.{name}": value for name, value in values.items()}


PREFERENCES: Mapping[str, object] = {
    **preferences("mail.accountmanager", accounts="account1,account2", defaultaccount="account1"),
    **preferences("mail.accountmanager", localfoldersserver="server2"),
    **preferences("mail.account.account1", identities="id1", server="server1"),
    **preferences("mail.account.account2", server="server2"),
    **preferences("mail.identity.id1", fullName="Anonym Tester", useremail=USER, smtpServer="smtp1", valid=True),
    **preferences("mail.server.server1", type="imap", hostname=HOST, userName=USER, name=USER, port=993, socketType=3),
    **preferences("mail.server.server1", check_new_mail=False, login_at_startup=False),
    "mail.server.server1.directory-rel": f"[ProfD]ImapMail/{HOST}",
    **preferences(
        "mail.server.server2", type="none", hostname="Local Folders", userName="nobody", name="Local Folders"
    ),
    "mail.server.server2.directory-rel": "[ProfD]Mail/Local Folders",
    "mail.smtpservers": "smtp1",
    **preferences("mail.smtp", defaultserver="smtp1"),
    **preferences("mail.smtpserver.smtp1", hostname="smtp.office365.com", port=587, username=USER),
    "mail.provider.suppress_dialog_on_startup": True,
    "mail.shell.checkDefaultClient": False,
    "offline.startup_state": 3,  # not to ask a server that nobody reaches
}


def profile(path: Path) -> None:
    lines = "".join(f'user_pref("{name}", {json.dumps(value)});\n' for name, value in PREFERENCES.items())
    with tarfile.open(path, "w:gz") as archive:
        _add(archive, ".thunderbird/profiles.ini", PROFILES.encode())
        _add(archive, f".thunderbird/{PROFILE}/prefs.js", lines.encode())


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


BUILDERS = {
    "10a730d5-d414-4b40-b479-684bed1ae522": profile,
    "3f28fe4f-5d9d-4994-a456-efd78cfae1a3": profile,
    "3f49d2cc-f400-4e7d-90cc-9b18e401cc31": profile,
    "a10b69e1-6034-4a2b-93e1-571d45194f75": profile,
    "f201fbc3-44e6-46fc-bcaa-432f9815454c": profile,
}
