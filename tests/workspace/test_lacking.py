"""Programs that an image lacks for the tools of a template: found on the PATH and reported to the service."""

import importlib.util

import pytest

from gpuspawner.workspace import service
from gpuspawner.workspace.service import Reply


def make(folder, *programs):
    for name in programs:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return {"PATH": str(folder)}


@pytest.mark.parametrize("proxy", [None, object()], ids=["without its proxy", "with it"])
def test_each_needs_its_programs_where_the_workspace_looks_for_them(tmp_path, monkeypatch, proxy):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: proxy)
    monkeypatch.setattr(service, "SBIN", ())
    packages = [] if proxy else ["monitor"]
    assert service.find_missing_parts({"PATH": str(tmp_path)}) == ["vscode", "ssh", *packages]
    has_all = make(tmp_path, "code-server", "sshd", "ssh-keygen")
    assert service.find_missing_parts(has_all) == ([] if proxy else ["vscode", "monitor"])


async def test_it_is_told_again_while_the_service_is_away_and_nothing_where_nothing_lacks(monkeypatch):
    told = []

    class Client:
        async def report_missing(self, lacks):
            told.append(lacks)
            return Reply(200, {"away": True} if len(told) < 2 else {"lacks": lacks})

    monkeypatch.setattr(service, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(service, "find_missing_parts", lambda _environ: ["ssh"])
    await service.report_missing(Client(), {})
    assert told == [["ssh"], ["ssh"]]
    monkeypatch.setattr(service, "find_missing_parts", lambda _environ: [])
    await service.report_missing(Client(), {})
    assert len(told) == 2
