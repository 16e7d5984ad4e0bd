"""`--push-to-hub org/name`: a folder to the Hugging Face hub."""

from __future__ import annotations

import re
from pathlib import Path

from posttrain.core.errors import UserError
from posttrain.core.hub_access import address, bounded, has_token, hint, is_closed


def check_repo(name: str) -> None:
    """Before anything is loaded: a name that the hub takes, and a token."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name):
        raise UserError(f"--push-to-hub {name}: a repository is called org/name")
    if not has_token():
        raise UserError("--push-to-hub needs a token of the hub: type `hf auth login`, or export HF_TOKEN=hf_...")


def push(folder: Path, name: str, private: bool) -> str:
    """Upload everything in the folder; returns the address."""
    import huggingface_hub as hub

    bounded(60.0)  # a commit of many files takes a while
    api = hub.HfApi()
    try:
        api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(folder_path=str(folder), repo_id=name, commit_message="posttrain export")
    except Exception as error:  # network, rights, names: all mean the same to the user
        told = str(error).strip().splitlines()
        why = "check that your token may write there" if is_closed(error) or "40" in str(error)[:8] else hint(error)
        raise UserError(
            f"could not push to {name} ({type(error).__name__}: {told[0][:160] if told else ''}); {why}; the files are in {folder}"
        ) from None
    return address(name)
