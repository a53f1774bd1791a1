"""The files that the user writes: the configuration file and the roles."""

from pathlib import Path

from swiftchat.errors import UsageError


def config_path() -> Path:
    import platformdirs

    return platformdirs.user_config_path("swiftchat") / "config.toml"


def roles_folder() -> Path:
    return config_path().parent / "roles"


def role_names() -> list[str]:
    return sorted(file.stem for file in roles_folder().glob("*.md"))


def role_file(name: str) -> Path:
    """Return the file of a role. Raises `UsageError` for an unknown name."""
    folder, names = roles_folder(), role_names()
    if name not in names:
        hint = f"roles: {', '.join(names)}" if names else f"write {folder / 'NAME.md'}"
        raise UsageError(f"no role {name!r}", hint)
    return folder / f"{name}.md"
